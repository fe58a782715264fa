"""Kills and stops stages at named points and random times, and checks their reruns.

Each trial starts a stage in a forked process and kills it with SIGKILL. One in five is a run with
--force over a finished result, and one in four is killed again while it resumes. In one in six,
SIGTERM or SIGINT takes the place of SIGKILL, and a training may not repeat any step. In one in six,
inputs are replaced during the first run and restored after it. Extraction also runs as two stripes
at the same time, of which one or both are killed, and as tasks of Ray, where every second trial
sends SIGKILL or SIGTERM to a worker, after which the run must go on or end with an error of one
line, and the others kill the whole run. Then the stage runs to its end. Its result must equal that
of an uninterrupted run (the store by the digest of its records, tensors bit for bit, metrics by
value), no acknowledged item may be lost or repeated, and all other files must be unchanged.
"""

import importlib
import os
import platform
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import torch

from tests.faults.fault_points import POINTS, Fault, Point, points_of_work
from tests.faults.trial import (
    PROMISED,
    STAGES,
    Trial,
    Uninterrupted,
    Verdict,
    Workspace,
    scale_down,
)

SHARES: Mapping[str, float] = {
    "extract": 0.2,
    "stripes": 0.1,
    "ray": 0.05,
    "preprocess": 0.15,
    "train-xe": 0.2,
    "train-scst": 0.1,
    "evaluate": 0.1,
    "train-detector": 0.1,
    "train-encoder": 0.1,
}
"""Relative shares of the kills: fewer where a rerun waits ten seconds for Java."""

LATE_IMPORTS = (
    *sorted({point.target.partition(":")[0] for points in POINTS.values() for point in points}),
    "a2cap.pipeline.training.detector.train",
    "a2cap.pipeline.training.encoder.train",
    "a2cap.pipeline.evaluation.evaluate_captioner",
    "pycocoevalcap.bleu.bleu",
    "pycocoevalcap.cider.cider",
    "pycocoevalcap.rouge.rouge",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "torchvision.ops",
)
"""Modules that stages import when they run; imported here once, before all forks."""


@dataclass
class Tally:
    """Totals over the trials of one stage."""

    points: set[str] = field(default_factory=set)
    named: int = 0
    kills: int = 0
    survived: int = 0
    replaced: int = 0
    signalled: int = 0
    stopped: int = 0
    trials: int = 0
    equal: int = 0
    lost: int = 0
    repeated: list[int] = field(default_factory=list)

    def add(self, trial: Trial, verdict: Verdict) -> None:
        """Count one trial."""
        first = trial.kills[0]
        self.replaced += verdict.replaced
        self.signalled += verdict.signalled
        self.stopped += bool(verdict.kills) and trial.sent != signal.SIGKILL
        if verdict.kills and isinstance(first, Fault) and not trial.replace and not trial.child:
            self.named += 1
            self.points.add(first.point.target)
        self.kills += verdict.kills
        self.trials += 1
        self.lost += verdict.lost
        if not verdict.problems:
            self.equal += 1
            self.survived += verdict.kills
        self.repeated += verdict.repeated


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kills", default=200, show_default=True, help="Number of runs to kill.")
@click.option("--seed", default=0, show_default=True, help="Seed of points and times.")
@click.option("--stage", "stages", multiple=True, type=click.Choice(STAGES), help="Only this one.")
@click.option("--until", help="End a stage at its first problem that contains this text.")
def main(kills: int, seed: int, stages: Sequence[str], until: str | None) -> None:
    """Kill runs of each stage and print what their reruns found.

    Example: python -m tests.faults.driver --kills 200 --seed 0
    """
    scale_down()
    for name in LATE_IMPORTS:
        importlib.import_module(name)
    chosen = [name for name in STAGES if name in (stages or STAGES)]
    with tempfile.TemporaryDirectory(prefix="a2-faults-") as folder:
        workspace = Workspace(Path(folder))
        started = time.monotonic()
        workspace.make(chosen)
        tallies = {
            stage: _kill(workspace, stage, count, random.Random(f"{seed} {stage}"), until)
            for stage, count in _kills_per_stage(kills, chosen).items()
        }
        click.echo(
            f"machine: {os.cpu_count()} cores, {platform.system()}, Python "
            f"{platform.python_version()}, torch {torch.__version__}\n"
        )
        click.echo("\n".join(_table(tallies, workspace.uninterrupted)))
        click.echo(f"\n{_summary(tallies)} in {time.monotonic() - started:.0f} s")
    if any(tally.equal < tally.trials or tally.lost for tally in tallies.values()):
        raise click.ClickException("some reruns differ from an uninterrupted run; see above")


def _kills_per_stage(kills: int, stages: Sequence[str]) -> dict[str, int]:
    """Divide the kills by SHARES; the last stages absorb the rounding."""
    left, shares = kills, sum(SHARES[stage] for stage in stages)
    counts = {}
    for stage in stages:
        counts[stage] = round(left * SHARES[stage] / shares) if left else 0
        left -= counts[stage]
        shares -= SHARES[stage]
    return counts


