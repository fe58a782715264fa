"""Grounding by the measures of the field, on words with annotated boxes.

- Attention correctness (Liu et al. 2017, arXiv:1605.09553): the share of the attention at a word
  inside the boxes of its object, where each region spreads its share evenly over its box.
- Pointing game (Zhang et al. 2016, arXiv:1608.00507): the centre of the region with the most
  attention is inside a box of the object.
- F1_all and F1_loc (Zhou et al. 2019, arXiv:1812.06587) of generated captions: a word of a class is
  correct if the image has the class, and localised if the IoU of the region with the most attention
  with one of its boxes is at least 0.5. Precision and recall are means over all classes.

docs/guide/judging.md defines each with a worked example, and says what differs from the papers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from a2cap.data.boxes import box_iou
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.captions.entities import GroundedImage, GroundedSentence
from a2cap.data.errors import InputError
from a2cap.data.regions import top_scoring
from a2cap.pipeline.analysis.trainings import OpenedRun
from a2cap.pipeline.analysis.word_boxes import WordBoxes
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.grounding import MIN_IOU
from a2cap.pipeline.metrics.bootstrap import interval, resample
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.report.erasure import Row

KINDS = ("attention", "aligned", "random")
"""Rows: before and after alignment, and the expectation for a region drawn at random."""
GAIN = "aligned - attention"
"""Row of the differences, paired by image."""
MEASURES = ("correctness", "pointing", "F1_all", "F1_loc")
_WORDS, _CORRECTNESS, _POINTING, _PREDICTED, _ANNOTATED, _CORRECT, _LOCALISED = range(7)
"""Columns: numbers of words and sums over them; then numbers of objects in generated captions."""


@dataclass(frozen=True)
class WordGrounding:
    """Grounding of one word by each of the kinds of attention, values in [0, 1]."""

    correctness: Mapping[str, float]
    pointing: Mapping[str, float]
    localised: Mapping[str, float]


def ground_word(
    attention: Mapping[str, NDArray[np.float32]],
    regions: NDArray[np.float32],
    boxes: NDArray[np.float32],
) -> WordGrounding:
    """Measure the attention at a word.

    attention: kind -> (R,), scaled here to a sum of 1.
    regions: (R, 4) x1 y1 x2 y2.
    boxes: (N, 4), of the object, N > 0.
    """
    inside = _share_inside(regions, boxes)
    centres = (regions[:, :2] + regions[:, 2:]) / 2
    is_after = np.greater_equal(centres, boxes[:, None, :2])
    is_before = np.less_equal(centres, boxes[:, None, 2:])
    hit = np.asarray((is_after & is_before).all(axis=-1).any(axis=0))
    right = np.asarray((box_iou(regions, boxes) >= MIN_IOU).any(axis=1))
    shares = {kind: row / row.sum() for kind, row in attention.items()}
    tops = {kind: int(row.argmax()) for kind, row in attention.items()}
    return WordGrounding(
        {**{k: float(row @ inside) for k, row in shares.items()}, "random": float(inside.mean())},
        {**{k: float(hit[top]) for k, top in tops.items()}, "random": float(hit.mean())},
        {**{k: float(right[top]) for k, top in tops.items()}, "random": float(right.mean())},
    )


def _share_inside(regions: NDArray[np.float32], boxes: NDArray[np.float32]) -> Floats:
    """Return the share of the area of each region that is in the union of the boxes, (R,)."""
    # between neighbouring edges of all boxes, the plane is covered or not
    edges = [np.unique(boxes[:, [axis, axis + 2]].astype(np.float64)) for axis in (0, 1)]
    low, high = (np.stack(np.meshgrid(*[e[s] for e in edges]), -1) for s in (np.s_[:-1], np.s_[1:]))
    middle = ((low + high) / 2)[..., None, :]
    is_inside = np.logical_and(np.less(boxes[:, :2], middle), np.less(middle, boxes[:, 2:]))
    covered = is_inside.all(-1).any(-1)
    low, high = low[covered], high[covered]  # -> (cells, 2)
    region_boxes = regions.astype(np.float64)[:, None]
    sides = np.minimum(region_boxes[..., 2:], high) - np.maximum(region_boxes[..., :2], low)
    shared = sides.clip(min=0).prod(-1).sum(-1)
    areas = (region_boxes[..., 2:] - region_boxes[..., :2]).prod(-1)[:, 0]
    shares: Floats = np.divide(shared, areas, out=np.zeros_like(shared), where=areas > 0)
    return shares


@dataclass(frozen=True)
class RunGrounding:
    """Grounding of a run: sums of each kind of attention over N images and C classes.

    classes: C names. sums: kind -> (N, C, 7).
    """

    classes: Sequence[str]
    sums: Mapping[str, Floats]

    def rows(self) -> list[Row]:
        """Return a row of all classes for each kind of attention, then one of each class.

        Where attention is aligned, a row has the differences that alignment makes.
        """
        compared: dict[str, Sequence[Floats]] = {kind: [sums] for kind, sums in self.sums.items()}
        if "aligned" in compared:
            compared[GAIN] = [self.sums["attention"], self.sums["aligned"]]
        rows: list[Row] = []
        for kind, parts in compared.items():
            totals = [part.sum(axis=0) for part in parts]
            counts = totals[-1].sum(axis=0)
            rows.append(self._row(kind, "all", counts, _last_minus_first(totals)))
            rows[-1] |= _intervals(parts)
        for kind, sums in self.sums.items():
            of_classes = zip(self.classes, sums.sum(axis=0), strict=True)
            rows += [
                self._row(kind, name, of, grounding_values(of[None])) for name, of in of_classes
            ]
        return rows

    def _row(self, kind: str, name: str, sums: Floats, values: Floats) -> Row:
        counts = {"words": _WORDS, "predicted": _PREDICTED, "annotated": _ANNOTATED}
        numbers = {title: int(sums[column]) for title, column in counts.items()}
        measures = (float(value) if np.isfinite(value) else None for value in values)
        return {
            **{"attention": kind, "class": name, "images": len(self.sums["random"])},
            **numbers,
            **dict(zip(MEASURES, measures, strict=True)),
        }


def _intervals(sums: Sequence[Floats]) -> Row:
    """Return the intervals over images of the values of (N, C, 7), or of their difference."""
    images, classes, columns = sums[0].shape

    def values(flat: Floats) -> Floats:
        parts = np.split(flat, len(sums), axis=-1)
        return _last_minus_first([part.reshape(-1, classes, columns) for part in parts])

    flat = np.concatenate([of_kind.reshape(images, -1) for of_kind in sums], axis=-1)
    bounds: Row = {}
    for measure, sample in resample({"": flat}, {"": (MEASURES, values)}).items():
        low, high = interval(sample) if np.isfinite(sample).any() else (None, None)
        bounds |= {f"{measure}_low": low, f"{measure}_high": high}
    return bounds


def _last_minus_first(sums: Sequence[Floats]) -> Floats:
    """Return the values of sums (…, C, 7), or how much those of the second are above the first."""
    values = [grounding_values(of_kind) for of_kind in sums]
    return values[0] if len(values) == 1 else values[1] - values[0]


def grounding_values(sums: Floats) -> Floats:
    """Return the MEASURES, (…, 4), of sums (…, C, 7); NaN where no word or object counts."""
    with np.errstate(invalid="ignore", divide="ignore"):
        words = sums[..., [_CORRECTNESS, _POINTING]].sum(-2) / sums[..., _WORDS].sum(-1)[..., None]
        predicted, annotated, correct, right = (
            sums[..., at] for at in (_PREDICTED, _ANNOTATED, _CORRECT, _LOCALISED)
        )
        # a class that is never predicted has precision and recall 0; one of which a bootstrap
        # sample has no image does not count
        classes = (predicted + annotated > 0).sum(axis=-1)
        f1 = [
            _f1(right / predicted, right / annotated, classes),
            _f1(right / correct, right / correct, classes),
        ]
    return np.concatenate([words, np.stack(f1, axis=-1)], axis=-1)


def _f1(precisions: Floats, recalls: Floats, classes: NDArray[np.intp]) -> Floats:
    """Return the F1 of (…, C) precisions and recalls, each averaged over so many classes."""
    precision, recall = (
        np.nan_to_num(of, nan=0.0).sum(axis=-1) / classes for of in (precisions, recalls)
    )
    f1: Floats = np.nan_to_num(2 * precision * recall / (precision + recall), nan=0.0)
    return f1


def analyse_grounding(opened: OpenedRun, annotations: WordBoxes) -> RunGrounding:
    """Measure the attention at the words of annotated sentences and of generated captions.

    Attention is the mean over layers and heads. Raises InputError for a captioner without any.
    """
    meter = _Meter(annotations, opened)
    longest = max(len(image.sentences) for image in annotations.images.values())
    for number in range(longest):
        sentences = {
            identity: image.sentences[number]
            for identity, image in annotations.images.items()
            if number < len(image.sentences)
        }
        texts = {identity: " ".join(sentence.words) for identity, sentence in sentences.items()}
        for identity, attention in opened.attend(texts):
            meter.add_sentence(identity, sentences[identity], attention)
    decoded = opened.model.decode(opened.batches(list(annotations.images)), CaptioningConfig())
    captions = {identity: beams[0].caption for identity, beams in decoded}
    for identity, attention in opened.attend(captions):
        meter.add_caption(identity, captions[identity].split(), attention)
    if not meter.sums:
        raise InputError(
            f"captioner without attention to regions: {opened.run.name!r}; leave it out"
        )
    return RunGrounding(meter.classes, meter.sums)


class _Meter:
    """Sums over the words of each image and class."""

    def __init__(self, annotations: WordBoxes, opened: OpenedRun) -> None:
        self._images, self._mentions = annotations.images, annotations.mentions
        self._opened = opened
        self._rows = {identity: row for row, identity in enumerate(self._images)}
        self._boxes = {name: _class_boxes(image) for name, image in self._images.items()}
        boxed = {label for of in self._boxes.values() for label, boxes in of.items() if len(boxes)}
        self.classes = sorted(boxed)
        self._columns = {label: column for column, label in enumerate(self.classes)}
        self.sums: dict[str, Floats] = {}

    def add_sentence(
        self, identity: str, sentence: GroundedSentence, attention: CaptionAttention
    ) -> None:
        """Add the words of an annotated sentence that have boxes."""
        for item in sentence.objects:
            if len(item.boxes):
                word = self._ground(identity, attention, item.position, item.boxes)
                for kind in word.correctness:
                    cell = self._cell(kind, identity, item.label)
                    cell[_WORDS] += 1
                    cell[_CORRECTNESS] += word.correctness[kind]
                    cell[_POINTING] += word.pointing[kind]

    def add_caption(self, identity: str, words: Sequence[str], attention: CaptionAttention) -> None:
        """Add the classes that a generated caption names, each at its first mention."""
        of_image = self._boxes[identity]
        first: dict[str, int] = {}
        for span, label in self._mentions(words):
            first.setdefault(label, span[-1])
        boxed = {label for label, boxes in of_image.items() if len(boxes)}
        # in the image, but without a box or unnamed in its sentences: neither right nor wrong
        unjudged = (of_image.keys() | self._images[identity].present) - boxed
        for kind in KINDS if attention.keep is not None else ("attention", "random"):
            for label in boxed:
                self._cell(kind, identity, label)[_ANNOTATED] += 1
            for label in (first.keys() & self._columns.keys()) - unjudged:
                self._cell(kind, identity, label)[_PREDICTED] += 1
        for label, position in first.items():
            if label in boxed:
                word = self._ground(identity, attention, position, of_image[label])
                for kind, right in word.localised.items():
                    cell = self._cell(kind, identity, label)
                    cell[_CORRECT] += 1
                    cell[_LOCALISED] += right

    def _ground(
        self,
        identity: str,
        attention: CaptionAttention,
        position: int,
        boxes: NDArray[np.float32],
    ) -> WordGrounding:
        most = self._opened.model.description.max_regions
        regions = top_scoring(self._opened.store[identity], most).boxes
        return ground_word(_rows_of(attention, position), regions, boxes)

    def _cell(self, kind: str, identity: str, label: str) -> Floats:
        shape = (len(self._rows), len(self.classes), 7)
        sums = self.sums.setdefault(kind, np.zeros(shape))
        cell: Floats = sums[self._rows[identity], self._columns[label]]
        return cell


def _class_boxes(image: GroundedImage) -> dict[str, NDArray[np.float32]]:
    """Return the boxes of each class that the sentences of an image name, of all of them."""
    boxes: dict[str, list[NDArray[np.float32]]] = {}
    for sentence in image.sentences:
        for item in sentence.objects:
            boxes.setdefault(item.label, []).append(item.boxes)
    return {label: np.concatenate(parts) for label, parts in boxes.items()}


def _rows_of(attention: CaptionAttention, position: int) -> dict[str, NDArray[np.float32]]:
    """Return the attention at a position by kind."""
    rows = {"attention": attention.original[position]}
    if attention.keep is not None:
        rows["aligned"] = attention.aligned[position]
    return rows
