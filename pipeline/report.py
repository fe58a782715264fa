"""The evaluation report: one HTML file that opens from disk and asks no network for anything.

Pictures are embedded as thumbnails with their regions drawn over them as SVG. Equal input gives
equal bytes: there is no time, no path and no host in the file. Its content security policy forbids
every request, so that a caption or a title cannot cause one either.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image, ImageOps

from a2.pipeline.metrics import METRICS

THUMBNAIL_SIDE = 320
"""Pixels of the longer side: with 36 regions each, 500 COCO pictures make a file of 15 MB."""

_JPEG_QUALITY = 78
_BINS = 32
_GOLDEN_ANGLE = 137.508
"""Degrees between the hues of neighbouring classes, which keeps any few of them apart."""


@dataclass(frozen=True)
class ReportPicture:
    """One picture with what was said about it.

    picture: its file, or None where it is not at hand; the report then says so.
    width, height: in pixels, after turning it as its EXIF data says; boxes refer to that.
    boxes: (R, 4), x1 y1 x2 y2. class_ids, region_scores: (R,), or None where there are none.
    caption: what the model says. references: what people said. scores: metric -> value.
    beams: the captions found, best first, with the scores that ranked them.
    """

    image_id: str
    picture: Path | None
    width: int
    height: int
    boxes: NDArray[np.floating]
    caption: str
    references: Sequence[str]
    scores: Mapping[str, float]
    beams: Sequence[tuple[str, float]] = ()
    class_ids: NDArray[np.integer] | None = None
    region_scores: NDArray[np.floating] | None = None


@dataclass(frozen=True)
class Report:
    """What one evaluation found.

    metrics: metric -> value over all pictures; baseline: the same of another run, called
    `baseline_name`, or None. not_run: metric -> why it has no value.
    n: pictures scored, of `total`; skipped: image id -> why it is not among them.
    provenance: what a reader needs to reproduce the figures, in the order of showing.
    class_names: name of each class id, where they are known.
    """

    title: str
    metrics: Mapping[str, float]
    baseline: Mapping[str, float] | None
    baseline_name: str
    not_run: Mapping[str, str]
    n: int
    total: int
    skipped: Mapping[str, str]
    provenance: Mapping[str, str]
    pictures: Sequence[ReportPicture]
    class_names: Sequence[str] = field(default=())


def write_report(path: Path, report: Report, *, max_pictures: int = 500) -> None:
    """Write the report as one HTML file.

    At most `max_pictures` are shown: those with the lowest and those with the highest CIDEr, half
    each. The report says how many of how many.
    """
    by_id = {picture.image_id: picture for picture in report.pictures}
    scores = {image_id: picture.scores for image_id, picture in by_id.items()}
    shown = [by_id[image_id] for image_id in worst_and_best(scores, max_pictures)]
    page = (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            metrics=_metric_rows(report),
            cards=[_card(picture, report.class_names) for picture in shown],
            histogram=_histogram([_cider(picture) for picture in report.pictures]),
        )
    )
    path.write_text(page, encoding="utf-8", newline="\n")


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _cider(picture: ReportPicture) -> float:
    return picture.scores.get("CIDEr", 0.0)


def worst_and_best(scores: Mapping[str, Mapping[str, float]], limit: int) -> list[str]:
    """At most `limit` image ids, lowest CIDEr first: half of them the lowest, half the highest.

    scores: image id -> metric -> value.
    """
    ordered = sorted(scores, key=lambda image_id: (scores[image_id].get("CIDEr", 0.0), image_id))
    if len(ordered) <= limit:
        return ordered
    best = limit // 2
    return ordered[: limit - best] + ordered[len(ordered) - best :]


@dataclass(frozen=True)
class _MetricRow:
    """One line of the table of metrics; `reason` is set where there is no value."""

    name: str
    value: float | None
    baseline: float | None
    ratio: float | None
    reason: str


def _metric_rows(report: Report) -> list[_MetricRow]:
    known = [name for name in METRICS if name in {*report.metrics, *report.not_run}]
    others = [name for name in {**report.metrics, **report.not_run} if name not in METRICS]
    return [_metric_row(name, report) for name in known + others]


def _metric_row(name: str, report: Report) -> _MetricRow:
    value = report.metrics.get(name)
    baseline = (report.baseline or {}).get(name)
    ratio = value / baseline if value is not None and baseline else None
    # Papers write BLEU-4 and ROUGE-L; the keys are those of the COCO server.
    shown = name.replace("Bleu_", "BLEU-").replace("_", "-")
    return _MetricRow(shown, value, baseline, ratio, report.not_run.get(name, ""))


@dataclass(frozen=True)
class _Bar:
    """One bar of the histogram: its place, and its height as a share of the highest."""

    index: int
    share: float
    count: int
    start: float
    end: float


@dataclass(frozen=True)
class _Histogram:
    """How many pictures have which CIDEr."""

    bars: list[_Bar]
    bins: int
    upper: float
    median: float


def _histogram(values: Sequence[float]) -> _Histogram | None:
    if not values:
        return None
    upper = max(1.0, math.ceil(max(values) * 2) / 2)
    counts, edges = np.histogram(values, bins=_BINS, range=(0.0, upper))
    highest = int(counts.max()) or 1
    bars = [
        _Bar(index, int(count) / highest, int(count), float(edges[index]), float(edges[index + 1]))
        for index, count in enumerate(counts)
        if count
    ]
    return _Histogram(bars, _BINS, upper, median(values))


@dataclass(frozen=True)
class _Region:
    """One box to draw; `number` is its place among the regions, from 1."""

    number: int
    x: float
    y: float
    width: float
    height: float
    hue: int
    strength: float
    label: str


@dataclass(frozen=True)
class _Card:
    """What the template shows of one picture."""

    picture: ReportPicture
    thumbnail: str | None
    regions: list[_Region]
    cider: float
    alt: str


def _card(picture: ReportPicture, class_names: Sequence[str]) -> _Card:
    # The best description of a picture for those who cannot see it is a person's.
    alt = picture.references[0] if picture.references else picture.caption
    return _Card(
        picture=picture,
        thumbnail=_thumbnail(picture),
        regions=_regions(picture, class_names),
        cider=_cider(picture),
        alt=alt,
    )


def _regions(picture: ReportPicture, class_names: Sequence[str]) -> list[_Region]:
    """Largest first: what is drawn later lies on top, and small boxes must be reachable."""
    regions = []
    for index, (x1, y1, x2, y2) in enumerate(np.asarray(picture.boxes, dtype=float)):
        class_id = None if picture.class_ids is None else int(picture.class_ids[index])
        hue = round(_GOLDEN_ANGLE * (index if class_id is None else class_id)) % 360
        score = None if picture.region_scores is None else float(picture.region_scores[index])
        strength = 0.8 if score is None else 0.3 + 0.7 * score
        label = _label(index + 1, len(picture.boxes), class_id, score, class_names)
        regions.append(_Region(index + 1, x1, y1, x2 - x1, y2 - y1, hue, strength, label))
    return sorted(regions, key=lambda region: -region.width * region.height)


def _label(
    number: int,
    count: int,
    class_id: int | None,
    score: float | None,
    class_names: Sequence[str],
) -> str:
    parts = [f"region {number} of {count}"]
    if class_id is not None:
        known = 0 <= class_id < len(class_names)
        parts.append(class_names[class_id] if known else f"class {class_id}")
    if score is not None:
        parts.append(f"{score:.2f}")
    return " · ".join(parts)


def _thumbnail(picture: ReportPicture) -> str | None:
    """A JPEG as a data URI, turned as its EXIF data says, or None where it cannot be read."""
    if picture.picture is None:
        return None
    try:
        with Image.open(picture.picture) as opened:
            # Before anything else touches the pixels: a JPEG is then decoded at reduced size.
            opened.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
            small = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    content = io.BytesIO()
    small.save(content, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
