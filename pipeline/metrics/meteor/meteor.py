"""METEOR 1.5 (Denkowski and Lavie 2014), equal to its jar as pycocoevalcap 1.2 runs it.

Each caption and its best reference give 23 counts. They give the value of an image and, summed,
that of a set of images.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from a2cap.pipeline.metrics.meteor.normalization import normalized_words
from a2cap.pipeline.metrics.meteor.paraphrases import paraphrases_of
from a2cap.pipeline.metrics.meteor.word_alignment import (
    EXACT,
    PARAPHRASE,
    STEM,
    SYNONYM,
    Match,
    align,
    new_match,
)
from a2cap.pipeline.metrics.meteor.words import MeteorWord, words
from a2cap.pipeline.metrics.ngrams import Floats

STATISTICS = 23
"""Counts of a caption: words and function words of both, the matches of the four stages by content
and function words of both, chunks, and matched words of both."""

_CHUNK = 4096
"""Captions that are scored together."""

# METEOR's parameters and stage weights for English.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_STAGES = (1.0, 0.6, 0.8, 0.6)


def meteor_statistics(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    advance: Callable[[int], object] = lambda captions: None,
) -> Floats:
    """Return (N, 23), the counts of each candidate and its best reference.

    advance: called with the number of newly scored captions.
    """
    rows: list[list[int]] = []
    for start in range(0, len(candidates), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows += _best_rows(candidates[part], references[part])
        advance(len(rows) - start)
    return _addable(np.array(rows, dtype=np.float64).reshape(-1, STATISTICS))


def meteor_values(statistics: NDArray[np.floating]) -> Floats:
    """Return METEOR, (…), of summed statistics (…, 23)."""
    length, reference_length, function, reference_function = np.moveaxis(statistics[..., :4], -1, 0)
    stages = statistics[..., 4:20].reshape(*statistics.shape[:-1], 4, 2, 2)
    chunks, matched, reference_matched = np.moveaxis(statistics[..., 20:], -1, 0)
    # (stage, content or function word, candidate or reference) -> (candidate or reference)
    weighted = np.einsum(
        "...swc,s,w->...c", stages, np.array(_STAGES), np.array([_DELTA, 1 - _DELTA])
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = weighted[..., 0] / _weighted_length(length, function)
        recall = weighted[..., 1] / _weighted_length(reference_length, reference_function)
        mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
        fragmentation = chunks / ((matched + reference_matched) / 2)
        values = mean * (1 - _GAMMA * fragmentation**_BETA)
    return np.asarray(np.where(np.isnan(values), 0.0, np.maximum(values, 0.0)))


def _weighted_length(count: Floats, function_words: Floats) -> Floats:
    return _DELTA * (count - function_words) + (1 - _DELTA) * function_words


def _addable(rows: Floats) -> Floats:
    """Return rows for summation as in METEOR: a caption equal to its reference has no chunk."""
    matched = rows[:, 4:20].reshape(-1, 8, 2).sum(axis=1)  # of the candidate, of the reference
    is_equal = (matched == rows[:, :2]).all(axis=1) & (rows[:, 20] == 1)
    rows[is_equal, 20] = 0
    return rows


_REFERENCE_START = attrgetter("reference_start")

Occurrence = tuple[int, int]
"""Start and length of a phrase."""


@dataclass(frozen=True)
class _Sentence:
    """Words of a caption, and where phrases that have paraphrases occur in it."""

    words: list[MeteorWord]
    phrases: dict[int, list[Occurrence]]


def _best_rows(
    candidates: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterator[list[int]]:
    """Yield the counts of each candidate and the reference with the highest score."""
    # pycocoevalcap removes a double blank too; ||| separates captions.
    texts = [candidate.replace("|||", "").replace("  ", " ") for candidate in candidates]
    texts += [reference.replace("|||", "") for group in references for reference in group]
    sentences, pairs = _read(texts, len(candidates))
    first = len(candidates)
    for candidate, group in zip(sentences, references, strict=False):
        group_sentences = sentences[first : first + len(group)]
        first += len(group)
        matcher = _Matcher(candidate, group_sentences, pairs)
        rows = [_counts(candidate, other, matcher.matches(other)) for other in group_sentences]
        yield max(rows, key=_score)  # the first one in a tie


_Pairs = tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]
"""Phrase of a candidate -> phrase of a reference -> row of the table, for pairs whose first phrase
is that of the candidate, and for those whose first phrase is that of the reference."""


def _read(texts: Sequence[str], candidates: int) -> tuple[list[_Sentence], _Pairs]:
    """Return the sentences, of which the first are candidates, and the pairs of their phrases."""
    vocabulary = words()
    split = [normalized_words(text, vocabulary.prefixes) for text in texts]
    table = paraphrases_of(split)
    spans = table.occurrences(split)
    is_candidate = spans.sentence < candidates
    rows, sources, targets = table.pairs(spans.phrase[is_candidate], spans.phrase[~is_candidate])
    forward: dict[int, dict[int, int]] = defaultdict(dict)
    backward: dict[int, dict[int, int]] = defaultdict(dict)
    for row, source, target in zip(rows.tolist(), sources.tolist(), targets.tolist(), strict=True):
        forward[source][target] = row
        backward[target][source] = row
    used = np.zeros(len(table.keys) + 1, dtype=np.bool_)
    used[sources] = used[targets] = True
    in_pairs = used[spans.phrase]
    phrases: list[dict[int, list[Occurrence]]] = [{} for _ in texts]
    for sentence, start, length, phrase in zip(
        *(
            column[in_pairs].tolist()
            for column in (spans.sentence, spans.start, spans.length, spans.phrase)
        ),
        strict=True,
    ):
        phrases[sentence].setdefault(phrase, []).append((start, length))
    sentences = [
        _Sentence([vocabulary[word] for word in line], sentence_phrases)
        for line, sentence_phrases in zip(split, phrases, strict=True)
    ]
    return sentences, (forward, backward)


class _Matcher:
    """Matches of one candidate with its references."""

    def __init__(
        self, candidate: _Sentence, references: Sequence[_Sentence], pairs: _Pairs
    ) -> None:
        self._keys = [word.key for word in candidate.words]
        self._by_key: dict[int, list[int]] = defaultdict(list)
        self._by_stem: dict[int, list[int]] = defaultdict(list)
        self._by_synset: dict[str, list[int]] = defaultdict(list)
        for position, word in enumerate(candidate.words):
            self._by_key[word.key].append(position)
            self._by_stem[word.stem].append(position)
            for synset in word.synsets:
                self._by_synset[synset].append(position)
        self._of_word: dict[str, list[tuple[int, int]]] = {}
        nearby = set().union(*(reference.phrases for reference in references))
        self._paraphrases = [
            (occurrences, other, row, is_forward)
            for phrase, occurrences in candidate.phrases.items()
            for is_forward, table in enumerate(reversed(pairs))
            if phrase in table
            for other, row in _common(table[phrase], nearby)
        ]

    def matches(self, reference: _Sentence) -> list[list[Match]]:
        """Return the matches that start at each word of a reference, in METEOR's order."""
        is_equal = self._keys == [word.key for word in reference.words]
        matches: list[list[Match]] = []
        for position, word in enumerate(reference.words):
            here = self._of_word.get(word.text)
            if here is None:
                here = self._of_word[word.text] = self._single(word)
            matches.append(
                [
                    new_match(stage, start, 1, position, 1)
                    for stage, start in here
                    if stage == EXACT or not is_equal
                ]
            )
        if is_equal:
            return matches
        ordered = []
        for occurrences, other, row, is_forward in self._paraphrases:
            for start, length in occurrences:
                for position, size in reference.phrases.get(other, ()):
                    # Pairs whose first phrase is of the reference come first.
                    order = (start, length, row) if is_forward else (size, row, start)
                    ordered.append((is_forward, *order, start, length, position, size))
        ordered.sort()
        for *_, start, length, position, size in ordered:
            matches[position].append(new_match(PARAPHRASE, start, length, position, size))
        return matches

    def _single(self, word: MeteorWord) -> list[tuple[int, int]]:
        """Return the stage and position of each word of the candidate that matches."""
        same = [(EXACT, position) for position in self._by_key.get(word.key, ())]
        stems = self._by_stem.get(word.stem, ())
        common = self._by_synset.keys() & word.synsets
        synonyms = sorted({n for synset in common for n in self._by_synset[synset]})
        inexact = [(STEM, n) for n in stems] + [(SYNONYM, n) for n in synonyms]
        return same + [(stage, n) for stage, n in inexact if self._keys[n] != word.key]