def _kill(
    workspace: Workspace, stage: str, kills: int, rng: random.Random, until: str | None
) -> Tally:
    """Run trials of one stage until it has been killed `kills` times."""
    tally = Tally()
    uninterrupted = workspace.uninterrupted[stage]
    kills_at = _faults(uninterrupted, POINTS[stage], rng)
    replaced_at = _faults(uninterrupted, points_of_work(stage), rng)
    for number in range(10 * kills):
        if tally.kills >= kills:
            break
        faults = replaced_at if _kind(stage, number) == "replace" else kills_at
        trial = _trial(workspace, stage, number, faults, rng)
        verdict = trial.run()
        if verdict.kills or verdict.replaced or verdict.signalled or verdict.problems:
            tally.add(trial, verdict)
        problems = [*verdict.problems, *(["an item was lost"] if verdict.lost else [])]
        for problem in problems:
            kinds = ", then ".join(map(_format_kill, trial.kills))
            how = " (forced)" * trial.force + " (inputs replaced)" * trial.replace
            how += f" ({trial.child.name} to a child)" if trial.child else f" ({trial.sent.name})"
            click.echo(f"{trial.name}{how}, {kinds}: {problem}", err=True)
        if verdict.problems:
            click.echo((trial.folder / "log").read_text()[-2000:], err=True)
        shutil.rmtree(trial.folder)
        if until is not None and any(until in problem for problem in problems):
            break
    click.echo(f"{stage}: {tally.survived} of {tally.kills} kills survived", err=True)
    return tally


def _trial(
    workspace: Workspace, stage: str, number: int, faults: Iterator[Fault], rng: random.Random
) -> Trial:
    """Alternate named points and random times; force some runs and kill some twice."""
    seconds, kind = workspace.uninterrupted[stage].seconds, _kind(stage, number)
    turn = number // 6 % 2
    child = (signal.SIGKILL, signal.SIGTERM)[turn] if kind == "child" else None
    sent = (signal.SIGTERM, signal.SIGINT)[turn] if kind == "stop" else signal.SIGKILL
    first = rng.uniform(0, seconds) if kind == "time" else next(faults)
    second = [rng.uniform(0, seconds)] if rng.random() < 0.25 else []
    force = stage != "stripes" and rng.random() < 0.2  # which have no --force
    kills, name = [first, *second], f"{stage}-{number}"
    replace = kind == "replace"
    return Trial(
        workspace, name, stage, kills, force=force, replace=replace, child=child, sent=sent
    )


def _kind(stage: str, number: int) -> str:
    """Return what happens in the trial of this number; stages begin with different kinds."""
    if stage == "ray":
        return ("child", "time")[number % 2]
    kinds = ("point", "time", "point", "time", "stop", "replace")
    return kinds[(number + STAGES.index(stage)) % 6]


def _faults(
    uninterrupted: Uninterrupted, points: Sequence[Point], rng: random.Random
) -> Iterator[Fault]:
    """Yield, endlessly, each point that an uninterrupted run reaches, at one of its calls."""
    reached = [point for point in points if uninterrupted.calls[point.target]]
    while True:
        rng.shuffle(reached)
        for point in reached:
            call = rng.randint(1, uninterrupted.calls[point.target])
            yield Fault(point, rng.choice(point.moments), call)


def _format_kill(kill: Fault | float) -> str:
    return str(kill) if isinstance(kill, Fault) else f"after {kill:.3f} s"


def _table(
    tallies: Mapping[str, Tally], uninterrupted: Mapping[str, Uninterrupted]
) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| stage | kills | at named points | at random times | by SIGTERM or SIGINT | survived "
        "| inputs replaced "
        "| children signalled | items lost | repeated, median | most | promised at most "
        "| equal results |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for stage, tally in tallies.items():
        unit, limit = PROMISED.get(stage, ("stage", 1))
        repeated = tally.repeated or [0]
        duration = f" of {uninterrupted[stage].seconds:.1f} s" if unit == "stage" else ""
        yield (
            f"| {stage} | {tally.kills} | {tally.named} | {tally.kills - tally.named} "
            f"| {tally.stopped} | {tally.survived} | {tally.replaced} | {tally.signalled} "
            f"| {tally.lost} | {statistics.median(repeated):g} | {max(repeated)} "
            f"| {limit} {unit}{duration} | {tally.equal} of {tally.trials} |"
        )


def _summary(tallies: Mapping[str, Tally]) -> str:
    counts = tallies.values()
    return (
        f"{sum(t.survived for t in counts)} of {sum(t.kills for t in counts)} kills survived, "
        f"inputs replaced in {sum(t.replaced for t in counts)} runs, "
        f"children signalled in {sum(t.signalled for t in counts)} runs, "
        f"{sum(t.lost for t in counts)} items lost, "
        f"{sum(t.equal for t in counts)} of {sum(t.trials for t in counts)} results equal, "
        f"{sum(len(t.points) for t in counts)} points"
    )


if __name__ == "__main__":
    main()
