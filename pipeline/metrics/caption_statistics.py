"""Statistics of captions without regard to references: vocabulary, lengths, repetition, diversity.

Distinct-n is that of Li et al. 2016 (arXiv:1510.03055) over all captions. The diversity of an
image's beams is self-CIDEr (Wang and Chan 2019, arXiv:1903.12020): -log(λ1 / m) / log m with λ1 the
largest eigenvalue of the similarity matrix K of its m captions. It is 0 if all are equal and 1 if
no two share an n-gram. K contains plain TF-IDF cosines with a diagonal of 1; unlike CIDEr-D's
clipped and penalised similarities, they are inner products, so K has no negative eigenvalue.
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
    """Return statistics of one caption per image; captions: words joined by single spaces.

    captions: their number; vocabulary: number of different words; words_mean, words_sd, words_min,
    words_max: of a caption; distinct_n: different n-grams per n-gram, n = 1, 2, 3;
    distinct_captions: different captions per caption; repetition: share of bigrams that are
    repeated within their caption; unknown: share of captions with <unk>. 0 / 0 counts as 0.
    """
    sentences = list(captions.values())
    counted = count_ngrams(sentences)
    words = np.array([len(sentence.split()) for sentence in sentences])
    pairs = counted[1]
    return {
        "captions": len(sentences),
        "vocabulary": _distinct(counted[0]),
        "words_mean": float(words.mean()),
        "words_sd": float(words.std()),
        "words_min": int(words.min()),
        "words_max": int(words.max()),
        **{
            f"distinct_{n}": _share(_distinct(counted[n - 1]), _total(counted[n - 1]))
            for n in (1, 2, 3)
        },
        "distinct_captions": _share(len(set(sentences)), len(sentences)),
        "repetition": _share(_total(pairs) - len(pairs.count), _total(pairs)),
        "unknown": _share(sum(_UNKNOWN in s.split() for s in sentences), len(sentences)),
    }


def beam_diversity(
    beams: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return self-CIDEr of each image that has two beams or more.

    beams, references: captions of words joined by single spaces, of the same images; document
    frequencies are those of the references.
    """
    image_ids = [image_id for image_id in references if len(beams[image_id]) > 1]
    sizes = np.array([len(beams[image_id]) for image_id in image_ids], dtype=np.int64)
    captions = [caption for image_id in image_ids for caption in beams[image_id]]
    known = [reference for group in references.values() for reference in group]
    image = np.repeat(np.arange(len(references)), [len(group) for group in references.values()])
    n = len(captions)
    kernel = np.zeros((n, int(sizes.max(initial=0))))
    for counts in count_ngrams(captions + known):
        frequency = document_frequency(counts.slice(n, n + len(known)), image)
        # One more than the images: with log(N), an n-gram of every image has no weight, and equal
        # beams of such words would have no cosine.
        idf = np.log(len(references) + 1) - np.log(np.maximum(1.0, frequency))
        kernel += _cosines(counts.slice(0, n), idf, sizes)
    starts = np.cumsum(sizes) - sizes
    return {
        image_id: _self_cider(kernel[start : start + size, :size])
        for image_id, start, size in zip(image_ids, starts, sizes, strict=True)
    }


def _cosines(counts: NgramCounts, idf: Floats, sizes: Ints) -> Floats:
    """Return (S, K), cosines of each caption with the 1st, 2nd, … of its image's beams.

    sizes: number of beams of each image.
    """
    weights = counts.count * idf[counts.gram]
    norms = np.sqrt(np.bincount(counts.sentence, weights**2, minlength=int(sizes.sum())))
    unit = weights / np.where(norms == 0, 1, norms)[counts.sentence]
    group = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group]
    # n-grams are compared only within the beams of one image.
    keys = group[counts.sentence] * counts.grams + counts.gram
    found = np.zeros((len(group), int(sizes.max(initial=0))))
    for other in range(found.shape[1]):
        rows = np.flatnonzero(position[counts.sentence] == other)
        if not len(rows):
            continue
        match = np.searchsorted(keys[rows], keys)
        match[match == len(rows)] = 0
        product = np.where(keys[rows][match] == keys, unit * unit[rows][match], 0.0)
        found[:, other] = np.bincount(counts.sentence, product, minlength=len(group))
    return found


def _self_cider(kernel: Floats) -> float:
    norms = np.sqrt(np.diag(kernel))
    norms[norms == 0] = 1  # of a caption without words
    largest = float(np.linalg.eigvalsh(kernel / np.outer(norms, norms))[-1])
    return abs(float(np.log(min(1.0, largest / len(kernel))) / np.log(len(kernel))))


def _distinct(counts: NgramCounts) -> int:
    return len(np.unique(counts.gram))


def _total(counts: NgramCounts) -> int:
    return int(counts.count.sum())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
