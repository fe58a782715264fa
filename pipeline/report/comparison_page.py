"""Comparison page of two runs: captions that the second run fixed, broke or changed.

Both runs captioned the same images. A caption is fixed if it differs and its CIDEr is higher by at
least MIN_CHANGE, broken if it is lower by as much, and changed if it differs otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from a2cap.data.errors import InputError
from a2cap.pipeline.metrics.metric_table import MAIN, cited, in_order, main_of, shown_name
from a2cap.pipeline.report.curves import panels
from a2cap.pipeline.report.html import read_cards, write_page
from a2cap.pipeline.report.image_card import plain_cards
from a2cap.pipeline.training.learning_curve import LearningCurve

MIN_CHANGE = 0.1
"""CIDEr of one image; smaller differences are often one function word."""

MAX_IMAGES = 500
"""Embedded images: 8 MB."""

_TRACES = ("digest of ", "version of ", "sha256 of ")
_IN_TITLE = 2

CHANGES = ("fixed", "broken", "changed", "same")


@dataclass(frozen=True)
class ImageComparison:
    """Captions of one image by both runs; scores: metric -> value, of each run."""

    image_id: str
    captions: tuple[str, str]
    references: Sequence[str]
    scores: tuple[Mapping[str, float], Mapping[str, float]]

    @property
    def change(self) -> str:
        """One of CHANGES."""
        if self.captions[0] == self.captions[1]:
            return "same"
        if self.difference >= MIN_CHANGE:
            return "fixed"
        return "broken" if self.difference <= -MIN_CHANGE else "changed"

    @property
    def difference(self) -> float:
        """CIDEr of the second run minus CIDEr of the first."""
        before, after = (scores.get(MAIN, 0.0) for scores in self.scores)
        # Rounded: 0.5 - 0.4 is less than 0.1 in floating point.
        return round(after - before, 9)


@dataclass(frozen=True)
class Difference:
    """One metric of runs A and B, and B's value minus A's.

    low, high: ends of the difference's 95 % interval. better: share of the resamples in which B
    scores higher. All three are None for a metric of a set of captions.
    """

    HEADS: ClassVar = ("metric", "A", "B", "B − A", "95 %", "B is better in")

    metric: str
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    better: float | None

    @property
    def cells(self) -> list[str]:
        """Cells of its row in a table under HEADS, the name of the metric as in papers first."""
        return [
            shown_name(self.metric),
            f"{self.first:.4f}",
            f"{self.second:.4f}",
            f"{self.difference:+.4f}",
            "–" if self.low is None else f"{self.low:+.4f} to {self.high:+.4f}",
            "–" if self.better is None else f"{100 * self.better:.1f} %",
        ]


@dataclass(frozen=True)
class Comparison:
    """Two runs over the same images.

    names: titles of the runs. settings: name -> value in each run, if they differ. curves: of the
    trainings, None if one has none.
    """

    names: tuple[str, str]
    metrics: Sequence[Difference]
    images: Sequence[ImageComparison]
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    curves: tuple[LearningCurve | None, LearningCurve | None] = (None, None)

    @property
    def title(self) -> str:
        """The first settings that differ, or the names of the runs if none does."""
        # Those of a section, such as model.alignment.fusion, come first; digests always differ.
        shown = [name for name in self.settings if not name.startswith(_TRACES)]
        shown.sort(key=lambda name: "." not in name)
        parts = [
            f"{name.rpartition('.')[2].replace('_', ' ')} {' → '.join(self.settings[name])}"
            for name in shown[:_IN_TITLE]
        ]
        more = [f"{len(shown) - _IN_TITLE} more"] if len(shown) > _IN_TITLE else []
        return ", ".join([*parts, *more]) or " → ".join(self.names)


def write_comparison(
    path: Path,
    comparison: Comparison,
    files: Mapping[str, Path] = MappingProxyType({}),
    reports: tuple[Path, Path] | None = None,
) -> None:
    """Write the page as one HTML file; raise InputError if `path` cannot be written.

    reports: of both evaluations; images that one of them embeds are shown with its attention.
    files: image id -> image, for the others.
    Images whose captions differ most in CIDEr are embedded.
    """
    # From the images: a run may have metrics that the other lacks.
    metrics = in_order(name for image in comparison.images for run in image.scores for name in run)
    differing = [image for image in comparison.images if image.change != "same"]
    differing.sort(key=lambda image: (-abs(image.difference), image.image_id))
    embedded = [dict(read_cards(report)) for report in reports or ()]
    changes = [image.change for image in comparison.images]
    in_papers = cited(row.metric for row in comparison.metrics)
    try:
        write_page(
            path,
            "comparison.html",
            comparison=comparison,
            min_change=MIN_CHANGE,
            curves=panels(comparison.curves, ("A", "B")),
            heads=Difference.HEADS,
            cited=[row.cells for row in comparison.metrics if row.metric in in_papers],
            others=[row.cells for row in comparison.metrics if row.metric not in in_papers],
            settings={name: " → ".join(pair) for name, pair in comparison.settings.items()},
            cards=_sides([image.image_id for image in differing[:MAX_IMAGES]], embedded, files),
            changes={change: changes.count(change) for change in CHANGES},
            orders=[shown_name(name) for name in metrics],
            main=metrics.index(main_of(metrics)) if metrics else 0,
            data={
                "metrics": [shown_name(name) for name in metrics],
                "names": comparison.names,
                "images": [_as_json(image, metrics) for image in comparison.images],
            },
        )
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r} ({error.strerror}); name another path"
        ) from error


def _sides(
    image_ids: Sequence[str], reports: Sequence[Mapping[str, object]], files: Mapping[str, Path]
) -> Iterator[tuple[str, list[object]]]:
    """Yield the cards of both runs as JSON for each image that has one, None for a missing one."""
    for image_id in image_ids:
        cards = [report.get(image_id) for report in reports]
        if not any(cards):
            cards = [card.as_json("") for _, card in plain_cards([image_id], files)]
        if cards:
            yield image_id, cards


def _as_json(image: ImageComparison, metrics: Sequence[str]) -> dict[str, object]:
    """Return an image for the page's script, with scores in the order of `metrics`."""
    return {
        "id": image.image_id,
        "change": image.change,
        "captions": image.captions,
        "references": list(image.references),
        "scores": [
            [None if name not in scores else round(scores[name], 4) for name in metrics]
            for scores in image.scores
        ],
    }
