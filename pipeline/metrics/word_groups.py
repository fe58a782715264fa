"""Scores of captions within one group of words: kinds, colours, counts, relations.

Words: precision is BLEU's modified unigram precision (Papineni et al. 2002) over the group's words,
recall is ROUGE-1 (Lin 2004) over them, both from sums over all images. A word that occurs twice in
a caption is therefore correct twice if one reference has it twice. If the references of an image
use different words, no caption has a recall of 1.

Pairs (`a2cap.pipeline.metrics.word_pairs`): precision is the share of a caption's pairs that a
reference has too. Many true pairs are in no reference, so accuracy is the share among judged
pairs: those with the topic of a reference pair, such as the colour of balls or the position of
ball and cup. It is limited by the references: of a red and a blue ball they may name one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from a2cap.data.annotations.word_groups import WordGroups
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.metrics.word_pairs import NOUNS, Pair, PairReader

_Counted = TypeVar("_Counted", str, Pair)


class GroupCounts(NamedTuple):
    """Counts of one group in one image; sums over images give its scores.

    predicted, correct: words of the caption, and those that a reference has as often. expected,
    recalled: words of all references, and those that the caption has. pairs, judged, held: pairs of
    the caption, those with the topic of a reference pair, those that a reference has. images,
    pair_images: 1 if the references have words, and pairs, of the group.
    """

    predicted: int
    correct: int
    expected: int
    recalled: int
    pairs: int
    judged: int
    held: int
    images: int
    pair_images: int


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
class PairScore:
    """Scores of a group's pairs; shares of zero pairs are None, explained by `reason`.

    accuracy: share of the judged pairs that a reference has. precision: the same of all pairs.
    """

    accuracy: float | None
    precision: float | None
    predicted: int
    judged: int
    images: int
    reason: str | None


@dataclass(frozen=True)
class GroupScore:
    """Scores of one group's words and pairs."""

    words: WordScore
    pairs: PairScore

    @classmethod
    def from_json(cls, content: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the scores of metrics.json; raise KeyError or TypeError for a missing one."""
        words, pairs = content["words"], content["pairs"]
        return cls(WordScore(**words), PairScore(**pairs))


@dataclass(frozen=True)
class WordGroupScores:
    """Group -> scores over all images, and image id -> group -> counts."""

    groups: dict[str, GroupScore]
    per_image: dict[str, dict[str, GroupCounts]]


def score_word_groups(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], groups: WordGroups
) -> WordGroupScores:
    """Return the scores of one caption per image; captions, references: PTB tokens by image id."""
    reader = PairReader(groups)
    per_image = {
        image_id: _count_groups(
            caption.split(), [reference.split() for reference in references[image_id]], reader
        )
        for image_id, caption in captions.items()
    }
    sums = {
        group: GroupCounts(*map(sum, zip(*(row[group] for row in per_image.values()), strict=True)))
        for group in groups
    }
    return WordGroupScores(
        {group: _score(group, sums[group], groups) for group in groups}, per_image
    )


def _count_groups(
    caption: Sequence[str], references: Sequence[Sequence[str]], reader: PairReader
) -> dict[str, GroupCounts]:
    """Return the counts of each group in one image; caption, references: tokens."""
    pairs, known = reader.read(caption), [reader.read(reference) for reference in references]
    return {
        group: _count(
            Counter(word for word in caption if word in words),
            [Counter(word for word in reference if word in words) for reference in references],
            pairs[group],
            [found[group] for found in known],
        )
        for group, words in reader.groups.items()
    }


def _count(
    words: Counter[str],
    known_words: Sequence[Counter[str]],
    pairs: Counter[Pair],
    known_pairs: Sequence[Counter[Pair]],
) -> GroupCounts:
    # For Counters, & is the minimum of the counts and | the maximum.
    topics = {pair.topic for known in known_pairs for pair in known}
    return GroupCounts(
        predicted=words.total(),
        correct=(words & _largest(known_words)).total(),
        expected=sum(known.total() for known in known_words),
        recalled=sum((words & known).total() for known in known_words),
        pairs=pairs.total(),
        judged=sum(times for pair, times in pairs.items() if pair.topic in topics),
        held=(pairs & _largest(known_pairs)).total(),
        images=int(any(known_words)),
        pair_images=int(any(known_pairs)),
    )


def _largest(references: Sequence[Counter[_Counted]]) -> Counter[_Counted]:
    """Return each item's largest count in one reference."""
    largest: Counter[_Counted] = Counter()
    for reference in references:
        largest |= reference
    return largest


def _score(group: str, counts: GroupCounts, groups: WordGroups) -> GroupScore:
    # Of sums over all images, as BLEU: a mean over images would count short captions more.
    f1, accuracy = map(_defined, group_values(np.array(counts, dtype=np.float64)))
    return GroupScore(
        words=WordScore(
            precision=_share(counts.correct, counts.predicted),
            recall=_share(counts.recalled, counts.expected),
            f1=f1,
            predicted=counts.predicted,
            images=counts.images,
            reason=_absent("word", counts.predicted, counts.images),
        ),
        pairs=PairScore(
            accuracy=accuracy,
            precision=_share(counts.held, counts.pairs),
            predicted=counts.pairs,
            judged=counts.judged,
            images=counts.pair_images,
            reason=_without_pairs(group, counts, groups),
        ),
    )


def group_values(sums: Floats) -> Floats:
    """Return F1 of the words and accuracy of the pairs.

    sums: (…, 9), fields of `GroupCounts` summed over images. Returns (…, 2), NaN for 0 / 0.
    """
    counts = GroupCounts(*np.moveaxis(sums, -1, 0))
    with np.errstate(invalid="ignore"):
        precision, recall = counts.correct / counts.predicted, counts.recalled / counts.expected
        both = precision + recall
        # Where both are 0, F1 is 0; NaN stays for 0 / 0, which a resample may have.
        f1 = 2 * precision * recall / np.where(both == 0, 1, both)
        return np.stack([f1, counts.held / counts.judged], axis=-1)


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _without_pairs(group: str, counts: GroupCounts, groups: WordGroups) -> str | None:
    # metrics.json contains these texts, so their wording is part of the file format.
    if group == NOUNS:
        return f"pairs of other groups are about {NOUNS!r}"
    if NOUNS not in groups:
        return f"no group {NOUNS!r} says what pairs are about"
    absent = _absent("pair", counts.pairs, counts.pair_images)
    if absent is None and not counts.judged:
        return "no reference says such a pair of the same topic"
    return absent


def _absent(item: str, predicted: int, images: int) -> str | None:
    if predicted and images:
        return None
    if predicted:
        return f"no reference has such a {item}"
    return f"no caption has such a {item}" if images else f"nobody says such a {item}"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
