"""Whether one run is better than another over the same images: a paired bootstrap (Koehn 2004).

Both runs are measured on the same 1,000 draws of the images, so that what makes an image easy or
hard for both drops out of the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json
from a2cap.pipeline.engine.artifacts import METRICS, PER_IMAGE
from a2cap.pipeline.metrics.bootstrap import SUMMED, Families, interval, resampled
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.metrics.word_groups import GroupCounts, group_values
from a2cap.pipeline.report.comparison import ComparedImage, ComparedMetric, Comparison
from a2cap.pipeline.report.summary import in_order

_OF_WORDS = "words: "
"""Begins the families that are groups of words."""

_FAMILY = {name: family for family, (names, _) in SUMMED.items() for name in names}


@dataclass(frozen=True)
class ScoredRun:
    """What an evaluation left in its folder.

    metrics: metric -> value over all images. images: image id -> metric -> value.
    texts: image id -> caption and references. provenance: how the figures came about.
    statistics: as `resampled` takes them, over the images in the order of their ids.
    """

    metrics: dict[str, float]
    images: dict[str, dict[str, float]]
    texts: dict[str, tuple[str, list[str]]]
    provenance: dict[str, str]
    statistics: dict[str, Floats]


@dataclass(frozen=True)
class Difference:
    """One metric of runs A and B: B's value minus A's, and how sure that is.

    low, high: ends of the difference's 95 % interval; better: share of the draws in which B is the
    better one.
    """

    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    better: float


def compare_runs(first: Path, second: Path) -> list[Difference]:
    """Every metric that both runs have, in the order of METRICS, then their groups of words.

    first, second: folders of evaluations. Raises InputError where a folder holds none, or they are
    not of the same images.
    """
    one, other = read_run(first), read_run(second)
    _require_same(one, other, first, second)
    shared = one.statistics.keys() & other.statistics.keys()
    families = {**SUMMED, **_group_families(sorted(shared))}
    drawn, redrawn = (
        resampled({family: run.statistics[family] for family in sorted(shared)}, families)
        for run in (one, other)
    )
    known = one.metrics.keys() & other.metrics.keys()
    names = [name for name in in_order(drawn) if name in known]
    return [
        _difference(name, one.metrics[name], other.metrics[name], redrawn[name] - drawn[name])
        for name in names
    ]


def compare_captions(first: Path, second: Path, found: Sequence[Difference]) -> Comparison:
    """What the page shows of two runs; found: their differences, of `compare_runs`.

    Raises InputError where a run has kept no captions.
    """
    runs = read_run(first), read_run(second)
    for run, folder in zip(runs, (first, second), strict=True):
        if len(run.texts) < len(run.images):
            raise InputError(f"no captions in {str(folder)!r}; evaluate again with --force")
    one, other = runs
    return Comparison(
        names=(f"A {first.resolve().name}", f"B {second.resolve().name}"),
        metrics=[
            ComparedMetric(row.metric, (row.first, row.second), (row.low, row.high), row.better)
            for row in found
        ],
        images=[
            ComparedImage(
                image_id=image_id,
                captions=(one.texts[image_id][0], other.texts[image_id][0]),
                references=one.texts[image_id][1],
                scores=(scores, other.images[image_id]),
            )
            for image_id, scores in one.images.items()
        ],
        settings=_differing(one.provenance, other.provenance),
    )


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    both = {name: (one.get(name, "–"), other.get(name, "–")) for name in {**one, **other}}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def read_run(folder: Path) -> ScoredRun:
    """The scores in a folder; InputError where it holds none, or they are damaged."""
    metrics, images = (_read(folder, name) for name in (METRICS, PER_IMAGE))
    try:
        values = {str(name): float(value) for name, value in metrics["metrics"].items()}
        found = {name: images["pictures"][name] for name in sorted(images["pictures"])}
        return ScoredRun(
            metrics={**values, **_group_figures(metrics)},
            images={image_id: dict(row["metrics"]) for image_id, row in found.items()},
            texts={
                image_id: (str(row["caption"]), list(row["references"]))
                for image_id, row in found.items()
                if "caption" in row
            },
            provenance=dict(metrics["provenance"]),
            statistics={**_statistics(values, found), **_group_counts(metrics, found)},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the scores in {str(folder)!r} are damaged ({error}); evaluate again with --force"
        ) from error


def _read(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise InputError(
            f"no scores in {str(folder)!r}: {name} is missing; name the folder of an evaluation"
        )
    return cast("dict[str, Any]", read_json(folder / name))


def _statistics(
    metrics: Mapping[str, float], images: Mapping[str, Mapping[str, Any]]
) -> dict[str, Floats]:
    if not images:
        raise ValueError("no images")
    statistics = {}
    for family in dict.fromkeys(_FAMILY.get(name, name) for name in metrics):
        rows = [
            row[family] if family in SUMMED else [row["metrics"][family]] for row in images.values()
        ]
        statistics[family] = np.array(rows, dtype=np.float64)
    return statistics


def _group_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """F1 and accuracy of each group of words, under the names that `_group_families` gives them."""
    found: dict[str, float | None] = {}
    for group, scores in metrics.get("word_groups", {}).items():
        f1, accuracy = _group_names(group)
        found |= {f1: scores["words"]["f1"], accuracy: scores["pairs"]["accuracy"]}
    return {name: float(value) for name, value in found.items() if value is not None}


def _group_counts(
    metrics: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]]
) -> dict[str, Floats]:
    """Family -> (N, 9), what was counted of a group of words in each image."""
    return {
        _OF_WORDS + group: np.array(
            [
                [row["word_groups"][group][name] for name in GroupCounts._fields]
                for row in images.values()
            ],
            dtype=np.float64,
        )
        for group in metrics.get("word_groups", {})
    }


def _group_families(families: Sequence[str]) -> Families:
    return {
        family: (_group_names(family.removeprefix(_OF_WORDS)), group_values)
        for family in families
        if family.startswith(_OF_WORDS)
    }


def _group_names(group: str) -> tuple[str, str]:
    return f"{group} F1", f"{group} accuracy"


def _require_same(one: ScoredRun, other: ScoredRun, first: Path, second: Path) -> None:
    odd = sorted(one.images.keys() ^ other.images.keys())
    if odd:
        raise InputError(
            f"{str(first)!r} has {len(one.images):,} images and {str(second)!r} "
            f"{len(other.images):,}, {len(odd):,} are in one alone, such as {odd[0]!r}; "
            "compare runs over the same images"
        )
    if not one.statistics.keys() & other.statistics.keys():
        raise InputError(
            f"no metric is in both {str(first)!r} and {str(second)!r}; evaluate them alike"
        )


def _difference(name: str, first: float, second: float, drawn: Floats) -> Difference:
    drawn = drawn[np.isfinite(drawn)]  # a draw may lack all images that have words of a group
    low, high = interval(drawn)
    better = float(np.mean(drawn > 0))
    return Difference(name, first, second, second - first, low, high, better)
