"""Command `a2 runs`: a table of the trainings in an artifacts folder, with their scores."""

import csv
import json
import math
import shutil
import sys
import textwrap
from datetime import datetime
from pathlib import Path

import click

from a2cap.data.errors import InputError, near_name
from a2cap.data.files.csv_cell import as_text
from a2cap.data.files.yaml_file import parse_yaml
from a2cap.pipeline.cli.options import FOLDER, artifacts_option
from a2cap.pipeline.engine.progress import format_bytes
from a2cap.pipeline.metrics.metric_table import MAIN
from a2cap.pipeline.runs import RunResult, differing_fields, read_runs

_ORDERS = ("date", "cider", "name", "size")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@artifacts_option
@click.option("--sort", type=click.Choice(_ORDERS), default="date", show_default=True)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="SETTING=VALUE",
    help="List only runs with this value of a setting, such as train.lr=0.001.",
)
@click.option(
    "--best",
    "groups",
    multiple=True,
    metavar="SETTING",
    help="List only the run with the highest CIDEr for each value of a setting; repeat it for "
    "each combination of several.",
)
@click.option("--limit", type=click.IntRange(min=1), help="List only the first runs of the order.")
@click.option("--curves", is_flag=True, help="Print the figures of each epoch below each run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all metrics and settings.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--tensorboard",
    type=FOLDER,
    metavar="DIR",
    help="Link the curves of each training into this new folder under its title, for tensorboard "
    "--logdir.",
)
def runs(
    names: tuple[str, ...],
    artifacts: Path,
    sort: str,
    conditions: tuple[str, ...],
    groups: tuple[str, ...],
    limit: int | None,
    curves: bool,
    as_json: bool,
    as_csv: bool,
    tensorboard: Path | None,
) -> None:
    """List trainings and their scores.

    Each evaluation is a run, and each training without one. Its title is its name (runtime.name,
    or that of its YAML file) and the start of its key. Below it are its best epoch, its folder,
    and the settings in which the listed runs differ; those that all of them have changed from the
    default come last. NAME is the name of runs, with wildcards, or the start of a key.
    "a2 caption --model", "a2 serve", "a2 compare" and "a2 analyze" take a name, the
    start of a key, or "latest".

    \b
    Example:
      a2 runs --sort cider --limit 5
      a2 runs "gate*" --where train.seed=0 --best train.lr
      a2 runs --curves
      a2 runs --tensorboard curves
    """
    listed = [run for run in read_runs(artifacts) if not names or any(map(run.is_named, names))]
    for condition in conditions:
        listed = _with_value(listed, condition)
    orders = {
        "date": lambda run: -run.date,
        "cider": _by_score,
        "name": lambda run: run.name,
        "size": lambda run: -run.size,
    }
    listed.sort(key=orders[sort])
    if groups:
        listed = _best(listed, [_setting(listed, name) for name in groups])
    listed = listed[:limit]
    if tensorboard is not None:
        _link_curves(tensorboard, listed)
    if as_json:
        click.echo(json.dumps([_row(run) for run in listed], indent=1))
    elif as_csv:
        _write_csv(listed)
    else:
        _print_table(listed, curves=curves, filtered=bool(names or conditions))


def _by_score(run: RunResult) -> float:
    return math.inf if run.score is None else -run.score


def _setting(listed: list[RunResult], name: str) -> str:
    """Return the full name of a setting; its last part is enough if no other setting has it."""
    fields = list(dict.fromkeys(field for run in listed for field in run.fields))
    meant = [field for field in fields if name in (field, field.rpartition(".")[2])]
    if len(meant) == 1 or name in meant:
        return name if name in meant else meant[0]
    if meant:
        raise InputError(f"{name!r} is in several settings; name one of {', '.join(meant)}")
    changed = '"a2 runs --json" lists those that are changed'
    hint = near_name(name, fields, otherwise=changed)
    raise InputError(f"no listed run has the setting {name!r}; {hint}")


def _with_value(listed: list[RunResult], condition: str) -> list[RunResult]:
    name, equals, text = condition.partition("=")
    if not equals:
        raise InputError(f"--where is {condition!r}; write SETTING=VALUE, such as train.seed=0")
    if not listed:
        return []
    field, value = _setting(listed, name), parse_yaml(text)
    return [
        run
        for run in listed
        if field in run.fields and (run.fields[field] == value or run.fields[field] == text)
    ]


