"""ROUGE-L (Lin 2004) as `pycocoevalcap.rouge` 1.2 computes it.

Precision and recall are the best over the references. Sentences are split at single blanks, so an
empty caption is one empty word, as in pycocoevalcap. The longest common subsequence is computed bit
by bit (Hyyrö 2004): one integer is a row of the table.
"""

from collections.abc import Sequence

_BETA = 1.2


def rouge_values(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return ROUGE-L of each candidate against the references of its image."""
    return [
        _rouge(candidate.split(" "), [reference.split(" ") for reference in group])
        for candidate, group in zip(candidates, references, strict=True)
    ]


def _rouge(candidate: list[str], references: list[list[str]]) -> float:
    positions: dict[str, int] = {}
    for index, word in enumerate(candidate):
        positions[word] = positions.get(word, 0) | 1 << index
    common = [longest_common_subsequence(positions, len(candidate), words) for words in references]
    # Not of one reference: precision and recall may be those of two different ones.
    precision = max(common) / len(candidate)
    recall = max(length / len(words) for length, words in zip(common, references, strict=True))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def longest_common_subsequence(positions: dict[str, int], length: int, words: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two captions.

    positions: word -> a bit for each of its positions in one caption of `length` words. words: the
    other caption.
    """
    unmatched = all_bits = (1 << length) - 1
    for word in words:
        here = unmatched & positions.get(word, 0)
        # One row of the table; a zero is a position where the subsequence grows.
        unmatched = (unmatched + here | unmatched - here) & all_bits
    return length - unmatched.bit_count()
