"""Command `a2 runs`: a table of the trainings in an artifacts folder, with their scores."""

import csv
import json
import shutil
import sys
import textwrap
from datetime import datetime
from pathlib import Path

import click

from a2cap.data.errors import InputError
from a2cap.pipeline.cli.options import FOLDER, artifacts_option
from a2cap.pipeline.cli.output import format_bytes
from a2cap.pipeline.runs import RunResult, read_runs

_SCORE = "CIDEr"
_ORDERS = ("date", "cider", "name", "size")


@click.command()
@artifacts_option
@click.option("--sort", type=click.Choice(_ORDERS), default="date", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all metrics and settings.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--tensorboard",
    type=FOLDER,
    metavar="DIR",
    help="Link the curves of each training into this new folder under its title, for tensorboard "
    "--logdir.",
)
def runs(artifacts: Path, sort: str, as_json: bool, as_csv: bool, tensorboard: Path | None) -> None:
    """List trainings and their scores.

    Each evaluation is a run, and each training without one. Its title is its name (runtime.name,
    or that of its YAML file) and the start of its key. Below it are the folder and the settings
    that are not the default. "a2 caption --model", "a2 serve", "a2 submit", "a2 compare" and
    "a2 analyze" take a name, the start of a key, or "latest".

    \b
    Example:
      a2 runs --sort cider
      a2 runs --tensorboard curves
    """
    found = read_runs(artifacts)
    orders = {
        "date": lambda run: -run.date,
        "cider": lambda run: -run.scores.get("metrics", {}).get(_SCORE, -1.0),
        "name": lambda run: run.name,
        "size": lambda run: -run.size,
    }
    found.sort(key=orders[sort])
    if tensorboard is not None:
        _link_curves(tensorboard, found)
    if as_json:
        click.echo(json.dumps([_row(run) for run in found], indent=1))
    elif as_csv:
        _write_csv(found)
    else:
        _print_table(found)


def _row(run: RunResult) -> dict[str, object]:
    return {
        "name": run.name,
        "key": run.folder.name.partition(".")[0],
        "state": run.state,
        "date": _date(run),
        "metrics": run.scores.get("metrics", {}),
        "confidence": run.scores.get("confidence", {}),
        "size": run.size,
        "training": run.training and str(run.training),
        "evaluation": run.evaluation and str(run.evaluation),
        "settings": run.settings,
    }


def _write_csv(found: list[RunResult]) -> None:
    """Print a column for each metric, each end of its interval, and each setting."""
    rows = []
    for run in found:
        nested = ("metrics", "confidence", "settings")
        row = {name: value for name, value in _row(run).items() if name not in nested}
        for name, value in run.scores.get("metrics", {}).items():
            low, high = run.scores.get("confidence", {}).get(name, ("", ""))
            row |= {name: value, f"{name} low": low, f"{name} high": high}
        rows.append({**row, **run.settings})
    fields = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, fieldnames=list(fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_table(found: list[RunResult]) -> None:
    width = shutil.get_terminal_size().columns
    truths = [run.scores.get("metrics", {}).get("truth") for run in found]
    columns = ["CIDEr".ljust(22), *(["truth"] if any(truths) else []), "date".ljust(16)]
    if found:
        click.echo("  ".join([*columns, "   size", "run"]))
    for run, share in zip(found, truths, strict=True):
        truth = "" if share is None else f"{share:.3f}"
        cells = [_score(run).ljust(22), *([truth.ljust(5)] if "truth" in columns else [])]
        size = format_bytes(run.size).rjust(7)
        click.echo("  ".join([*cells, _date(run), size, run.title]))
        settings = ", ".join(f"{name} {_plain(value)}" for name, value in run.settings.items())
        folder = f"{run.folder.parent.name}/{run.folder.name}"
        text = f"{folder}: {settings or 'all settings at their default'}"
        click.echo(f"  {textwrap.shorten(text, width - 2, placeholder=' …')}")
    count = "1 run" if len(found) == 1 else f"{len(found)} runs"
    click.echo(count if found else 'no runs; "a2 train" makes one')


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _score(run: RunResult) -> str:
    """Format CIDEr with its interval, or why there is none."""
    value = run.scores.get("metrics", {}).get(_SCORE)
    if value is None:
        return "not evaluated" if run.state == "done" else run.state
    low, high = run.scores.get("confidence", {}).get(_SCORE, (None, None))
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _date(run: RunResult) -> str:
    return datetime.fromtimestamp(run.date).astimezone().isoformat(" ", "minutes")[:16]


def _link_curves(folder: Path, found: list[RunResult]) -> None:
    """Link the TensorBoard files of each training; raise InputError if the folder exists."""
    if folder.exists():
        raise InputError(f"{str(folder)!r} exists; name a new folder")
    for run in found:
        if run.training and (run.training / "tensorboard").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            name = run.title.replace("/", "-")
            (folder / name).symlink_to((run.training / "tensorboard").resolve())