def _common(table: dict[int, int], phrases: set[int]) -> Iterator[tuple[int, int]]:
    return ((phrase, table[phrase]) for phrase in table.keys() & phrases)


def _counts(candidate: _Sentence, reference: _Sentence, matches: list[list[Match]]) -> list[int]:
    """Return the 23 counts of the best alignment."""
    first, second = candidate.words, reference.words
    row = [len(first), len(second), sum(w.is_function for w in first)]
    row += [sum(w.is_function for w in second), *[0] * 19]
    chunks, end, reference_end = 0, -1, -1
    for match in sorted(align(matches), key=_REFERENCE_START):
        if (match.start, match.reference_start) != (end, reference_end):
            chunks += 1
        end, reference_end = (
            match.start + match.length,
            match.reference_start + match.reference_length,
        )
        place = 4 + 4 * match.stage
        for word in first[match.start : end]:
            row[place + 2 * word.is_function] += 1
        for word in second[match.reference_start : reference_end]:
            row[place + 1 + 2 * word.is_function] += 1
    row[20:] = chunks, sum(row[4:20:2]), sum(row[5:20:2])
    return row


def _score(row: list[int]) -> float:
    """Return the score with METEOR's order of operations, so that ties are the same."""
    if not row[20]:
        return 0.0
    shares = []
    for side in (0, 1):
        content, function = row[4 + side : 20 : 4], row[6 + side : 20 : 4]
        matched = 0.0
        for count, weight in zip(content, _STAGES, strict=True):
            matched += count * weight * _DELTA
        for count, weight in zip(function, _STAGES, strict=True):
            matched += count * weight * (1 - _DELTA)
        length = _DELTA * (row[side] - row[2 + side]) + (1 - _DELTA) * row[2 + side]
        shares.append(matched / length)
    precision, recall = shares
    mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
    is_equal = row[20] == 1 and row[21:] == row[:2]
    fragmentation = 0.0 if is_equal else row[20] / ((row[21] + row[22]) / 2)
    return float(max(mean * (1 - _GAMMA * fragmentation**_BETA), 0.0))
