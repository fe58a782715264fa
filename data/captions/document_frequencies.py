"""Document frequencies of n-grams: the idf of CIDEr (Vedantam et al. 2015, section 3).

Counts are those of pycocoevalcap 1.2 (`CiderScorer.compute_doc_freq`) over the training references:
n-grams of 1 to 4 words, counted once per image, and once per caption for rewards that treat every
caption as a document (M2). Each caption ends in `<eos>`; rewards without `<eos>` never look up an
n-gram that contains it.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.captions.caption_file import reading
from a2cap.data.captions.vocabulary import EOS, SPECIALS, Vocabulary
from a2cap.data.errors import InputError

LONGEST_NGRAM = 4


@dataclass(frozen=True, eq=False)
class DocumentFrequencies:
    """Counts of M n-grams over `documents` images with `captions` captions.

    words: by id, the vocabulary's words with their token ids, then all other reference words.
    ngrams: (M, 4) int32 ids of `words`, -1 after the end of a shorter n-gram; sorted by length,
        then by ids.
    counts: (M,) int32 in [1, documents], images that contain the n-gram.
    caption_counts: (M,) int32 in [1, captions].
    """

    words: tuple[str, ...]
    ngrams: NDArray[np.int32]
    counts: NDArray[np.int32]
    documents: int
    caption_counts: NDArray[np.int32]
    captions: int

    def save(self, path: Path) -> None:
        """Write an .npz; equal values give equal bytes, unlike numpy's own savez."""
        words = np.frombuffer(json.dumps(self.words).encode(), dtype=np.uint8)
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in (vars(self) | {"words": words}).items():
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                content = io.BytesIO()
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
                archive.writestr(entry, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> "DocumentFrequencies":
        """Load a file that `save` wrote; raises InputError for any other."""
        with (
            reading(path, "document frequencies"),
            # opened here, because np.load leaves a damaged file open
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            words = tuple(json.loads(archive["words"].tobytes()))
            arrays = (archive[name] for name in ("ngrams", "counts", "caption_counts"))
            ngrams, counts, caption_counts = arrays
            documents, captions = int(archive["documents"]), int(archive["captions"])
            fit = counts.shape == caption_counts.shape == ngrams.shape[:1]
            if not fit or ngrams.shape[1:] != (LONGEST_NGRAM,):
                raise ValueError("shapes of n-grams and counts differ")
            if len(ngrams) and not (ngrams.min() >= -1 and ngrams.max() < len(words)):
                raise ValueError("an n-gram contains an unknown word")
        return cls(words, ngrams, counts, documents, caption_counts, captions)


def count_document_frequencies(
    references: Mapping[str, Sequence[str]], vocabulary: Vocabulary
) -> DocumentFrequencies:
    """Count n-grams; references: PTB-tokenized captions by image id, tokens joined by spaces."""
    if not references:
        raise InputError("no reference captions to count; check the training split")
    sentences = list(chain.from_iterable(references.values()))
    numbers, words = _encode(sentences, vocabulary)
    ends = numbers == EOS
    sentence_of = np.cumsum(ends, dtype=np.int32) - ends
    counts = [len(group) for group in references.values()]
    image_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[sentence_of]
    ngrams, in_images, in_sentences = count_ngrams(numbers, sentence_of, image_of)
    return DocumentFrequencies(
        words, ngrams, in_images, len(references), in_sentences, len(sentences)
    )


def _encode(
    sentences: Sequence[str], vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the ids of all words, <eos> after each sentence, and the word of each id."""
    words = vocabulary.words
    # the text "<unk>" in a reference is an ordinary word
    ids = {word: number for number, word in enumerate(words) if number >= len(SPECIALS)}
    # split twice, because seven million words would take more memory than all that follows
    added = sorted(set(chain.from_iterable(map(str.split, sentences))) - set(ids))
    ids |= {word: number for number, word in enumerate(added, start=len(words))}
    numbers = np.fromiter(
        (n for sentence in sentences for n in (*map(ids.__getitem__, sentence.split()), EOS)),
        dtype=np.int32,
    )
    return numbers, (*words, *added)


def count_ngrams(
    numbers: NDArray[np.int32], sentence_of: NDArray[np.int32], image_of: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return all n-grams, (M, 4) int32, and their counts, (M,) int32.

    The counts are those of images and those of sentences that contain the n-gram.
    """
    # An n-gram is its prefix and a word, and the round before has numbered the prefixes. So each
    # round sorts one integer per position and hashes no tuple of words. Shapes: T tokens,
    # S positions where an n-gram fits into its sentence, G different n-grams.
    base = int(numbers.max(initial=0)) + 1
    starts = np.arange(len(numbers), dtype=np.int32)
    prefixes = np.zeros(len(numbers), dtype=np.int32)
    by_length = []
    for length in range(1, LONGEST_NGRAM + 1):
        # n-grams that cross the end of a sentence are dropped
        inside = starts + length <= len(numbers)
        inside[inside] = sentence_of[starts[inside]] == sentence_of[starts[inside] + length - 1]
        starts = starts[inside]  # -> (S,)
        # the number of its prefix and its last word identify an n-gram and keep the order
        keys = prefixes[inside] * np.int64(base) + numbers[starts + length - 1]
        first, prefixes = _unique(keys)  # (S,) -> (G,), (S,)
        ngrams = np.full((len(first), LONGEST_NGRAM), -1, dtype=np.int32)
        # (G, 1) + (length,) -> (G, length)
        ngrams[:, :length] = numbers[starts[first][:, None] + np.arange(length, dtype=np.int32)]
        counts = (_count_documents(prefixes, of[starts]) for of in (image_of, sentence_of))
        by_length.append((ngrams, *counts))
    ngrams, in_images, in_sentences = map(np.concatenate, zip(*by_length, strict=True))
    return ngrams, in_images, in_sentences


def _unique(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the first index of each different key, in ascending order, and the rank of each key.

    As np.unique, with half of its memory.
    """
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_first = _differs_from_previous(keys)
    ranks = np.empty(len(keys), dtype=np.int32)
    ranks[order] = np.cumsum(is_first, dtype=np.int32) - 1
    return order[is_first], ranks


def _count_documents(ngrams: NDArray[np.int32], documents: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the number of different documents in which each n-gram occurs."""
    base = int(documents.max(initial=0)) + 1
    pairs = ngrams * np.int64(base) + documents
    pairs.sort()  # np.unique, which hashes, takes 40 times as long
    return np.bincount(pairs[_differs_from_previous(pairs)] // base).astype(np.int32)


def _differs_from_previous(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    differs = np.ones(len(values), dtype=np.bool_)
    # without the two copies that np.diff makes
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs
