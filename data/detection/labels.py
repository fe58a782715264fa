"""Labelled images for training and evaluating detectors.

Boxes are clipped to their image and have an area; what is left out is counted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit

WITHOUT_AREA = "boxes without an area inside the image"
"""A key of `DetectionData.dropped`."""


@dataclass(frozen=True)
class Label:
    """One box of a file, x1 y1 x2 y2 in pixels, and the ids of its object."""

    box: tuple[float, float, float, float]
    class_id: int
    attribute_ids: tuple[int, ...] = ()
    crowd: bool = False


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """One image and its N labelled boxes.

    file: image file.
    boxes: (N, 4) float32 x1 y1 x2 y2 in pixels, inside the image and with an area.
    class_ids: (N,) int64 from 0.
    attribute_ids: of each box, any number, from 0.
    crowd: (N,) bool, True if the box contains many objects of its class: it is not trained on, and
        a detection inside it is neither right nor wrong.
    """

    image_id: str
    file: Path
    width: int
    height: int
    boxes: NDArray[np.float32]
    class_ids: NDArray[np.int64]
    attribute_ids: tuple[tuple[int, ...], ...]
    crowd: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DetectionData:
    """Labelled images ordered by id, and the names of classes and attributes.

    classes, attributes: name of each id.
    skipped: annotated images that cannot be used.
    dropped: number of other left-out labels by reason.
    """

    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    images: tuple[LabelledImage, ...]
    skipped: tuple[SkippedItem, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    def subset(self, image_ids: Collection[str]) -> "DetectionData":
        """Return the data of these images; `skipped` and `dropped` still count all images.

        Ignores ids of skipped images, and as many others as skipped entries name no image. Raises
        InputError if another id has no image or no image is left.
        """
        ids = set(image_ids)
        kept = tuple(image for image in self.images if image.image_id in ids)
        skipped = {item.image_id for item in self.skipped}
        missing = ids - skipped - {image.image_id for image in kept}
        if len(missing) > sum(map(names_no_image, skipped)):
            raise InputError(
                f"no labelled image {min(missing)!r} ({len(missing):,} of {len(ids):,} are "
                "missing); remove its id from the list, or add its labels"
            )
        if not kept:
            raise InputError(
                f"none of {len(ids):,} images can be used; check their files and labels"
            )
        return replace(self, images=kept)


def names_no_image(skipped: str) -> bool:
    """Return whether the id of a skipped item is the position of an entry without a usable name."""
    return skipped.startswith("images[")


def labelled_image(
    image_id: str, file: Path, *, width: int, height: int, labels: Sequence[Label]
) -> LabelledImage:
    """Return the image with its boxes clipped to it, without boxes that have no area inside."""
    boxes = np.array([label.box for label in labels], dtype=np.float32).reshape(-1, 4)
    boxes = np.clip(boxes, 0, np.array([width, height, width, height], dtype=np.float32))
    # after clipping: a box outside the image has no area inside it
    has_area: NDArray[np.bool_] = np.all(boxes[:, 2:] > boxes[:, :2], axis=1)
    kept = [label for label, keep in zip(labels, has_area.tolist(), strict=True) if keep]
    return LabelledImage(
        image_id=image_id,
        file=file,
        width=width,
        height=height,
        boxes=boxes[has_area],
        class_ids=np.array([label.class_id for label in kept], dtype=np.int64),
        attribute_ids=tuple(label.attribute_ids for label in kept),
        crowd=np.array([label.crowd for label in kept], dtype=np.bool_),
    )


def check_usable(
    skipped: Sequence[SkippedItem], *, total: int, annotations: Path, images: Path
) -> None:
    """Raise InputError if none of `total` images is left or too many were skipped."""
    if len(skipped) == total:
        raise InputError(
            f"no image of {str(annotations)!r} is in {str(images)!r} "
            f"({total:,} searched); check the folder"
        )
    check_skip_limit(skipped, total, "images")
