"""How much of the attention at a word lies on the thing that the word names, where boxes are known.

Attention correctness (Liu et al., "Attention Correctness in Neural Image Captioning", AAAI 2017,
arXiv:1605.09553) for attention over regions: at each word that names a category of which the
image has annotated boxes, the share of the attention's mass on regions that overlap such a box,
where overlapping is an IoU of at least 0.5 as in Zhou et al., "Grounded Video Description" (CVPR
2019, arXiv:1812.06587). What attention that is spread evenly over all regions would have stands
beside it, because that depends on the regions alone. Words count where at least one region overlaps
a box: elsewhere no attention could be right.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances
from a2cap.data.boxes import box_iou
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.pipeline.metrics.word_pairs import plurals

LEAST_OVERLAP = 0.5

_OTHER_NAMES = {
    "person": (
        *("people", "man", "men", "woman", "women", "boy", "girl", "child", "children", "kid"),
        *("guy", "lady", "ladies", "player", "skier", "surfer", "rider", "baby", "babies"),
    ),
    "airplane": ("plane", "jet", "aeroplane"),
    "bicycle": ("bike",),
    "cell phone": ("phone", "cellphone"),
    "couch": ("sofa",),
    "cow": ("cattle",),
    "dining table": ("table",),
    "donut": ("doughnut",),
    "motorcycle": ("motorbike",),
    "mouse": ("mice",),
    "potted plant": ("plant",),
    "refrigerator": ("fridge",),
    "tv": ("television",),
}
"""What people call COCO's categories besides their names and regular plurals."""


@dataclass(frozen=True)
class Grounding:
    """Mean share of the attention on what words name, over `words` words.

    original, aligned: of the two kinds of attention, each row scaled to a sum of 1; uniform: of
    attention that is the same for all regions. All in [0, 1].
    """

    original: float
    aligned: float
    uniform: float
    words: int


class Names:
    """The words, plurals and other names included, by which captions name categories."""

    def __init__(self, categories: Sequence[str]) -> None:
        self._categories: dict[tuple[str, ...], str] = {}
        for category in categories:
            for name in (category, *_OTHER_NAMES.get(category, ())):
                *first, last = name.split()
                for form in (last, *plurals(last)):
                    self._categories.setdefault((*first, form), category)
        # A category's own name is stronger than another one's other name or plural.
        self._categories |= {tuple(name.split()): name for name in categories}
        self._longest = max(map(len, self._categories), default=0)

    def find(self, words: Sequence[str]) -> list[tuple[range, str]]:
        """Places of the words that name a category, and which; the longest name counts.

        A "hot dog" is no dog.
        """
        found: list[tuple[range, str]] = []
        place = 0
        while place < len(words):
            name = self._at(words, place)
            if name:
                found.append((range(place, place + len(name)), self._categories[name]))
            place += len(name) or 1
        return found

    def _at(self, words: Sequence[str], place: int) -> tuple[str, ...]:
        for length in range(self._longest, 0, -1):
            name = tuple(words[place : place + length])
            if name in self._categories:
                return name
        return ()


def category_names(images: Mapping[str, Instances]) -> Names:
    """How captions name the categories of which these images have boxes."""
    return Names(sorted({name for found in images.values() for name in found.names if name}))


def ground(
    words: Sequence[str],
    attention: CaptionAttention,
    boxes: NDArray[np.floating],
    instances: Instances,
    names: Names,
) -> Grounding | None:
    """The grounding of one caption, or None where none of its words counts.

    words: L of them; boxes: (R, 4) x1 y1 x2 y2, of the regions that were attended.
    """
    overlapping = box_iou(boxes, instances.boxes) >= LEAST_OVERLAP
    shares = []
    for span, category in names.find(words):
        of_category = np.array([name == category for name in instances.names], dtype=bool)
        right = overlapping[:, of_category].any(axis=1)
        if not right.any():
            continue
        for place in span:
            rows = (attention.original[place], attention.aligned[place])
            shares.append([*(float(row[right].sum() / row.sum()) for row in rows), right.mean()])
    if not shares:
        return None
    original, aligned, uniform = np.mean(shares, axis=0).tolist()
    return Grounding(original, aligned, uniform, len(shares))


def mean_grounding(found: Iterable[Grounding]) -> Grounding | None:
    """Over all words of several captions; None where there is none."""
    every = list(found)
    if not every:
        return None
    words = np.array([one.words for one in every], dtype=float)
    shares = np.array([[one.original, one.aligned, one.uniform] for one in every])
    original, aligned, uniform = (words @ shares / words.sum()).tolist()
    return Grounding(original, aligned, uniform, int(words.sum()))


def region_names(boxes: NDArray[np.floating], instances: Instances) -> list[str]:
    """The category of the annotated box that each region overlaps most, empty below IoU 0.5."""
    if not len(instances.boxes):
        return [""] * len(boxes)
    found = box_iou(boxes, instances.boxes)
    best = found.argmax(axis=1)
    return [
        instances.names[place] if found[row, place] >= LEAST_OVERLAP else ""
        for row, place in enumerate(best)
    ]
