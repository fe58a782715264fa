"""Attention correctness: the share of the attention at a word on the object that the word names.

Liu et al., "Attention Correctness in Neural Image Captioning" (AAAI 2017, arXiv:1605.09553), for
attention over regions: at each word that names a category with annotated boxes in the image, the
share of the attention on regions that overlap such a box.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances
from a2cap.data.boxes import box_iou
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.captions.coco_objects import ObjectWords, words_of

MIN_IOU = 0.5  # as in Zhou et al., "Grounded Video Description" (CVPR 2019, arXiv:1812.06587)


@dataclass(frozen=True)
class Grounding:
    """Mean share of the attention on the named objects, over `words` words; all in [0, 1]."""

    original: float
    aligned: float  # rows of both kinds are scaled to a sum of 1
    uniform: float  # of uniform attention over all regions
    words: int


def names_in(images: Iterable[Instances]) -> ObjectWords:
    """Return the words of the categories that these images have boxes of."""
    return words_of({name for boxes in images for name in boxes.names if name})


def named_regions(
    words: Sequence[str], boxes: NDArray[np.floating], instances: Instances, names: ObjectWords
) -> Iterator[tuple[range, NDArray[np.bool_]]]:
    """Yield the positions of each name of a category, and which of (R, 4) boxes overlap its boxes.

    Names without such a region are left out: no attention could be correct there.
    """
    overlapping = box_iou(boxes, instances.boxes) >= MIN_IOU
    for span, category in names.mentions(words):
        of_category = np.array([name == category for name in instances.names], dtype=bool)
        right = np.asarray(overlapping[:, of_category].any(axis=1))
        if right.any():
            yield span, right


def ground(
    words: Sequence[str],
    attention: CaptionAttention,
    boxes: NDArray[np.floating],
    instances: Instances,
    names: ObjectWords,
) -> Grounding | None:
    """Measure the grounding of one caption of L words; return None if no word counts.

    boxes: (R, 4) x1 y1 x2 y2, of the regions that were attended to.
    """
    shares = []
    for span, right in named_regions(words, boxes, instances, names):
        for position in span:
            rows = (attention.original[position], attention.aligned[position])
            shares.append([*(float(row[right].sum() / row.sum()) for row in rows), right.mean()])
    if not shares:
        return None
    original, aligned, uniform = np.mean(shares, axis=0).tolist()
    return Grounding(original, aligned, uniform, len(shares))


def mean_grounding(groundings: Iterable[Grounding]) -> Grounding | None:
    """Average over all words of several captions; return None for no captions."""
    per_caption = list(groundings)
    if not per_caption:
        return None
    words = np.array([g.words for g in per_caption], dtype=float)
    shares = np.array([[g.original, g.aligned, g.uniform] for g in per_caption])
    original, aligned, uniform = (words @ shares / words.sum()).tolist()
    return Grounding(original, aligned, uniform, int(words.sum()))


def region_names(boxes: NDArray[np.floating], instances: Instances) -> list[str]:
    """Return the category of the annotated box with the highest IoU per region, "" below 0.5."""
    if not len(instances.boxes):
        return [""] * len(boxes)
    iou = box_iou(boxes, instances.boxes)
    return [
        instances.names[box] if iou[region, box] >= MIN_IOU else ""
        for region, box in enumerate(iou.argmax(axis=1))
    ]
