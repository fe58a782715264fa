"""Images with labelled boxes, as a detector is trained and scored on them.

Whatever the layout on disk, boxes end inside their image and have an area; what was left out is
counted, not silently gone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.errors import InputError

WITHOUT_AREA = "boxes without an area inside the image"
"""Why boxes are left out, as `DetectionData.dropped` says it."""


@dataclass(frozen=True)
class Label:
    """One box as a file has it: x1 y1 x2 y2 in pixels, and what is in it."""

    box: tuple[float, float, float, float]
    class_id: int
    attribute_ids: tuple[int, ...] = ()
    crowd: bool = False


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """One image and the N boxes that are known in it.

    file: where its pixels lie. boxes: (N, 4) float32 x1 y1 x2 y2 in pixels, inside the image and
    with an area. class_ids: (N,) int64 from 0. attribute_ids: from 0, those of each box, none or
    many. crowd: (N,) bool, True where the box holds many things of its class: nothing to learn
    from, and a detection inside is neither right nor wrong.
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
    """Labelled images in the order of their ids, and the names of what labels count.

    classes, attributes: name of each class id and attribute id. skipped: images that are in the
    annotations but cannot be used. dropped: what else was left out, by its name -> how many.
    """

    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    images: tuple[LabelledImage, ...]
    skipped: tuple[SkippedItem, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    def only(self, image_ids: Collection[str]) -> "DetectionData":
        """The same with those images alone; `skipped` and `dropped` still count the whole.

        An id among `skipped` is passed by. Raises InputError where another has no image, or where
        no image is left.
        """
        wanted = set(image_ids)
        kept = tuple(image for image in self.images if image.image_id in wanted)
        skipped = {item.image_id for item in self.skipped}
        gone = wanted - skipped - {image.image_id for image in kept}
        if gone:
            raise InputError(
                f"no labelled image {min(gone)!r} ({len(gone):,} of {len(wanted):,} are "
                "missing); take its id out of the list, or add its labels"
            )
        if not kept:
            raise InputError(
                f"none of {len(wanted):,} images can be used; check their files and labels"
            )
        return replace(self, images=kept)


def labelled_image(
    image_id: str, file: Path, *, width: int, height: int, labels: Sequence[Label]
) -> LabelledImage:
    """The image with its boxes clipped to it; those without an area inside it are left out."""
    boxes = np.array([label.box for label in labels], dtype=np.float32).reshape(-1, 4)
    boxes = np.clip(boxes, 0, np.array([width, height, width, height], dtype=np.float32))
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
    """Raise InputError where none of `total` images is left, or too many were skipped."""
    if len(skipped) == total:
        raise InputError(
            f"no image of {str(annotations)!r} is in {str(images)!r} "
            f"({total:,} looked for); check the folder"
        )
    check_skip_limit(skipped, total, "images")
