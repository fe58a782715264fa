"""Comparison of two runs over the same images by a paired bootstrap (Koehn 2004).

Both runs are scored on the same 1,000 resamples of the images, which cancels the variance of
images that are easy or hard for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.files.paths import did_you_mean
from a2cap.data.files.sealed_folder import read_output
from a2cap.pipeline.engine.artifact_names import METRICS, PER_IMAGE
from a2cap.pipeline.evaluation.metrics_file import image_scores
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.bootstrap import SUMMED, Families, interval, resample
from a2cap.pipeline.metrics.metric_table import family_of, in_order, metric_of
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.metrics.word_groups import GroupCounts, WordScore, f1_values
from a2cap.pipeline.report.comparison_page import Comparison, Difference, ImageComparison

_F1 = " F1"
"""Last part of the names of families that are groups of words, which are their metrics too."""

Rows = Mapping[str, Mapping[str, Any]]
"""Image id -> its entry in per_image.json."""


@dataclass(frozen=True)
class ScoredRun:
    """Scores in the folder of an evaluation.

    metrics: metric -> value over all images.
    images: image id -> metric -> value.
    captions, references: by image id.
    provenance: name -> value.
    statistics: as `resample` takes them, over the images in the order of their ids.
    """

    metrics: dict[str, float]
    images: dict[str, dict[str, float]]
    captions: dict[str, str]
    references: dict[str, list[str]]
    provenance: dict[str, str]
    statistics: dict[str, Floats]


def compare_runs(
    first: Path, second: Path, *, captions: bool = False, names: tuple[str, str] | None = None
) -> Comparison:
    """Return the differences in every metric of both runs and in their captions.

    first, second: folders of evaluations.
    names: their titles, by default those of the folders.
    Metrics are in the order of the table, groups last.
    Raises InputError if a folder contains no evaluation, or none with captions if `captions` is set
    (those of earlier versions have none), or the runs have different images or no common metric.
    """
    run_a, run_b = read_scored_run(first), read_scored_run(second)
    _require_same_images(run_a, run_b, first, second)
    for run, folder in ((run_a, first), (run_b, second)):
        if captions and len(run.captions) < len(run.images):
            raise InputError(f"no captions in {str(folder)!r}; evaluate again with --force")
    shared = sorted(run_a.statistics.keys() & run_b.statistics.keys())
    if not shared:
        raise InputError(
            f"no metric is in both {str(first)!r} and {str(second)!r}; "
            "evaluate both with the same metrics"
        )
    groups = [family for family in shared if family.endswith(_F1)]
    families: Families = {**SUMMED, **{group: ((group,), f1_values) for group in groups}}
    # Both runs get the same resamples, which depend only on the number of images.
    drawn, redrawn = (
        resample({family: run.statistics[family] for family in shared}, families)
        for run in (run_a, run_b)
    )
    settings = {
        name: (run_a.provenance.get(name, "–"), run_b.provenance.get(name, "–"))
        for name in {**run_a.provenance, **run_b.provenance}
    }
    titles = names or (first.resolve().name, second.resolve().name)
    return Comparison(
        names=(f"A {titles[0]}", f"B {titles[1]}"),
        metrics=_differences(run_a.metrics, run_b.metrics, drawn, redrawn),
        images=[
            ImageComparison(
                image_id,
                captions=(run_a.captions[image_id], run_b.captions[image_id]),
                references=run_a.references[image_id],
                scores=(scores, run_b.images[image_id]),
            )
            for image_id, scores in run_a.images.items()
            if image_id in run_a.captions.keys() & run_b.captions.keys()
        ],
        settings={name: pair for name, pair in settings.items() if pair[0] != pair[1]},
    )


def compare_scores(first: Scores, second: Scores) -> list[Difference]:
    """Return the differences in every metric that both have; raise InputError for other images."""
    if first.per_image.keys() != second.per_image.keys():
        raise InputError(
            "the captions to compare are of different images; score both with the same references"
        )
    drawn, redrawn = (
        resample(
            _statistics(side.metrics, {i: image_scores(side, i) for i in sorted(first.per_image)})
        )
        for side in (first, second)
    )
    return _differences(first.metrics, second.metrics, drawn, redrawn)


def read_scored_run(folder: Path) -> ScoredRun:
    """Return the scores in a folder; raise InputError if they are missing or damaged."""
    metrics, images = (_read(folder, name) for name in (METRICS, PER_IMAGE))
    try:
        values = {str(name): float(value) for name, value in metrics["metrics"].items()}
        rows: Rows = {name: images["images"][name] for name in sorted(images["images"])}
        groups = metrics.get("word_groups", {})
        return ScoredRun(
            metrics={**values, **_group_metrics(groups)},
            images={image_id: dict(row["metrics"]) for image_id, row in rows.items()},
            captions={i: str(row["caption"]) for i, row in rows.items() if "caption" in row},
            references={i: list(row.get("references", ())) for i, row in rows.items()},
            provenance=dict(metrics["provenance"]),
            statistics={**_statistics(values, rows), **_group_counts(groups, rows)},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the scores in {str(folder)!r} are damaged ({error}); evaluate again with --force"
        ) from error


def _read(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise InputError(
            f"no scores in {str(folder)!r}: {name} is missing; name the folder of an evaluation"
            f"{did_you_mean(folder)}"
        )
    return cast("dict[str, Any]", read_output(folder, name))


def _statistics(metrics: Mapping[str, float], rows: Rows) -> dict[str, Floats]:
    """Return family -> (N, k) statistics of the N images."""
    if not rows:
        raise ValueError("no images")
    statistics = {}
    # The four BLEU metrics share the counts of one family.
    for family in {f.name: f for f in map(family_of, metrics) if not f.is_of_set}:
        numbers = [
            row[family] if family in SUMMED else [row["metrics"][family]] for row in rows.values()
        ]
        statistics[family] = np.array(numbers, dtype=np.float64)
    return statistics


def _group_counts(groups: Mapping[str, Any], rows: Rows) -> dict[str, Floats]:
    """Return family -> (N, 5) counts of a group of words in each image."""
    return {
        group + _F1: np.array(
            [GroupCounts(**row["word_groups"][group]) for row in rows.values()],
            dtype=np.float64,
        )
        for group in groups
    }


def _group_metrics(groups: Mapping[str, Any]) -> dict[str, float]:
    """Return F1 of each group of words that has it."""
    scores = {group + _F1: WordScore(**content).f1 for group, content in groups.items()}
    return {name: float(value) for name, value in scores.items() if value is not None}


def _require_same_images(run_a: ScoredRun, run_b: ScoredRun, first: Path, second: Path) -> None:
    odd = sorted(run_a.images.keys() ^ run_b.images.keys())
    if odd:
        raise InputError(
            f"{str(first)!r} has {len(run_a.images):,} images and {str(second)!r} "
            f"{len(run_b.images):,}, {len(odd):,} are in only one of them, such as {odd[0]!r}; "
            "compare runs over the same images"
        )


def _differences(
    first: Mapping[str, float],
    second: Mapping[str, float],
    drawn: Mapping[str, Floats],
    redrawn: Mapping[str, Floats],
) -> list[Difference]:
    """Return the differences in every metric of both.

    drawn, redrawn: values of `first` and `second` on resamples.
    """
    rows = []
    # a kind of statement that one has not made has no share of true ones
    for name in in_order(name for name in first if name in second):
        values = (name, first[name], second[name], second[name] - first[name])
        if family_of(name).is_of_set:
            rows.append(Difference(*values, None, None, None))
        elif name in drawn and name in redrawn:
            resampled = redrawn[name] - drawn[name]
            resampled = resampled[np.isfinite(resampled)]  # one may lack all words of a group
            low, high = interval(resampled)
            # Ties are not better: two equal runs have 0 %.
            is_better = resampled < 0 if metric_of(name).lower_is_better else resampled > 0
            rows.append(Difference(*values, low, high, float(np.mean(is_better))))
    return rows
