"""The comparison of two runs as a page: which captions were fixed, broken or changed by the second.

Both runs captioned the same images. A caption is fixed where it differs and its CIDEr is at least
LEAST_CHANGE higher, broken where it is as much lower, changed where it differs otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.pipeline.report.html import write_page
from a2cap.pipeline.report.summary import in_order, shown_name

LEAST_CHANGE = 0.1
"""CIDEr of one image; differences of less are often one function word."""

KINDS = ("fixed", "broken", "changed", "same")


@dataclass(frozen=True)
class ComparedImage:
    """What two runs said of one image; scores: metric -> value, of each run."""

    image_id: str
    captions: tuple[str, str]
    references: Sequence[str]
    scores: tuple[Mapping[str, float], Mapping[str, float]]

    @property
    def kind(self) -> str:
        """One of KINDS."""
        if self.captions[0] == self.captions[1]:
            return "same"
        before, after = (scores.get("CIDEr", 0.0) for scores in self.scores)
        # Rounded: 0.5 - 0.4 is less than 0.1 in floating point.
        difference = round(after - before, 9)
        if difference >= LEAST_CHANGE:
            return "fixed"
        return "broken" if difference <= -LEAST_CHANGE else "changed"


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of both runs.

    interval: 95 % of the difference; better: share of the draws in which the second run is the
    better one; None where that is not known.
    """

    name: str
    values: tuple[float, float]
    interval: tuple[float, float] | None = None
    better: float | None = None

    @property
    def shown_name(self) -> str:
        """As papers write it."""
        return shown_name(self.name)

    @property
    def difference(self) -> float:
        """How much higher the second run's value is."""
        return self.values[1] - self.values[0]


@dataclass(frozen=True)
class Comparison:
    """Two runs over the same images.

    names: what the page calls them. settings: what they differ in, name -> value in each run.
    """

    names: tuple[str, str]
    metrics: Sequence[ComparedMetric]
    images: Sequence[ComparedImage]
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Writes the page as one HTML file; InputError where it cannot be written there."""
    try:
        _write(path, comparison)
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r} ({error.strerror}); name another place"
        ) from error


def _write(path: Path, comparison: Comparison) -> None:
    scored = in_order(name for image in comparison.images for one in image.scores for name in one)
    kinds = [image.kind for image in comparison.images]
    write_page(
        path,
        "comparison.html",
        comparison=comparison,
        least_change=LEAST_CHANGE,
        kinds={kind: kinds.count(kind) for kind in KINDS},
        orders=[shown_name(name) for name in scored],
        data={
            "metrics": [shown_name(name) for name in scored],
            "names": comparison.names,
            "images": [_as_json(image, scored) for image in comparison.images],
        },
    )


def _as_json(image: ComparedImage, metrics: Sequence[str]) -> dict[str, object]:
    """What the script of the page reads; scores are in the order of `metrics`, of each run."""
    return {
        "id": image.image_id,
        "kind": image.kind,
        "captions": image.captions,
        "references": list(image.references),
        "scores": [
            [None if name not in one else round(one[name], 4) for name in metrics]
            for one in image.scores
        ],
    }
