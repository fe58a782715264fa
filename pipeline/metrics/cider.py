"""CIDEr-D of an evaluation, by the functions of the reward (`a2cap.model.self_critical.cider`).

Document frequencies are those of the references that are scored, or those of COCO's training
captions. Equal to `pycocoevalcap.cider` 1.2 except for the last bits, because the order of
summation differs.
"""

import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np

from a2cap.data.files.cache import read_entry, write_entry
from a2cap.model.self_critical.cider import (
    MAX_N,
    clipped_products,
    find_rows,
    inverse_frequencies,
    length_penalties,
    mean_score,
    ngram_keys,
)
from a2cap.pipeline.metrics.ngrams import (
    Floats,
    Ints,
    NgramCounts,
    PairCounts,
    count_ngrams,
    distinct_words,
    document_frequency,
    matches,
)
from a2cap.pipeline.metrics.pycocoevalcap import CAPTIONS, coco_captions, metric_file
from a2cap.pipeline.metrics.tokenization import tokenize

logger = logging.getLogger(__name__)

Idf = Literal["references", "coco"]
"""Source of document frequencies: the scored references, or COCO's captions of train2014."""
IDFS: tuple[Idf, ...] = get_args(Idf)


@dataclass(frozen=True)
class CorpusFrequencies:
    """Number of `documents` images whose captions have an n-gram, if it is 2 or more.

    words: in the order of their numbers. keys: of each order, (G + 1,) ascending, the row of the
    n-gram without its last word, times the number of words, plus the last word; the last key
    matches nothing. counts: of each order, (G + 1,).
    """

    documents: int
    words: list[str]
    keys: list[Ints]
    counts: list[Ints]

    @classmethod
    def count(cls, captions: Mapping[str, Sequence[str]]) -> "CorpusFrequencies":
        """Count the n-grams of tokens by image."""
        sentences = list(chain.from_iterable(captions.values()))
        image = np.repeat(np.arange(len(captions)), [len(group) for group in captions.values()])
        words, rows = distinct_words(sentences), np.zeros(1, dtype=np.int64)
        keys, counts, numbers = [], [], None
        for counted in count_ngrams(sentences):
            frequency = document_frequency(counted, image)
            # without the others, which count as 1 anyway, the table is a fraction of the size
            kept = np.flatnonzero(frequency >= 2)
            if numbers is None:
                numbers = _ranks(kept, len(words))
            prefix, last = np.divmod(counted.keys[kept], max(len(words), 1))
            found = rows[prefix] * int(numbers.max(initial=-1) + 1) + numbers[last]
            keys.append(np.append(found, np.iinfo(np.int64).max))
            counts.append(np.append(frequency[kept].astype(np.int64), 1))
            rows = _ranks(kept, counted.grams)
        known = [] if numbers is None else [words[i] for i in np.flatnonzero(numbers >= 0)]
        return cls(len(captions), known, keys, counts)

    @classmethod
    def from_bytes(cls, content: bytes) -> "CorpusFrequencies":
        """Read what `to_bytes` returned."""
        with np.load(io.BytesIO(content)) as archive:
            keys, counts = ([archive[f"{n}{i}"] for i in range(MAX_N)] for n in ("keys", "counts"))
            words = archive["words"].tobytes().decode().split("\n")
            return cls(int(archive["documents"]), words, keys, counts)

    def to_bytes(self) -> bytes:
        """Return the arrays as an .npz."""
        arrays: dict[str, Any] = {f"keys{order}": array for order, array in enumerate(self.keys)}
        arrays |= {f"counts{order}": array for order, array in enumerate(self.counts)}
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8)
        content = io.BytesIO()
        np.savez(content, words=words, documents=np.array(self.documents), **arrays)
        return content.getvalue()

    def of_pair(self, pair: PairCounts) -> list[Floats]:
        """Return (G,) for each order, the frequency of each n-gram of the pair, at least 1."""
        number = {word: rank for rank, word in enumerate(self.words)}
        word = np.array([number.get(word, -1) for word in pair.words], dtype=np.int64)
        rows, found = np.zeros(1, dtype=np.int64), []
        for counted, keys, counts in zip(pair.candidates, self.keys, self.counts, strict=True):
            prefix, last = np.divmod(counted.keys, max(len(word), 1))
            rows = find_rows(np, keys, ngram_keys(np, rows[prefix], word[last], words=len(number)))
            found.append(np.where(rows >= 0, counts[rows], 1).astype(np.float64))
        return found


