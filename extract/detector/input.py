"""Scaling of an image to the detector's input, by caffe's or detectron2's rule."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from a2cap.data.errors import InputError
from a2cap.extract.detector.conventions import DetectorMeta

SMALLEST_SIDE = 3
"""Pixels of the thinnest scaled image that the stem's 7x7 and 3x3 windows can pass."""

BATCH = 8
"""Images of one size that pass the network together. On CPU the gain ends here, and regions of some
3 given boxes per image just fill the heads."""

BUCKET = 32
"""Images pass the backbone together if their scaled sides, rounded up to multiples of so many
pixels, agree."""

Pixels = NDArray[np.uint8]  # (H, W, 3), channels blue, green, red
Blob = NDArray[np.float32]
Boxes = NDArray[np.float32]


@dataclass(frozen=True)
class ScaledSize:
    """Size of the detector's input in pixels, and the factor that made it from the original.

    factors: of x and y, which differ from `scale` and each other where the size is rounded.
    """

    height: int
    width: int
    scale: float
    factors: tuple[float, float]

    def unscaled(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return boxes, (N, 4) in scaled pixels, in original pixels."""
        return np.divide(boxes, np.tile(np.array(self.factors, np.float32), 2), dtype=np.float32)


def check_boxes(boxes: Boxes, *, height: int, width: int) -> None:
    """Raise InputError for no boxes, and for boxes that are unordered or outside the image.

    boxes: (R, 4) x1 y1 x2 y2 in pixels of an image of this size.
    """
    if boxes.ndim != 2 or boxes.shape[1:] != (4,) or len(boxes) == 0:
        raise InputError(
            f"boxes of an image have shape {boxes.shape}, not (R, 4) with R of at least 1; "
            "give every image a box, or leave it out"
        )
    x1, y1, x2, y2 = boxes.T
    ordered = np.isfinite(boxes).all(axis=1) & (x1 <= x2) & (y1 <= y2)
    inside = (x1 < width) & (y1 < height) & (x2 >= 0) & (y2 >= 0)
    wrong = np.flatnonzero(~(ordered & inside))
    if len(wrong):
        raise InputError(
            f"box {wrong[0]} is not in the image of {width} x {height} pixels: "
            f"{boxes[wrong[0]].tolist()}; boxes are x1 y1 x2 y2 with x1 <= x2 and y1 <= y2"
        )


def batches_of_one_size(
    images: Mapping[int, Pixels | Blob], *, most: int = BATCH, multiple: int = 1
) -> Iterator[list[int]]:
    """Yield the keys of images of one size together, at most `most` at a time.

    multiple: of which sizes are compared, rounded up.
    """
    by_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, image in images.items():
        by_size[tuple(-(-side // multiple) for side in image.shape)].append(index)
    for members in by_size.values():
        for start in range(0, len(members), most):
            yield members[start : start + most]


def scaled_batch(
    images: Sequence[Pixels], *, scale: tuple[int, int], meta: DetectorMeta
) -> tuple[list[Blob], list[ScaledSize]]:
    """Return the detector's input of each image and its size, by the conventions of the weights.

    images: (H, W, 3) uint8 BGR each, of any sizes; scale: shorter side and limit of the longer
    one in pixels. Returns (3, H', W') float32 each, BGR minus the mean. Raises InputError where an
    image is too thin.
    """
    blobs, sizes = [], []
    for image in images:
        height, width = image.shape[:2]
        factor = image_scale(height=height, width=width, min_side=scale[0], max_side=scale[1])
        if meta.resize == "exact factor":
            blob, factors = image_blob(image, scale=factor, mean=meta.mean), (factor, factor)
        else:
            size = rounded_size(height=height, width=width, min_side=scale[0], max_side=scale[1])
            blob = rounded_blob(image, size=size, mean=meta.mean)
            factors = size[1] / width, size[0] / height
        blobs.append(blob)
        sizes.append(ScaledSize(blob.shape[1], blob.shape[2], factor, factors))
    return blobs, sizes


def padded(blobs: Sequence[Blob]) -> Blob:
    """Return images as one array, (B, 3, H, W), with zeros below and to the right of smaller ones.

    blobs: (3, H', W') each.
    """
    height, width = (max(sides) for sides in zip(*(blob.shape[1:] for blob in blobs), strict=True))
    together = np.zeros((len(blobs), 3, height, width), np.float32)
    for row, blob in zip(together, blobs, strict=True):
        row[:, : blob.shape[1], : blob.shape[2]] = blob
    return together


def image_scale(*, height: int, width: int, min_side: int, max_side: int) -> float:
    """Return the factor that scales the shorter side to min_side, or else the longer to max_side.

    Sizes in pixels. Raises InputError for an image so thin that nothing of it would be left.
    """
    short, long = min(height, width), max(height, width)
    scale = min_side / short
    if round(scale * long) > max_side:
        scale = max_side / long
    if round(scale * short) < SMALLEST_SIDE:
        raise InputError(
            f"image is too thin: {width} x {height} pixels would scale to "
            f"{round(scale * width)} x {round(scale * height)}; leave it out"
        )
    return scale


def image_blob(image: Pixels, *, scale: float, mean: tuple[float, float, float]) -> Blob:
    """Subtract the mean, then scale (bottom-up-attention @514e561, `_get_image_blob`).

    image: (H, W, 3) uint8 BGR; mean: per channel, BGR.
    Returns (3, rint(H * scale), rint(W * scale)) float32.
    """
    centred = image.astype(np.float32)
    centred -= np.array(mean)
    # The exact factor, as caffe does: resizing to the rounded size instead shifts pixels by up to
    # half a cell and changes grey levels by 2 on average, 55 at most.
    resized = cv2.resize(
        centred, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR
    )  # (H, W, 3) -> (H', W', 3)
    return cast(Blob, np.ascontiguousarray(resized.transpose(2, 0, 1)))


def rounded_size(*, height: int, width: int, min_side: int, max_side: int) -> tuple[int, int]:
    """Return height and width after scaling by detectron2's rule, which rounds them.

    Sizes in pixels. Raises InputError as `image_scale` does.
    """
    image_scale(height=height, width=width, min_side=min_side, max_side=max_side)
    scale = min(min_side / min(height, width), max_side / max(height, width))
    return int(height * scale + 0.5), int(width * scale + 0.5)


def rounded_blob(image: Pixels, *, size: tuple[int, int], mean: tuple[float, float, float]) -> Blob:
    """Scale bytes to a size, then subtract the mean (detectron2 @02b5c4e, `ResizeShortestEdge`).

    image: (H, W, 3) uint8 BGR; size: H', W'; mean: per channel, BGR.
    Returns (3, H', W') float32.
    """
    # Pillow, unlike OpenCV, smooths where it shrinks.
    resized = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
    centred = np.asarray(resized).astype(np.float32) - np.array(mean, np.float32)
    return np.ascontiguousarray(centred.transpose(2, 0, 1))  # (H', W', 3) -> (3, H', W')
