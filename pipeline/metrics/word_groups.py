"""Scores of the words of a group in captions, such as kinds, colours, counts or relations.

Precision is BLEU's modified unigram precision (Papineni et al. 2002) over the group's words, recall
is ROUGE-1 (Lin 2004) over them, both from sums over all images. A word that occurs twice in a
caption is therefore correct twice if one reference has it twice. If the references of an image use
different words, no caption has a recall of 1.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from a2cap.data.annotations.word_groups import WordGroups
from a2cap.pipeline.metrics.ngrams import Floats


class GroupCounts(NamedTuple):
    """Counts of one group in one image; sums over images give its scores.

    predicted, correct: words of the caption, and those that a reference has as often.
    expected, recalled: words of all references, and those that the caption has.
    images: 1 if the references have words of the group.
    """

    predicted: int
    correct: int
    expected: int
    recalled: int
    images: int


@dataclass(frozen=True)
class WordScore:
    """Scores of a group's words; shares of zero words are None, explained by `reason`.

    predicted: number of words in the captions. images: number whose references have such words.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    predicted: int
    images: int
    reason: str | None


@dataclass(frozen=True)
class WordGroupScores:
    """Group -> scores over all images, and image id -> group -> counts."""

    groups: dict[str, WordScore]
    per_image: dict[str, dict[str, GroupCounts]]


def score_word_groups(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], groups: WordGroups
) -> WordGroupScores:
    """Return the scores of one caption per image; captions, references: PTB tokens by image id."""
    per_image = {
        image_id: {
            group: _count(
                _words(caption, words), [_words(text, words) for text in references[image_id]]
            )
            for group, words in groups.items()
        }
        for image_id, caption in captions.items()
    }
    sums = {
        group: GroupCounts(*map(sum, zip(*(row[group] for row in per_image.values()), strict=True)))
        for group in groups
    }
    return WordGroupScores({group: _score(counts) for group, counts in sums.items()}, per_image)


def _words(text: str, words: Set[str]) -> Counter[str]:
    return Counter(word for word in text.split() if word in words)


def _count(words: Counter[str], references: Sequence[Counter[str]]) -> GroupCounts:
    # For Counters, & is the minimum of the counts and | the maximum.
    largest: Counter[str] = Counter()
    for reference in references:
        largest |= reference
    return GroupCounts(
        predicted=words.total(),
        correct=(words & largest).total(),
        expected=sum(reference.total() for reference in references),
        recalled=sum((words & reference).total() for reference in references),
        images=int(any(references)),
    )


def _score(counts: GroupCounts) -> WordScore:
    # Of sums over all images, as BLEU: a mean over images would count short captions more.
    f1 = float(f1_values(np.array(counts, dtype=np.float64))[0])
    return WordScore(
        precision=_share(counts.correct, counts.predicted),
        recall=_share(counts.recalled, counts.expected),
        f1=None if np.isnan(f1) else f1,
        predicted=counts.predicted,
        images=counts.images,
        reason=_absent(counts),
    )


def f1_values(sums: Floats) -> Floats:
    """Return F1, (…, 1), NaN for 0 / 0; sums: (…, 5), fields of `GroupCounts` over all images."""
    counts = GroupCounts(*np.moveaxis(sums, -1, 0))
    with np.errstate(invalid="ignore"):
        precision, recall = counts.correct / counts.predicted, counts.recalled / counts.expected
        both = precision + recall
        # Where both are 0, F1 is 0; NaN stays for 0 / 0, which a resample may have.
        f1: Floats = 2 * precision * recall / np.where(both == 0, 1, both)
    return f1[..., None]


def _absent(counts: GroupCounts) -> str | None:
    # metrics.json contains these texts, so their wording is part of the file format.
    if counts.predicted and counts.images:
        return None
    if counts.predicted:
        return "no reference has such a word"
    return "no caption has such a word" if counts.images else "nobody says such a word"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
