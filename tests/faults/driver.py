"""Kills stages at named points and at random times; the rerun must end as if nothing had happened.

Each trial starts a stage in a forked process and kills it as kill -9 does; one in five is a run
with --force over a finished result, and one in four is killed again while it resumes. Then the
stage is run once more and left alone. Its result must be equal to that of an undisturbed run (the
store by the digest over its records, tensors bit for bit, metrics by value), nothing that was
acknowledged may be done or missing again, and all else must be as it was.
"""

import importlib
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

if TYPE_CHECKING:
    from tests.faults.fault_points import POINTS, Fault
    from tests.faults.trial import (
        PROMISED,
        STAGES,
        FaultExperiment,
        Trial,
        Uninterrupted,
        Verdict,
    )
else:
    from fault_points import POINTS, Fault
    from trial import (
        PROMISED,
        STAGES,
        FaultExperiment,
        Trial,
        Uninterrupted,
        Verdict,
    )

SHARES: Mapping[str, float] = {
    "calibrate": 0.1,
    "extract": 0.25,
    "preprocess": 0.15,
    "train-xe": 0.25,
    "train-scst": 0.15,
    "evaluate": 0.1,
    "train-detector": 0.1,
}
"""Of all kills: fewer where a rerun waits ten seconds for Java."""

IMPORTED = (
    "a2cap.extract.weights.calibrated_random",
    "a2cap.extract.weights.load",
    "a2cap.pipeline.training.captioner.cross_entropy",
    "a2cap.pipeline.training.detector.train",
    "a2cap.pipeline.evaluation.evaluate",
    "a2cap.pipeline.training.captioner.self_critical",
    "a2cap.pipeline.training.loop",
    "pycocoevalcap.bleu.bleu",
    "pycocoevalcap.cider.cider",
    "pycocoevalcap.rouge.rouge",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "torchvision.ops",
)
"""What the stages import only when they run: here once, ahead of all forks."""


@dataclass
class Tally:
    """What the trials of one stage showed."""

    points: set[str] = field(default_factory=set)
    named: int = 0
    timed: int = 0
    survived: int = 0
    trials: int = 0
    equal: int = 0
    lost: int = 0
    done_again: list[int] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """All kills of the stage."""
        return self.named + self.timed

    def add(self, trial: Trial, verdict: Verdict) -> None:
        """Counts one trial."""
        first = trial.kills[0]
        if verdict.kills and isinstance(first, Fault):
            self.named += 1
            self.timed -= 1
            self.points.add(first.point.target)
        self.timed += verdict.kills
        self.trials += 1
        self.lost += verdict.lost
        if not verdict.problems:
            self.equal += 1
            self.survived += verdict.kills
        self.done_again += verdict.done_again


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kills", default=200, show_default=True, help="How many runs are killed.")
@click.option("--seed", default=0, show_default=True, help="Chooses points and times.")
@click.option("--stage", "stages", multiple=True, type=click.Choice(STAGES), help="Only these.")
def main(kills: int, seed: int, stages: Sequence[str]) -> None:
    """Kills runs of each stage, and prints what their reruns found.

    Example: python tests/faults/driver.py --kills 200 --seed 0
    """
    _import_all()
    chosen = [name for name in STAGES if name in (stages or STAGES)]
    with tempfile.TemporaryDirectory(prefix="a2-faults-") as folder:
        experiment = FaultExperiment(Path(folder))
        started = time.monotonic()
        experiment.make(chosen)
        tallies = {
            stage: _kill(experiment, stage, count, random.Random(f"{seed} {stage}"))
            for stage, count in _shared(kills, chosen).items()
        }
        click.echo(_machine())
        click.echo("\n".join(_table(tallies, experiment.uninterrupted)))
        click.echo(f"\n{_summary(tallies)} in {time.monotonic() - started:.0f} s")
    if any(tally.equal < tally.trials or tally.lost for tally in tallies.values()):
        raise click.ClickException("not every rerun ended as an undisturbed run does; see above")


