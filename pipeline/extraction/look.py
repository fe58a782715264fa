"""A look at region features before they are used: what a file was taken for, and its boxes."""

import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_source import FeatureSource, ImageFeatures, ReadHints
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.image_ids import find_images, named_id
from a2cap.data.regions import Regions
from a2cap.extract.image import read_image
from a2cap.pipeline.extraction.convert import nothing_readable
from a2cap.pipeline.extraction.open_features import open_features

_SUMMARISED = 100
"""Images at the start of a file that are summarised."""
_COLOURS = ("#e6194b", "#ffe119", "#3cb44b", "#42d4f4", "#f032e6", "#ffffff")


def look(path: Path, hints: ReadHints) -> list[str]:
    """Return the lines of a summary: layout, images, regions, and ranges of features and boxes.

    Raises InputError if no image can be read.
    """
    source = open_features(path, hints)
    items = list(islice(source, _SUMMARISED))
    images = [item for item in items if isinstance(item, ImageFeatures)]
    skipped = [item for item in items if isinstance(item, SkippedItem)]
    if not images:
        raise nothing_readable(path, skipped)
    count = len(source)
    rest = f"; the first {len(items)} are summarised" if count > len(items) else ""
    return [
        *(f"layout: {source.title}", f"images: {count:,}{rest}"),
        *(_summary([image.regions for image in images])),
        f"first image: {images[0].image_id}",
        *(f"skipped: {item.image_id}: {item.reason}" for item in skipped),
    ]


def _summary(images: Sequence[Regions]) -> Iterator[str]:
    counts, sizes = [len(r) for r in images], [(r.width, r.height) for r in images]
    widths = [r.features.shape[1] for r in images]
    values = np.concatenate([r.features.ravel() for r in images])
    boxes = np.concatenate([r.boxes for r in images])
    sides = boxes[:, 2:] - boxes[:, :2]
    covered = sides.prod(axis=1) / np.repeat(np.prod(sizes, axis=1, dtype=float), counts)
    yield f"regions: {_range(counts)} of {_range(widths)} numbers"
    zeros = (values == 0).mean()
    yield f"features: {values.min():.4g} to {values.max():.4g}, {zeros:.1%} zeros"
    width, height = (_range(side) for side in zip(*sizes, strict=True))
    yield f"pixels: {width} x {height}"
    width, height = (_range(side) for side in sides.T)
    yield (
        f"boxes: x {_range(boxes[:, ::2])}, y {_range(boxes[:, 1::2])}; {width} wide, {height} "
        f"high, on average {covered.mean():.0%} of the image"
    )


def _range(values: Sequence[int] | NDArray[np.float32]) -> str:
    fewest, most = np.min(values), np.max(values)
    return f"{fewest:,.0f}" if fewest == most else f"{fewest:,.0f} to {most:,.0f}"


def draw_boxes(path: Path, hints: ReadHints, photograph: Path, target: Path) -> str:
    """Draw the boxes of an image on its photograph; return what was drawn.

    photograph: a file, or a folder with that of the first image. Raises InputError if the features
    are of other images.
    """
    image = _image_of(open_features(path, hints), photograph)
    file = find_images(photograph)[image.image_id] if photograph.is_dir() else photograph
    drawn = Image.fromarray(read_image(file)[..., ::-1])
    regions, canvas = image.regions, ImageDraw.Draw(drawn)
    stated, pixels = (regions.width, regions.height), drawn.size
    for number, box in enumerate(regions.boxes * np.tile(np.divide(pixels, stated), 2)):
        colour = _COLOURS[number % len(_COLOURS)]
        canvas.rectangle(box.tolist(), outline=colour, width=max(1, max(pixels) // 400))
    content = io.BytesIO()
    drawn.save(content, format="PNG" if target.suffix.lower() == ".png" else "JPEG")
    write_durably(target, content.getvalue())
    note = f"{len(regions)} boxes of {image.image_id} on {str(file)!r} in {str(target)!r}"
    if stated == pixels:
        return note
    of_features, of_photograph = (f"{width} x {height}" for width, height in (stated, pixels))
    return f"{note}; the features are of {of_features} pixels, the photograph has {of_photograph}"


def _image_of(source: FeatureSource, photograph: Path) -> ImageFeatures:
    ids = {*find_images(photograph)} if photograph.is_dir() else {named_id(photograph.name)}
    first = ""
    for item in source:
        if isinstance(item, ImageFeatures) and item.image_id in ids:
            return item
        first = first or item.image_id
    raise InputError(
        f"no features of {str(photograph)!r}: the first are of {first!r}; name its photograph"
    )
