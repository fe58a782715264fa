"""How right captions are in one group of words: kinds, colours, counts, relations.

Words: precision is BLEU's modified unigram precision (Papineni et al. 2002) of the group's words,
recall is ROUGE-1 (Lin 2004) of them, both of sums over all images. So a word that stands twice in
a caption is right twice where one reference has it twice. Where references of an image choose
different words, no caption has a recall of 1.

Pairs (`a2cap.pipeline.metrics.word_pairs`): precision is the share of a caption's pairs that a
reference says too. Many a true one is said by none, so that accuracy is over those that are judged,
where a reference says something of the same topic: a colour of balls, or how ball and cup lie to
each other. It is no more than what the references know: of a red and a blue ball they may name one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from a2cap.data.annotations.word_groups import WordGroups
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.metrics.word_pairs import NOUNS, Pair, PairReader

_Said = TypeVar("_Said", str, Pair)


class GroupCounts(NamedTuple):
    """What is counted of a group in one image; sums over images give its scores.

    said, right: words of the caption, and those that a reference has as often; expected, recalled:
    words of all references, and those that the caption has. pairs, judged, held: of the caption,
    those with a topic of the references, those that a reference says. pictures, pair_pictures: 1
    where the references have words, and pairs, of the group.
    """

    said: int
    right: int
    expected: int
    recalled: int
    pairs: int
    judged: int
    held: int
    pictures: int
    pair_pictures: int


@dataclass(frozen=True)
class WordScore:
    """Scores of a group's words; None where they would be a share of nothing, by `reason`.

    said: words of the captions. pictures: those whose references have such words.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    said: int
    pictures: int
    reason: str | None


@dataclass(frozen=True)
class PairScore:
    """Scores of a group's pairs; None where they would be a share of nothing, by `reason`.

    accuracy: share of the judged pairs that a reference says; precision: of all that captions say.
    """

    accuracy: float | None
    precision: float | None
    said: int
    judged: int
    pictures: int
    reason: str | None


@dataclass(frozen=True)
class GroupScore:
    """Both scores of one group."""

    words: WordScore
    pairs: PairScore


@dataclass(frozen=True)
class WordGroupScores:
    """Group -> scores over all images, and image id -> group -> what was counted."""

    groups: dict[str, GroupScore]
    per_image: dict[str, dict[str, GroupCounts]]


def score_word_groups(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], groups: WordGroups
) -> WordGroupScores:
    """The scores of one caption for each image; captions, references: PTB tokens by image id."""
    reader = PairReader(groups)
    per_image = {
        image_id: count_groups(
            caption.split(), [said.split() for said in references[image_id]], groups, reader
        )
        for image_id, caption in captions.items()
    }
    return WordGroupScores(
        groups={
            group: _score(group, _summed([found[group] for found in per_image.values()]), groups)
            for group in groups
        },
        per_image=per_image,
    )


def count_groups(
    caption: Sequence[str],
    references: Sequence[Sequence[str]],
    groups: WordGroups,
    reader: PairReader,
) -> dict[str, GroupCounts]:
    """What is counted of each group in one image; caption, references: tokens."""
    said, known = reader.read(caption), [reader.read(reference) for reference in references]
    return {
        group: _count(
            Counter(word for word in caption if word in words),
            [Counter(word for word in reference if word in words) for reference in references],
            said[group],
            [pairs[group] for pairs in known],
        )
        for group, words in groups.items()
    }


def _count(
    words: Counter[str],
    known_words: Sequence[Counter[str]],
    pairs: Counter[Pair],
    known_pairs: Sequence[Counter[Pair]],
) -> GroupCounts:
    topics = {pair.topic for known in known_pairs for pair in known}
    return GroupCounts(
        said=words.total(),
        right=(words & _most(known_words)).total(),
        expected=sum(known.total() for known in known_words),
        recalled=sum((words & known).total() for known in known_words),
        pairs=pairs.total(),
        judged=sum(times for pair, times in pairs.items() if pair.topic in topics),
        held=(pairs & _most(known_pairs)).total(),
        pictures=int(any(known_words)),
        pair_pictures=int(any(known_pairs)),
    )


def _most(references: Sequence[Counter[_Said]]) -> Counter[_Said]:
    """How often each item is said by the reference that says it most."""
    most: Counter[_Said] = Counter()
    for reference in references:
        most |= reference
    return most


def _summed(counts: Sequence[GroupCounts]) -> GroupCounts:
    return GroupCounts(*map(sum, zip(*counts, strict=True)))


def _score(group: str, counts: GroupCounts, groups: WordGroups) -> GroupScore:
    precision = _share(counts.right, counts.said)
    recall = _share(counts.recalled, counts.expected)
    return GroupScore(
        words=WordScore(
            precision=precision,
            recall=recall,
            f1=harmonic_mean(precision, recall),
            said=counts.said,
            pictures=counts.pictures,
            reason=_absent("word", counts.said, counts.pictures),
        ),
        pairs=PairScore(
            accuracy=_share(counts.held, counts.judged),
            precision=_share(counts.held, counts.pairs),
            said=counts.pairs,
            judged=counts.judged,
            pictures=counts.pair_pictures,
            reason=_without_pairs(group, counts, groups),
        ),
    )


def group_values(sums: Floats) -> Floats:
    """F1 of the words and accuracy of the pairs, (…, 2); NaN for a share of nothing.

    sums: (…, 9), of the fields of `GroupCounts` over images.
    """
    counts = GroupCounts(*np.moveaxis(sums, -1, 0))
    with np.errstate(invalid="ignore"):
        precision, recall = counts.right / counts.said, counts.recalled / counts.expected
        both = precision + recall
        f1 = 2 * precision * recall / np.where(both == 0, 1, both)
        return np.stack([f1, counts.held / counts.judged], axis=-1)


def harmonic_mean(precision: float | None, recall: float | None) -> float | None:
    """F1; None where one of them has no value, 0 where both are."""
    if precision is None or recall is None:
        return None
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _without_pairs(group: str, counts: GroupCounts, groups: WordGroups) -> str | None:
    if group == NOUNS:
        return f"pairs of other groups are about {NOUNS!r}"
    if NOUNS not in groups:
        return f"no group {NOUNS!r} says what pairs are about"
    absent = _absent("pair", counts.pairs, counts.pair_pictures)
    if absent is None and not counts.judged:
        return "no reference says such a pair of the same topic"
    return absent


def _absent(what: str, said: int, images: int) -> str | None:
    if said and images:
        return None
    if said:
        return f"no reference has such a {what}"
    return f"no caption has such a {what}" if images else f"nobody says such a {what}"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
