"""What captions are like, apart from being right: vocabulary, lengths, repetition and diversity.

Distinct-n is that of Li et al. 2016 (arXiv:1510.03055) over all captions. The diversity of a
image's beams is self-CIDEr (Wang and Chan 2019, arXiv:1903.12020): with K the similarities of its
m captions and λ1 the largest eigenvalue of K, -log(λ1 / m) / log m. It is 0 where all are
equal and 1 where no two share an n-gram. K holds plain TF-IDF cosines, which unlike CIDEr-D's are
the inner products that eigenvalues need, scaled to 1 for a caption and itself.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from a2cap.pipeline.metrics.ngrams import (
    Floats,
    Ints,
    NgramCounts,
    count_ngrams,
    document_frequency,
)

_UNKNOWN = "<unk>"


def caption_statistics(captions: Mapping[str, str]) -> dict[str, float]:
    """Figures of one caption for each image; captions: words joined by single spaces.

    captions: how many; vocabulary: different words; words_mean, words_sd, words_min, words_max: of
    a caption; distinct_n: different n-grams per n-gram, n = 1, 2, 3; distinct_captions: different
    captions per caption; repetition: share of bigrams that their caption has said before; unknown:
    share of captions with the word that stands for unknown ones. Shares of nothing are 0.
    """
    sentences = list(captions.values())
    counted = count_ngrams(sentences)
    words = np.array([len(sentence.split()) for sentence in sentences])
    pairs = counted[1]
    return {
        "captions": len(sentences),
        "vocabulary": _different(counted[0]),
        "words_mean": float(words.mean()),
        "words_sd": float(words.std()),
        "words_min": int(words.min()),
        "words_max": int(words.max()),
        **{
            f"distinct_{n}": _share(_different(counted[n - 1]), _total(counted[n - 1]))
            for n in (1, 2, 3)
        },
        "distinct_captions": _share(len(set(sentences)), len(sentences)),
        "repetition": _share(_total(pairs) - len(pairs.count), _total(pairs)),
        "unknown": _share(sum(_UNKNOWN in s.split() for s in sentences), len(sentences)),
    }


def beam_diversity(
    beams: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Self-CIDEr of each image that has two beams or more.

    beams, references: captions of words joined by single spaces, of the same images; document
    frequencies are those of the references.
    """
    asked = [image_id for image_id in references if len(beams[image_id]) > 1]
    sizes = np.array([len(beams[image_id]) for image_id in asked], dtype=np.int64)
    said = [caption for image_id in asked for caption in beams[image_id]]
    known = [reference for group in references.values() for reference in group]
    image = np.repeat(np.arange(len(references)), [len(group) for group in references.values()])
    kernel = np.zeros((len(said), int(sizes.max(initial=0))))
    for counts in count_ngrams(said + known):
        frequency = document_frequency(counts.of(len(said), len(said) + len(known)), image)
        rarity = np.log(len(references) + 1) - np.log(np.maximum(1.0, frequency))
        kernel += _cosines(counts.of(0, len(said)), rarity, sizes)
    starts = np.cumsum(sizes) - sizes
    return {
        image_id: _self_cider(kernel[start : start + size, :size])
        for image_id, start, size in zip(asked, starts, sizes, strict=True)
    }


def _cosines(counts: NgramCounts, rarity: Floats, sizes: Ints) -> Floats:
    """(S, K): of each caption with the 1st, 2nd, … of its group; sizes: captions of each group."""
    weights = counts.count * rarity[counts.gram]
    norms = np.sqrt(np.bincount(counts.sentence, weights**2, minlength=int(sizes.sum())))
    unit = weights / np.where(norms == 0, 1, norms)[counts.sentence]
    group = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group]
    keys = group[counts.sentence] * counts.grams + counts.gram
    found = np.zeros((len(group), int(sizes.max(initial=0))))
    for other in range(found.shape[1]):
        rows = np.flatnonzero(place[counts.sentence] == other)
        where = np.searchsorted(keys[rows], keys)
        where[where == len(rows)] = 0
        shared = keys[rows][where] == keys if len(rows) else np.zeros(len(keys), dtype=bool)
        product = np.where(shared, unit * unit[rows][where], 0.0) if len(rows) else 0.0 * unit
        found[:, other] = np.bincount(counts.sentence, product, minlength=len(group))
    return found


def _self_cider(kernel: Floats) -> float:
    own = np.sqrt(np.diag(kernel))
    own[own == 0] = 1  # of a caption without words
    largest = float(np.linalg.eigvalsh(kernel / np.outer(own, own))[-1])
    return abs(float(np.log(min(1.0, largest / len(kernel))) / np.log(len(kernel))))


def _different(counts: NgramCounts) -> int:
    return len(np.unique(counts.gram))


def _total(counts: NgramCounts) -> int:
    return int(counts.count.sum())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
