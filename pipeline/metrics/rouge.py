"""ROUGE-L (Lin 2004) as `pycocoevalcap.rouge` 1.2 computes it: the best precision and recall.

Words are split at single blanks, so that an empty caption is one empty word, as it is there. The
longest common subsequence is that of Hyyrö (2004): one machine word holds a row of the table.
"""

from collections.abc import Sequence

_BETA = 1.2


def rouge_values(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L of each candidate against the references of its image."""
    return [
        _rouge(candidate.split(" "), [reference.split(" ") for reference in group])
        for candidate, group in zip(candidates, references, strict=True)
    ]


def _rouge(candidate: list[str], references: list[list[str]]) -> float:
    places: dict[str, int] = {}
    for index, word in enumerate(candidate):
        places[word] = places.get(word, 0) | 1 << index
    common = [longest_common_subsequence(places, len(candidate), words) for words in references]
    precision = max(common) / len(candidate)
    recall = max(found / len(words) for found, words in zip(common, references, strict=True))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def longest_common_subsequence(places: dict[str, int], length: int, words: Sequence[str]) -> int:
    """Words that two captions share in order.

    places: word -> a bit for each of its places in the one caption of `length` words; words: the
    other caption.
    """
    unmatched = everywhere = (1 << length) - 1
    for word in words:
        here = unmatched & places.get(word, 0)
        unmatched = (unmatched + here | unmatched - here) & everywhere
    return length - unmatched.bit_count()
