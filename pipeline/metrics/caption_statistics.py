"""Statistics of captions without regard to references: vocabulary, lengths, repetition, diversity.

Distinct-n is that of Li et al. 2016 (arXiv:1510.03055) over all captions. The diversity of an
image's beams is self-CIDEr (Wang and Chan 2019, arXiv:1903.12020): -log(λ1 / m) / log m with λ1 the
largest eigenvalue of the similarity matrix K of its m captions. It is 0 if all are equal and 1 if
no two share an n-gram. K contains plain TF-IDF cosines with a diagonal of 1; unlike CIDEr-D's
clipped and penalised similarities, they are inner products, so K has no negative eigenvalue.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from a2cap.model.self_critical.ngrams import MAX_N
from a2cap.pipeline.metrics.ngrams import Floats

_UNKNOWN = "<unk>"
_ORDERS = range(1, MAX_N + 1)


def caption_statistics(candidates: Sequence[str]) -> dict[str, float]:
    """Return statistics of one caption per image; candidates: words joined by single spaces.

    captions: their number; vocabulary: number of different words; words_mean, words_sd, words_min,
    words_max: of a caption; distinct_n: different n-grams per n-gram, n = 1, 2, 3;
    distinct_captions: different captions per caption; repetition: share of bigrams that are
    repeated within their caption; unknown: share of captions with <unk>. 0 / 0 counts as 0.
    """
    counted = {n: [list(_ngrams(text, n)) for text in candidates] for n in (1, 2, 3)}
    total = {n: sum(map(len, ngrams)) for n, ngrams in counted.items()}
    distinct = {n: len(set(chain.from_iterable(ngrams))) for n, ngrams in counted.items()}
    words = np.array(list(map(len, counted[1])))
    repeated = total[2] - sum(len(set(pairs)) for pairs in counted[2])
    return {
        "captions": len(candidates),
        "vocabulary": distinct[1],
        "words_mean": float(words.mean()),
        "words_sd": float(words.std()),
        "words_min": int(words.min()),
        "words_max": int(words.max()),
        **{f"distinct_{n}": _share(distinct[n], total[n]) for n in counted},
        "distinct_captions": _share(len(set(candidates)), len(candidates)),
        "repetition": _share(repeated, total[2]),
        "unknown": _share(sum(_UNKNOWN in s.split() for s in candidates), len(candidates)),
    }


def beam_diversity(
    beams: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return self-CIDEr of each image that has two beams or more.

    beams, references: captions of words joined by single spaces, of the same images; document
    frequencies are those of the references.
    """
    frequency: Counter[tuple[str, ...]] = Counter()
    for group in references.values():
        frequency.update({gram for text in group for n in _ORDERS for gram in _ngrams(text, n)})
    # One more than the images: with log(N), an n-gram of every image has no weight, and equal
    # beams of such words would have no cosine.
    images = len(references) + 1
    idf = {gram: float(np.log(images / count)) for gram, count in frequency.items()}
    rare = float(np.log(images))
    diversity = {}
    for image_id in references:
        if len(texts := beams[image_id]) > 1:
            counted = [[Counter(_ngrams(text, n)) for text in texts] for n in _ORDERS]
            kernel = np.sum([_cosines(counts, idf, rare) for counts in counted], axis=0)
            diversity[image_id] = _self_cider(kernel)
    return diversity


def _cosines(
    counted: Sequence[Counter[tuple[str, ...]]], idf: Mapping[tuple[str, ...], float], rare: float
) -> Floats:
    """Return (K, K), cosines of the n-grams of K captions; rare: weight of those without an idf."""
    column = {gram: n for n, gram in enumerate(dict.fromkeys(chain.from_iterable(counted)))}
    weights = np.zeros((len(counted), len(column)))
    for row, counts in zip(weights, counted, strict=True):
        for gram, count in counts.items():
            row[column[gram]] = count * idf.get(gram, rare)
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    unit = weights / np.where(norms == 0, 1, norms)
    return np.asarray(unit @ unit.T)


def _self_cider(kernel: Floats) -> float:
    norms = np.sqrt(np.diag(kernel))
    norms[norms == 0] = 1  # of a caption without words
    largest = float(np.linalg.eigvalsh(kernel / np.outer(norms, norms))[-1])
    return abs(float(np.log(min(1.0, largest / len(kernel))) / np.log(len(kernel))))


def _ngrams(caption: str, n: int) -> Iterator[tuple[str, ...]]:
    words = caption.split()
    return zip(*(words[start:] for start in range(n)), strict=False)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