def _best(listed: list[RunResult], settings: list[str]) -> list[RunResult]:
    """Return the run with the highest CIDEr for each combination of values, in the given order."""
    best: dict[str, RunResult] = {}
    for run in sorted(listed, key=_by_score, reverse=True):
        if run.score is not None:  # the last of a combination, the highest, stays
            best[json.dumps([run.format(name) for name in settings])] = run
    return [run for run in listed if run in best.values()]


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
        "epochs": list(run.curve.epochs) if run.curve else [],
    }


def _write_csv(runs: list[RunResult]) -> None:
    """Print a column for each metric, each end of its interval, and each setting."""
    rows = []
    for run in runs:
        nested = ("metrics", "confidence", "settings", "epochs")
        row = {name: value for name, value in _row(run).items() if name not in nested}
        for name, value in run.scores.get("metrics", {}).items():
            low, high = run.scores.get("confidence", {}).get(name, ("", ""))
            row |= {name: value, f"{name} low": low, f"{name} high": high}
        rows.append({**row, **run.settings})
    fields = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, fieldnames=list(fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_text(value) for name, value in row.items()} for row in rows)


def _print_table(listed: list[RunResult], *, curves: bool, filtered: bool) -> None:
    truths = [run.scores.get("metrics", {}).get("truth") for run in listed]
    columns = [MAIN.ljust(22), *(["truth"] if any(truths) else []), "date".ljust(16)]
    if listed:
        click.echo("  ".join([*columns, "   size", "run"]))
    # of a single run, all settings that are not the default
    differing = differing_fields(listed) if len(listed) > 1 else []
    shared = [name for run in listed[:1] for name in run.changed if name not in differing]
    for run, share in zip(listed, truths, strict=True):
        truth = "" if share is None else f"{share:.3f}"
        cells = [_score(run).ljust(22), *([truth.ljust(5)] if "truth" in columns else [])]
        size = format_bytes(run.size).rjust(7)
        click.echo("  ".join([*cells, _date(run), size, run.title]))
        curve = run.curve
        parts = [f"{run.folder.parent.name}/{run.folder.name}", *([curve.summary] if curve else [])]
        _print_wrapped(", ".join([*parts, *(run.format(n) for n in differing if n in run.fields)]))
        if curves and curve:
            click.echo(textwrap.indent("\n".join(curve.lines), "    "))
    if listed:
        settings = ", ".join(listed[0].format(name) for name in shared)
        _print_wrapped(f"in all of them: {settings}" if len(listed) > 1 else settings)
    count = "1 run" if len(listed) == 1 else f"{len(listed)} runs"
    empty = "no run fits" if filtered else 'no runs; "a2 train" makes one'
    click.echo(count if listed else empty)


def _print_wrapped(text: str) -> None:
    """Print text in lines of the terminal's width: what is cut off would be what differs."""
    width = shutil.get_terminal_size().columns
    for line in textwrap.wrap(text, width - 2, subsequent_indent="  ", break_on_hyphens=False):
        click.echo(f"  {line}")


def _score(run: RunResult) -> str:
    """Format CIDEr with its interval, or why there is none."""
    if run.score is None:
        return "not evaluated" if run.state == "done" else run.state
    low, high = run.scores.get("confidence", {}).get(MAIN, (None, None))
    return f"{run.score:.3f}" if low is None else f"{run.score:.3f} ({low:.3f} to {high:.3f})"


def _date(run: RunResult) -> str:
    return datetime.fromtimestamp(run.date).astimezone().isoformat(" ", "minutes")[:16]


def _link_curves(folder: Path, runs: list[RunResult]) -> None:
    """Link the TensorBoard files of each training; raise InputError if the folder exists."""
    if folder.exists():
        raise InputError(f"{str(folder)!r} exists; name a new folder")
    for run in runs:
        if run.training and (run.training / "tensorboard").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            name = run.title.replace("/", "-")
            (folder / name).symlink_to((run.training / "tensorboard").resolve())
