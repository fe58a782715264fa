"""Printed scores of captioners and detectors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from a2cap.data.files.sealed_folder import read_output
from a2cap.pipeline.engine.artifact_names import METRICS, REPORT
from a2cap.pipeline.evaluation.score_table import ScoreTable, as_lines
from a2cap.pipeline.metrics.all_metrics import ENGLISH_ONLY, Scores, unpenalised_line
from a2cap.pipeline.metrics.metric_table import rows_as_text, score_rows
from a2cap.pipeline.report.comparison_page import Difference

_CLASSES_SHOWN = 5  # figures.json lists all


def print_evaluation(directory: Path, *, spice: bool = False) -> bool:
    """Print the scores of a finished evaluation and the path of its report.

    spice: True if SPICE was requested. Returns False if it was and could not run.
    """
    content = read_output(directory, METRICS)
    rows = score_rows(content["metrics"], content["confidence"], content["not_run"])
    unpenalised = content.get("bleu_without_brevity_penalty", ())
    click.echo("\n".join(rows_as_text(rows) + unpenalised_line(content["metrics"], unpenalised)))
    click.echo(f"report: {directory / REPORT}")
    return not spice or has_spice(content["not_run"])


def print_summary(scores: Scores, figures: Mapping[str, float]) -> None:
    """Print each metric with its interval, the lengths and the number of distinct captions."""
    click.echo(str(scores))
    count, vocabulary = int(figures["captions"]), int(figures["vocabulary"])
    distinct = round(figures["distinct_captions"] * count)
    click.echo(
        f"{count:,} captions of {figures['words_mean']:.1f} words "
        f"({figures['words_min']:.0f} to {figures['words_max']:.0f}), "
        f"{distinct:,} distinct, vocabulary of {vocabulary:,} words"
    )


def print_differences(names: tuple[str, str], rows: Sequence[Difference]) -> None:
    """Print the differences between two sets of captions, a metric on each line."""
    table = as_lines([("", *Difference.HEADS[1:]), *(row.cells for row in rows)])
    click.echo("\n".join([*names, table]))


def print_table(table: ScoreTable) -> None:
    """Print several sets of captions: a row of metrics each, then differences from the first."""
    click.echo(table.as_text())
    click.echo("* best")
    for name, rows in table.differences.items():
        click.echo()
        print_differences((f"A {table.first}", f"B {name}"), list(rows.values()))
    for text in dict.fromkeys(text for scores in table.scores.values() for text in scores.warnings):
        click.echo(f"warning: {text}")


def has_spice(not_run: Mapping[str, str]) -> bool:
    """Return False and print what to do if SPICE, which was requested, lacks its parser."""
    is_complete = not_run.get("SPICE", ENGLISH_ONLY) == ENGLISH_ONLY
    if not is_complete:
        click.echo(
            'a2: scored without SPICE; run "a2 weights fetch spice" and the same command again, '
            "or leave it out",
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
    classes = ", ".join(f"{name} {value:.3f}" for name, value in worst[:_CLASSES_SHOWN])
    click.echo(f"lowest AP50: {classes}")
    click.echo(f"on {figures['images']:,} images")
