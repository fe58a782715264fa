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
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.captions.vocabulary import EOS, SPECIALS, Vocabulary
from a2cap.data.errors import InputError

LONGEST_NGRAM = 4


@dataclass(frozen=True, eq=False)
class DocumentFrequencies:
    """Counts of M n-grams over `documents` images with `captions` captions.

    words: by id, the vocabulary's words with their token ids, then all other reference words.
    ngrams: (M, 4) int32 ids of `words`, -1 after the end of a shorter n-gram; sorted by length,
    then by ids. counts: (M,) int32 in [1, documents], images that contain the n-gram;
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
        arrays = {
            "words": words,
            "ngrams": self.ngrams,
            "counts": self.counts,
            "documents": np.int64(self.documents),
            "caption_counts": self.caption_counts,
            "captions": np.int64(self.captions),
        }
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                content = io.BytesIO()
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
                archive.writestr(entry, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> "DocumentFrequencies":
        """Load a file that `save` wrote; raises InputError for any other."""
        if not path.is_file():
            raise InputError(f'no file {str(path)!r}; run "a2 preprocess" first')
        try:
            # opened here, because np.load leaves a damaged file open
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                words = tuple(json.loads(archive["words"].tobytes()))
                ngrams, counts = archive["ngrams"], archive["counts"]
                documents = int(archive["documents"])
                caption_counts = archive["caption_counts"]
                captions = int(archive["captions"])
        except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(path, str(error)) from error
        fit = counts.shape == caption_counts.shape == ngrams.shape[:1]
        if not fit or ngrams.shape[1:] != (LONGEST_NGRAM,):
            raise _damaged(path, "shapes of n-grams and counts differ")
        if len(ngrams) and not (ngrams.min() >= -1 and ngrams.max() < len(words)):
            raise _damaged(path, "an n-gram contains an unknown word")
        return cls(words, ngrams, counts, documents, caption_counts, captions)


def count_document_frequencies(
    references: Mapping[str, Sequence[str]], vocabulary: Vocabulary
) -> DocumentFrequencies:
    """Count n-grams; references: PTB-tokenized captions by image id, tokens joined by spaces."""
    if not references:
        raise InputError("no reference captions to count; check the training split")
    sentences = [
        (image, sentence.split())
        for image, group in enumerate(references.values())
        for sentence in group
    ]
    numbers, words = _encode(sentences, vocabulary)
    lengths = [len(sentence) + 1 for _, sentence in sentences]
    sentence_of = np.repeat(np.arange(len(sentences)), lengths)
    image_of = np.repeat([image for image, _ in sentences], lengths).astype(np.int64)
    counted = [
        _count_ngrams(numbers, sentence_of, image_of, size) for size in range(1, LONGEST_NGRAM + 1)
    ]
    return DocumentFrequencies(
        words=words,
        ngrams=np.concatenate([ngrams for ngrams, _, _ in counted]),
        counts=np.concatenate([counts for _, counts, _ in counted]),
        documents=len(references),
        caption_counts=np.concatenate([counts for _, _, counts in counted]),
        captions=len(sentences),
    )


def _encode(
    sentences: Sequence[tuple[int, list[str]]], vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the ids of all words, <eos> after each sentence, and the word of each id."""
    own = vocabulary.words
    # the text "<unk>" in a reference is an ordinary word
    known = {word: number for number, word in enumerate(own) if number >= len(SPECIALS)}
    others = sorted({word for _, sentence in sentences for word in sentence if word not in known})
    known |= {word: number for number, word in enumerate(others, start=len(own))}
    numbers = np.fromiter(
        (n for _, sentence in sentences for n in (*map(known.__getitem__, sentence), EOS)),
        dtype=np.int32,
    )
    return numbers, (*own, *others)


def _count_ngrams(
    numbers: NDArray[np.int32],
    sentence_of: NDArray[np.int64],
    image_of: NDArray[np.int64],
    size: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the n-grams of `size` words, (m, 4) int32, and their counts, (m,) int32.

    The counts are those of images and those of sentences that contain the n-gram.
    """
    # windows that cross the end of a sentence are dropped
    windows = max(0, len(numbers) - size + 1)
    last_of = sentence_of[size - 1 :]
    inside = np.flatnonzero(sentence_of[:windows] == last_of[:windows])
    columns = [numbers[inside + offset] for offset in range(size)]
    # sorting by sentence also sorts by image: the sentences of an image are adjacent
    keys: list[NDArray[np.integer]] = [sentence_of[inside], *reversed(columns)]
    order = np.lexsort(keys)
    columns = [column[order] for column in columns]
    is_new = _differs_from_previous(columns)
    documents = [
        is_new | _differs_from_previous([document_of[inside][order]])
        for document_of in (image_of, sentence_of)
    ]
    starts = np.flatnonzero(is_new)
    ngrams = np.full((len(starts), LONGEST_NGRAM), -1, dtype=np.int32)
    for position, column in enumerate(columns):
        ngrams[:, position] = column[starts]
    # counts between the first occurrences of two n-grams, by differences of cumulative sums
    ends = np.append(starts, len(order))
    in_images, in_sentences = (_count_between(ends, is_new) for is_new in documents)
    return ngrams, in_images, in_sentences


def _count_between(ends: NDArray[np.intp], marked: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the number of marked items from each end to the next."""
    seen = np.concatenate([[0], np.cumsum(marked)])
    return np.diff(seen[ends]).astype(np.int32)


def _differs_from_previous(columns: Sequence[NDArray[np.integer]]) -> NDArray[np.bool_]:
    differs = np.ones(len(columns[0]), dtype=np.bool_)
    if len(differs):
        differs[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


def _damaged(path: Path, problem: str) -> InputError:
    return InputError(
        f'damaged document frequencies {str(path)!r} ({problem}); run "a2 preprocess" again'
    )
