"""In how many pictures each n-gram occurs: the idf of CIDEr (Vedantam et al. 2015, section 3).

The counts are those of pycocoevalcap 1.2 (`CiderScorer.compute_doc_freq`) over the references of
the training pictures: n-grams of 1 to 4 words, each counted once per picture.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2.data.errors import InputError
from a2.data.vocabulary import SPECIALS, Vocabulary

LONGEST_NGRAM = 4


@dataclass(frozen=True, eq=False)
class DocumentFrequencies:
    """Counts of M n-grams over `documents` pictures.

    words: by number, the vocabulary's first with its own numbers, then all other reference words.
    ngrams: (M, 4) int32 numbers into `words`, -1 after the end of a shorter n-gram; shorter ones
    first, then by number. counts: (M,) int32 in [1, documents].
    """

    words: tuple[str, ...]
    ngrams: NDArray[np.int32]
    counts: NDArray[np.int32]
    documents: int

    def save(self, path: Path) -> None:
        """Write an .npz; equal values give equal bytes, which numpy's own savez does not."""
        words = np.frombuffer(json.dumps(self.words).encode(), dtype=np.uint8)
        arrays = {
            "words": words,
            "ngrams": self.ngrams,
            "counts": self.counts,
            "documents": np.int64(self.documents),
        }
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                content = io.BytesIO()
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
                archive.writestr(entry, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> "DocumentFrequencies":
        """Read what `save` wrote; raises InputError for anything else."""
        if not path.is_file():
            raise InputError(f'no file {str(path)!r}; run "a2 preprocess" first')
        try:
            # Opened here, since np.load leaves the file open where it is damaged.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                words = tuple(json.loads(archive["words"].tobytes()))
                ngrams, counts = archive["ngrams"], archive["counts"]
                documents = int(archive["documents"])
        except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(path, str(error)) from error
        if counts.ndim != 1 or ngrams.shape != (len(counts), LONGEST_NGRAM):
            raise _damaged(path, "n-grams and counts do not belong together")
        if len(ngrams) and not (ngrams.min() >= -1 and ngrams.max() < len(words)):
            raise _damaged(path, "an n-gram holds an unknown word")
        return cls(words, ngrams, counts, documents)


def count_document_frequencies(
    references: Mapping[str, Sequence[str]], vocabulary: Vocabulary
) -> DocumentFrequencies:
    """Count over image id → PTB sentences, whose tokens are divided by white space."""
    if not references:
        raise InputError("no reference captions to count; check the training split")
    sentences = [
        (image, sentence.split())
        for image, group in enumerate(references.values())
        for sentence in group
    ]
    numbers, words = _number_words(sentences, vocabulary)
    lengths = [len(sentence) for _, sentence in sentences]
    sentence_of = np.repeat(np.arange(len(sentences)), lengths)
    image_of = np.repeat([image for image, _ in sentences], lengths).astype(np.int64)
    counted = [
        _count_ngrams(numbers, sentence_of, image_of, size) for size in range(1, LONGEST_NGRAM + 1)
    ]
    return DocumentFrequencies(
        words=words,
        ngrams=np.concatenate([ngrams for ngrams, _ in counted]),
        counts=np.concatenate([counts for _, counts in counted]),
        documents=len(references),
    )


def _number_words(
    sentences: Sequence[tuple[int, list[str]]], vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The numbers of all words in a row, and the word of each number."""
    own = vocabulary.words
    # The text "<unk>" in a reference is a word like any other.
    known = {word: number for number, word in enumerate(own) if number >= len(SPECIALS)}
    others = sorted({word for _, sentence in sentences for word in sentence if word not in known})
    known |= {word: number for number, word in enumerate(others, start=len(own))}
    numbers = np.fromiter(
        (known[word] for _, sentence in sentences for word in sentence), dtype=np.int32
    )
    return numbers, (*own, *others)


def _count_ngrams(
    numbers: NDArray[np.int32],
    sentence_of: NDArray[np.int64],
    image_of: NDArray[np.int64],
    size: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The n-grams of `size` words, (m, 4) int32, and in how many images each occurs, (m,) int32."""
    windows = max(0, len(numbers) - size + 1)
    last_of = sentence_of[size - 1 :]
    inside = np.flatnonzero(sentence_of[:windows] == last_of[:windows])
    columns = [numbers[inside + offset] for offset in range(size)]
    keys: list[NDArray[np.integer]] = [image_of[inside], *reversed(columns)]
    order = np.lexsort(keys)
    columns = [column[order] for column in columns]
    is_new = _differs_from_previous(columns)
    is_new_in_image = is_new | _differs_from_previous([image_of[inside][order]])
    starts = np.flatnonzero(is_new)
    ngrams = np.full((len(starts), LONGEST_NGRAM), -1, dtype=np.int32)
    for position, column in enumerate(columns):
        ngrams[:, position] = column[starts]
    # The images of one n-gram are neighbours, so a running count gives the number of each group.
    seen = np.concatenate([[0], np.cumsum(is_new_in_image)])
    return ngrams, np.diff(seen[np.append(starts, len(order))]).astype(np.int32)


def _differs_from_previous(columns: Sequence[NDArray[np.integer]]) -> NDArray[np.bool_]:
    differs = np.ones(len(columns[0]), dtype=np.bool_)
    if len(differs):
        differs[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


def _damaged(path: Path, problem: str) -> InputError:
    return InputError(
        f'damaged document frequencies {str(path)!r} ({problem}); run "a2 preprocess" again'
    )