def _import_all() -> None:
    """Starts no thread of torch's pool, because those do not survive a fork."""
    torch.set_num_threads(1)
    for name in IMPORTED:
        importlib.import_module(name)


def _shared(kills: int, stages: Sequence[str]) -> dict[str, int]:
    """Kills of each stage; rounding falls to the last ones."""
    left, shares = kills, sum(SHARES[stage] for stage in stages)
    counts = {}
    for stage in stages:
        counts[stage] = round(left * SHARES[stage] / shares) if left else 0
        left -= counts[stage]
        shares -= SHARES[stage]
    return counts


def _kill(experiment: FaultExperiment, stage: str, kills: int, chance: random.Random) -> Tally:
    """Trials of one stage until it has been killed that often."""
    tally = Tally()
    faults = _faults(experiment.uninterrupted[stage], stage, chance)
    for number in range(10 * kills):
        if tally.kills >= kills:
            break
        trial = _trial(experiment, stage, number, faults, chance)
        verdict = trial.run()
        if verdict.kills or verdict.problems:
            tally.add(trial, verdict)
        for problem in [*verdict.problems, *(["something was lost"] if verdict.lost else [])]:
            how = ", then ".join(map(_how, trial.kills))
            click.echo(f"{trial.name}{' (forced)' * trial.force}, {how}: {problem}", err=True)
        if verdict.problems:
            click.echo((trial.folder / "log").read_text()[-2000:], err=True)
        shutil.rmtree(trial.folder)
    click.echo(f"{stage}: {tally.survived} of {tally.kills} kills survived", err=True)
    return tally


def _trial(
    experiment: FaultExperiment,
    stage: str,
    number: int,
    faults: Iterator[Fault],
    chance: random.Random,
) -> Trial:
    """Named points and random times take turns; some runs are forced, some killed twice."""
    seconds = experiment.uninterrupted[stage].seconds
    first = chance.uniform(0, seconds) if number % 2 else next(faults)
    again = [chance.uniform(0, seconds)] if chance.random() < 0.25 else []
    force = chance.random() < 0.2
    return Trial(experiment, f"{stage}-{number}", stage, [first, *again], force=force)


def _faults(alone: Uninterrupted, stage: str, chance: random.Random) -> Iterator[Fault]:
    """Without end: every point that an undisturbed run meets, in turn, at one of its calls."""
    met = [point for point in POINTS[stage] if alone.calls[point.target]]
    while True:
        chance.shuffle(met)
        for point in met:
            call = chance.randint(1, alone.calls[point.target])
            yield Fault(point, chance.choice(point.moments), call)


def _how(kill: Fault | float) -> str:
    return str(kill) if isinstance(kill, Fault) else f"after {kill:.3f} s"


def _table(tallies: Mapping[str, Tally], alone: Mapping[str, Uninterrupted]) -> Iterator[str]:
    """Markdown."""
    yield (
        "| stage | kills | at named points | at random times | survived | items lost "
        "| done again, median | most | promised at most | equal results |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for stage, tally in tallies.items():
        unit, most = PROMISED.get(stage, ("stage", 1))
        again = tally.done_again or [0]
        took = f" of {alone[stage].seconds:.1f} s" if unit == "stage" else ""
        yield (
            f"| {stage} | {tally.kills} | {tally.named} | {tally.timed} | {tally.survived} "
            f"| {tally.lost} | {statistics.median(again):g} | {max(again)} "
            f"| {most} {unit}{took} | {tally.equal} of {tally.trials} |"
        )


def _summary(tallies: Mapping[str, Tally]) -> str:
    found = tallies.values()
    points = sum(len(tally.points) for tally in found)
    return (
        f"{sum(t.survived for t in found)} of {sum(t.kills for t in found)} kills survived, "
        f"{sum(t.lost for t in found)} items lost, "
        f"{sum(t.equal for t in found)} of {sum(t.trials for t in found)} results equal, "
        f"{points} points"
    )


def _machine() -> str:
    return (
        f"machine: {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}\n"
    )


if __name__ == "__main__":
    main()
