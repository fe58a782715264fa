"""Printed results of the commands."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import click

from a2cap.pipeline.engine.artifacts import METRICS as SCORES
from a2cap.pipeline.engine.artifacts import REPORT, SKIPPED
from a2cap.pipeline.engine.progress import format_duration
from a2cap.pipeline.metrics.score import ENGLISH_ONLY, shown_name
from a2cap.pipeline.report.summary import in_order

if TYPE_CHECKING:
    from a2cap.pipeline.demo import Demo
    from a2cap.pipeline.engine.run import Outcome
    from a2cap.pipeline.engine.shards import ShardOutcome
    from a2cap.pipeline.experiment import Experiment

_SKIPPED_SHOWN = 10  # skipped.jsonl lists all
_CLASSES_SHOWN = 5  # figures.json lists all


def print_outcome(name: str, outcome: "Outcome") -> None:
    """Print the outcome of a stage, the path of its result, and its skipped items."""
    seconds = format_duration(outcome.manifest.seconds)
    state = f"done in {seconds}" if outcome.ran else "up to date"
    click.echo(f"{name}: {state}: {outcome.directory}")
    if not outcome.manifest.skipped:
        return
    listed = outcome.directory / SKIPPED
    click.echo(f"{name}: {outcome.manifest.skipped} skipped, listed in {listed}", err=True)
    items = [json.loads(line) for line in listed.read_text().splitlines()]
    for item in items[:_SKIPPED_SHOWN]:
        click.echo(f"  {item['id']}: {item['reason']}", err=True)
    if len(items) > _SKIPPED_SHOWN:
        click.echo(f"  and {len(items) - _SKIPPED_SHOWN} more", err=True)


def print_shard(outcome: "ShardOutcome") -> None:
    """Print the outcome of a shard: the finished stage, or the unfinished shards."""
    if outcome.stage is not None:
        print_outcome("extract", outcome.stage)
        return
    waiting = ", ".join(map(str, outcome.waiting))
    click.echo(f"extract: shard {outcome.shard} finished, waiting for {waiting}")
    if outcome.skipped:
        click.echo(f"extract: {outcome.skipped} skipped in shard {outcome.shard}", err=True)


def print_status(
    experiment: "Experiment", names: list[str], *, explain: bool, as_json: bool = False
) -> None:
    """Print the status of each stage; with `explain` also the reasons for a run."""
    found = [experiment.status(name) for name in names]
    if as_json:
        rows = [
            {
                "stage": status.stage,
                "state": status.state,
                "directory": None if status.directory is None else str(status.directory),
                "why": status.why,
            }
            for status in found
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    for status in found:
        click.echo(f"{status.stage:<12} {status.state:<8} {status.directory or ''}".rstrip())
        if explain and status.why:
            click.echo(f"{'':<12} {'; '.join(status.why)}")


def print_evaluation(directory: Path, *, spice: bool = False) -> bool:
    """Print the scores of a finished evaluation and the path of its report.

    spice: True if SPICE was requested. Returns False if it was and could not run.
    """
    content = json.loads((directory / SCORES).read_text())
    print_scores(content["metrics"], content["not_run"])
    click.echo(f"report: {directory / REPORT}")
    return not spice or has_spice(content["not_run"])


def print_next_steps(demo: "Demo") -> None:
    """Print the command that opens the demo's report, and one that captions an image."""
    program = "a2" if which("a2") == sys.argv[0] else sys.argv[0]
    report = (demo.evaluation / REPORT).resolve().as_uri()
    caption = [program, "caption", demo.image, "--model", demo.captioner]
    for words in (
        [sys.executable, "-m", "webbrowser", report],
        [*caption, "--figure", "attention.png"],
    ):
        click.echo(shlex.join(map(str, words)))


def has_spice(not_run: Mapping[str, str]) -> bool:
    """Return False and print what to do if SPICE, which was requested, lacks its parser."""
    is_complete = not_run.get("SPICE", ENGLISH_ONLY) == ENGLISH_ONLY
    if not is_complete:
        click.echo(
            'a2: scored without SPICE; run "a2 weights fetch spice" and the same command again, '
            "or set evaluate.spice to false",
            err=True,
        )
    return is_complete


def print_detector(figures: Mapping[str, Any]) -> None:
    """Print a detector's metrics, one per line, and the classes with the lowest AP50."""
    for name in ("AP", "AP50", "AP75"):
        click.echo(f"{name:<8} {figures[name]:.4f}")
    for count in sorted(figures["proposal_recall"], key=int):
        share = figures["proposal_recall"][count]
        click.echo(f"{f'recall of {count} proposals':<24} {share:.4f}")
    for family, share in figures["attribute_accuracy"].items():
        text = "no object found" if share is None else f"{share:.4f}"
        click.echo(f"{f'accuracy of {family}':<24} {text}")
    # ties by name, so that equal figures print equal lines
    worst = sorted(figures["AP50_of_class"].items(), key=lambda item: (item[1], item[0]))
    named = ", ".join(f"{name} {value:.3f}" for name, value in worst[:_CLASSES_SHOWN])
    click.echo(f"lowest AP50: {named}")
    click.echo(f"on {figures['pictures']:,} images")


def print_scores(metrics: dict[str, float], not_run: dict[str, str]) -> None:
    """Print one line per metric; metrics that did not run come last, with the reason."""
    found = {name: f"{metrics[name]:.4f}" for name in in_order(metrics)}
    found |= {name: f"not run: {reason}" for name, reason in not_run.items()}
    width = max(8, *map(len, found))
    for name, text in found.items():
        click.echo(f"{shown_name(name):<{width}} {text}")


def format_bytes(count: int) -> str:
    """Format a number of bytes with three digits: `512 B`, `18.2 GB`."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:  # more would be rounded to 1000
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