@cache
def coco_frequencies() -> CorpusFrequencies:
    """Return the document frequencies of COCO's train2014, counted once into the user's cache.

    These 82,783 images contain none of the validation and test images of Karpathy's split.
    """
    name = f"cider/coco-train2014-{metric_file(CAPTIONS).stat().st_size}-v1.npz"
    if (content := read_entry(name)) is not None:
        return CorpusFrequencies.from_bytes(content)
    logger.info("CIDEr: counting the n-grams of COCO's training captions, once")
    found = CorpusFrequencies.count(
        tokenize({str(i): c for i, c in coco_captions("train").items()})
    )
    write_entry(name, found.to_bytes())
    return found


def cider_values(
    pair: PairCounts, document: Ints | None = None, *, idf: CorpusFrequencies | None = None
) -> Floats:
    """Return (N,), CIDEr-D of each candidate; the corpus value is their mean.

    document: (N,), the image of each candidate, if several are of one image. idf: document
    frequencies, by default those of the references.
    """
    documents = np.arange(len(pair.candidate_lengths)) if document is None else document
    if idf is None:
        count = len(np.unique(documents))
        images = documents[pair.image]
        frequencies = [document_frequency(counts, images) for counts in pair.references]
    else:
        count, frequencies = idf.documents, idf.of_pair(pair)
    similarity = np.zeros(len(pair.reference_lengths))
    for order, frequency in enumerate(frequencies):
        weights = inverse_frequencies(np, frequency, documents=count)
        similarity += _cosine(pair, order, weights**2)
    # lengths in 2-grams
    candidate_lengths = np.maximum(pair.candidate_lengths - 1, 0)[pair.image]
    difference = candidate_lengths - np.maximum(pair.reference_lengths - 1, 0)
    similarity *= length_penalties(np, difference.astype(np.float64))
    n = len(pair.candidate_lengths)
    references = np.bincount(pair.image, minlength=n)
    summed = np.bincount(pair.image, similarity, minlength=n)
    return mean_score(summed, references)


def _ranks(kept: Ints, size: int) -> Ints:
    """Return (size,), the rank of each number among those that are kept, -1 for the others."""
    found = np.full(size, -1, dtype=np.int64)
    found[kept] = np.arange(len(kept))
    return found


def _cosine(pair: PairCounts, order: int, squares: Floats) -> Floats:
    """Return (S,), the TF-IDF cosine of each reference and its candidate with clipped counts.

    squares: (G,), squared weights of the n-grams.
    """
    candidates, references = pair.candidates[order], pair.references[order]
    rows, positions = matches(candidates, references, pair.image)
    sentences = len(pair.reference_lengths)
    products = clipped_products(
        np, candidates.count[positions], references.count[rows], squares[references.gram[rows]]
    )
    product = np.bincount(references.sentence[rows], products, minlength=sentences)
    norms = _norms(candidates, squares, len(pair.candidate_lengths))[pair.image]
    norms = norms * _norms(references, squares, sentences)
    return np.asarray(product / np.where(norms == 0, 1, norms))


def _norms(counts: NgramCounts, squares: Floats, sentences: int) -> Floats:
    weights = counts.count**2 * squares[counts.gram]
    return np.sqrt(np.bincount(counts.sentence, weights, minlength=sentences))
