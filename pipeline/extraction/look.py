"""A look at region features before they are used: what a file was taken for, and its boxes."""

import io
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_source import FeatureSource, ImageFeatures, Reading
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


def look(path: Path, reading: Reading) -> list[str]:
    """Return the lines of a summary: layout, images, regions, and ranges of features and boxes.

    Raises InputError if no image can be read.
    """
    source = open_features(path, reading)
    items = list(islice(source, _SUMMARISED))
    images = [item for item in items if isinstance(item, ImageFeatures)]
    skipped = [item for item in items if isinstance(item, SkippedItem)]
    if not images:
        raise nothing_readable(path, skipped)
    count = len(source)
    lines = [f"layout: {source.title}", f"images: {count:,}"]
    if count > len(items):
        lines[1] += f"; the first {len(items)} are summarised"
    lines += _summary([image.regions for image in images])
    lines.append(f"first image: {images[0].image_id}")
    lines += [f"skipped: {item.image_id}: {item.reason}" for item in skipped]
    return lines


def _summary(images: Sequence[Regions]) -> list[str]:
    features = [one.features for one in images]
    lowest, highest = min(map(np.min, features)), max(map(np.max, features))
    zeros = sum(np.sum(one == 0) for one in features) / sum(one.size for one in features)
    boxes = np.concatenate([one.boxes for one in images])
    areas = [float(one.width * one.height) for one in images]
    sides = boxes[:, 2:] - boxes[:, :2]
    covered = sides.prod(axis=1) / np.repeat(areas, list(map(len, images)))
    width, height = (_range(side) for side in sides.T)
    x, y = _range(boxes[:, ::2]), _range(boxes[:, 1::2])
    return [
        f"regions: {_range(map(len, images))} of {_range(one.shape[1] for one in features)} "
        "numbers",
        f"features: {lowest:.4g} to {highest:.4g}, {zeros:.1%} zeros",
        f"pixels: {_range(one.width for one in images)} x {_range(one.height for one in images)}",
        f"boxes: x {x}, y {y}; {width} wide, {height} high, on average {covered.mean():.0%} of "
        "the image",
    ]


def _range(values: Iterable[int] | NDArray[np.float32]) -> str:
    every = np.array(values if isinstance(values, np.ndarray) else list(values))
    fewest, most = every.min(), every.max()
    return f"{fewest:,.0f}" if fewest == most else f"{fewest:,.0f} to {most:,.0f}"


def draw_boxes(path: Path, reading: Reading, photograph: Path, target: Path) -> str:
    """Draw the boxes of an image on its photograph; return what was drawn.

    photograph: a file, or a folder with that of the first image. Raises InputError if the features
    are of other images.
    """
    image = _image_of(open_features(path, reading), photograph)
    file = find_images(photograph)[image.image_id] if photograph.is_dir() else photograph
    drawn = Image.fromarray(read_image(file)[..., ::-1])
    regions, scale = image.regions, np.array([*drawn.size, *drawn.size], np.float32)
    scale /= np.array([regions.width, regions.height] * 2, np.float32)
    canvas = ImageDraw.Draw(drawn)
    for number, box in enumerate(regions.boxes * scale):
        colour = _COLOURS[number % len(_COLOURS)]
        canvas.rectangle(box.tolist(), outline=colour, width=max(1, max(drawn.size) // 400))
    content = io.BytesIO()
    drawn.save(content, format="PNG" if target.suffix.lower() == ".png" else "JPEG")
    write_durably(target, content.getvalue())
    stated, photo = (regions.width, regions.height), drawn.size
    note = f"{len(regions)} boxes of {image.image_id} on {str(file)!r} in {str(target)!r}"
    if stated != photo:
        note += (
            f"; the features are of {stated[0]} x {stated[1]} pixels, the photograph has "
            f"{photo[0]} x {photo[1]}"
        )
    return note


def _image_of(source: FeatureSource, photograph: Path) -> ImageFeatures:
    wanted = {*find_images(photograph)} if photograph.is_dir() else {named_id(photograph.name)}
    first = ""
    for item in source:
        if isinstance(item, ImageFeatures) and item.image_id in wanted:
            return item
        first = first or item.image_id
    raise InputError(
        f"no features of {str(photograph)!r}: the first are of {first!r}; name its photograph"
    )
