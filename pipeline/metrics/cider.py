"""CIDEr-D of an evaluation, by the functions of the reward (`a2cap.model.self_critical.cider`).

Document frequencies are those of the references that are scored, or those of COCO's training
captions. Equal to `pycocoevalcap.cider` 1.2 except for the last bits, because the order of
summation differs.
"""

import io
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

from a2cap.data.captions.document_frequencies import count_ngrams
from a2cap.data.files.cache import read_entry, write_entry
from a2cap.model.self_critical.cider import cider_d, inverse_frequencies, vector_norms
from a2cap.model.self_critical.ngrams import (
    MAX_N,
    count_occurrences,
    find_rows,
    look_up,
    ngram_exists,
    ngram_keys,
)
from a2cap.pipeline.metrics.ngrams import Floats, Ints, Pairs
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
    def count(cls, captions: Collection[Sequence[str]]) -> "CorpusFrequencies":
        """Count the n-grams of the tokens of each image's captions."""
        # The tables of the four lengths are a trie in sorted arrays: an n-gram is found by the row
        # of its prefix and its last word, one search per length, without hashing words. Rows change
        # when rare n-grams are left out, so keys are built length by length from the rest.
        number: dict[str, int] = {}
        split = [text.split() for group in captions for text in group]
        numbers = [number.setdefault(word, len(number)) for words in split for word in words]
        # (S,) sentences -> (T,) tokens
        sentence = np.repeat(np.arange(len(split), dtype=np.int32), [len(words) for words in split])
        image = np.repeat(np.arange(len(captions), dtype=np.int32), [len(g) for g in captions])
        token_ids = np.array(numbers, dtype=np.int32)
        ngrams, frequency, _ = count_ngrams(token_ids, sentence, image[sentence])  # (M, 4), (M,)
        # without the others, which count as 1 anyway, the table is a fraction of the size
        ngrams, frequency = ngrams[frequency >= 2], frequency[frequency >= 2]
        sizes = (ngrams >= 0).sum(axis=1)  # (M, 4) -> (M,)
        unigrams = ngrams[sizes == 1, 0]  # -> (W,)
        renumbered = np.searchsorted(unigrams, ngrams)
        keys: list[Ints] = []
        for size in range(1, MAX_N + 1):
            *first, last = renumbered[sizes == size, :size].T  # (G, n) -> n of (G,)
            rows = np.zeros(len(last), dtype=np.int64)
            for table, column in zip(keys, first, strict=False):
                rows = find_rows(np, table, ngram_keys(np, rows, column, words=len(unigrams)))
            # the last one matches nothing
            end = np.iinfo(np.int64).max
            keys.append(np.append(ngram_keys(np, rows, last, words=len(unigrams)), end))
        counts = [np.append(frequency[sizes == n].astype(np.int64), 1) for n in range(1, MAX_N + 1)]
        words = list(number)
        return cls(len(captions), [words[i] for i in unigrams.tolist()], keys, counts)

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

    def weights(self, tokens: Ints) -> Iterator[Floats]:
        """Yield the weight of the n-gram at each position of `tokens`, numbers of `words`."""
        words = len(self.words)
        for count in look_up(np, tokens, self.keys, self.counts, words=words, unknown=1):
            yield inverse_frequencies(np, count, documents=self.documents)


@cache
def coco_frequencies() -> CorpusFrequencies:
    """Return the document frequencies of COCO's train2014, counted once into the user's cache.

    These 82,783 images contain none of the validation and test images of Karpathy's split.
    """
    name = f"cider/coco-train2014-{metric_file(CAPTIONS).stat().st_size}-v1.npz"
    if (content := read_entry(name)) is not None:
        return CorpusFrequencies.from_bytes(content)
    logger.info("CIDEr: counting the n-grams of COCO's training captions, once")
    captions = tokenize({str(i): texts for i, texts in coco_captions("train").items()})
    frequencies = CorpusFrequencies.count(captions.values())
    write_entry(name, frequencies.to_bytes())
    return frequencies


def frequencies_of(idf: Idf, references: Collection[Sequence[str]]) -> CorpusFrequencies:
    """Return the document frequencies of a source; references: tokens of each image."""
    return coco_frequencies() if idf == "coco" else CorpusFrequencies.count(references)


def cider_values(pairs: Pairs, frequencies: CorpusFrequencies) -> Floats:
    """Return (N,), CIDEr-D of each candidate; the corpus value is their mean."""
    number = {word: rank for rank, word in enumerate(frequencies.words)}
    # the last two are the ends of captions and of references
    ids = np.array([*(number.get(word, -1) for word in pairs.words), -1, -1], dtype=np.int64)
    values = np.empty(pairs.captions)
    for part in pairs.parts:
        norms = vector_norms(
            np,
            frequencies.weights(ids[part.references]),
            count_occurrences(np, part.references, part.references),
            ngram_exists(part.references),
        )
        values[part.rows] = cider_d(
            np,
            part.counts,
            frequencies.weights(ids[part.tokens]),
            norms,
            lengths=part.lengths,
            reference_lengths=part.reference_lengths,
        )[:, 0]  # (n, 1) -> (n,)
    return values
