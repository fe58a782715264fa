"""Caption file: captions as token ids in HDF5 (`captions.h5`).

N captions of I images, L = max_length + 1. Datasets: `tokens` (N, L) int32 in [0, V), each caption
followed by `<eos>`, then `<pad>`; `lengths` (N,) int32, including `<eos>`; `offsets` (I + 1,)
int64: image i has the captions offsets[i] to offsets[i + 1]; `image_ids` and `splits` (I,).
Attribute `cut`: captions that were longer than max_length, which may lack `<eos>`. Equal input
gives equal bytes.
"""

import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from sys import intern

import h5py
import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.captions.presets import tokens_of
from a2cap.data.captions.vocabulary import EOS, PAD, Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.files.hdf5_file import own_dataset
from a2cap.data.files.paths import did_you_mean
from a2cap.data.identities import Identities

_SPLITS = ("train", "val", "test")
_DAMAGE = (OSError, EOFError, KeyError, ValueError, TypeError, AttributeError, RuntimeError)


def write_captions(
    path: Path,
    images: Sequence[AnnotatedImage],
    vocabulary: Vocabulary,
    *,
    preset: str,
    max_length: int = 20,
    eos_after_cut: bool = True,
    dataset: str = "",
) -> None:
    """Encode the captions of all images, truncated to `max_length` tokens, and write them.

    preset: name of the tokenization rule.
    eos_after_cut: False to leave truncated captions without <eos>.
    dataset: name of the data, if it has one.
    Raises InputError if there is no image.
    """
    if not images:
        raise InputError(f"no images to write into {str(path)!r}; check data.annotations")
    captions = [caption for image in images for caption in image.captions]
    tokens = np.full((len(captions), max_length + 1), PAD, dtype=np.int32)
    lengths = np.empty(len(captions), dtype=np.int32)
    cut = 0
    for row, caption in enumerate(captions):
        words = tokens_of(caption, preset)
        is_cut = len(words) > max_length
        cut += is_cut
        end = [EOS] if eos_after_cut or not is_cut else []
        numbers = [*vocabulary.encode(words[:max_length]), *end]
        lengths[row] = len(numbers)
        tokens[row, : len(numbers)] = numbers
    counts = [len(image.captions) for image in images]
    with deterministic_hdf5(path) as file:
        file.create_dataset("tokens", data=tokens, track_times=False)
        file.create_dataset("lengths", data=lengths, track_times=False)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        file.create_dataset("offsets", data=offsets, track_times=False)
        write_texts(file, "image_ids", [image.image_id for image in images])
        write_texts(file, "splits", [image.split for image in images])
        if own_ids := Identities((image.image_id, image.own_id) for image in images).own_ids:
            write_texts(file, "own_ids", [json.dumps(own_ids[image.image_id]) for image in images])
            write_texts(file, "files", [image.file for image in images])
        file.attrs["vocabulary_digest"] = vocabulary.digest
        file.attrs["cut"] = cut
        if dataset:
            file.attrs["dataset"] = dataset


@dataclass(frozen=True)
class CutCaptions:
    """Captions that are longer than `max_length` tokens, `cut` of `total`."""

    cut: int
    total: int
    max_length: int

    @classmethod
    def count(
        cls, images: Iterable[AnnotatedImage], *, preset: str, max_length: int
    ) -> "CutCaptions":
        """Count them in annotations."""
        captions = (caption for image in images for caption in image.captions)
        is_cut = [len(tokens_of(caption, preset)) > max_length for caption in captions]
        return cls(sum(is_cut), len(is_cut), max_length)

    @property
    def is_much(self) -> bool:
        """Return True if more than 2 % are cut; of COCO's captions, 0.6 % are."""
        return self.cut > 0.02 * self.total

    def __str__(self) -> str:
        """Return a sentence, "" if none is cut."""
        if not self.cut:
            return ""
        return (
            f"{self.cut:,} of {self.total:,} captions ({self.cut / self.total:.1%}) have more than "
            f"{self.max_length} tokens and are cut"
        )


class CaptionFile:
    """The captions of a captions.h5, held in memory.

    vocabulary_digest: digest of the vocabulary that encoded the captions. dataset: name of their
    data, "" if it has none. largest_token: of all captions, 0 without any. cut: the captions that
    were longer than a row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path, "captions"), h5py.File(path, "r") as file:
            self._tokens: NDArray[np.int32] = own_dataset(file, "tokens")[...].astype(np.int32)
            self._lengths: NDArray[np.int32] = own_dataset(file, "lengths")[...].astype(np.int32)
            self._offsets: NDArray[np.int64] = own_dataset(file, "offsets")[...].astype(np.int64)
            self._image_ids: list[str] = own_dataset(file, "image_ids").asstr()[...].tolist()
            # interned: three strings and not one for each image
            self._splits = [*map(intern, own_dataset(file, "splits").asstr()[...])]
            self.vocabulary_digest = str(file.attrs["vocabulary_digest"])
            self.dataset = str(file.attrs.get("dataset", ""))
            own_ids, files = (_texts(file, name) for name in ("own_ids", "files"))
            cut = int(file.attrs.get("cut", 0))
            images = len(self._image_ids)
            if self._tokens.ndim != 2 or self._lengths.shape != (len(self._tokens),):
                raise ValueError("numbers of tokens and lengths differ")
            if ((self._lengths < 1) | (self._lengths > self._tokens.shape[1])).any():
                raise ValueError("a caption is longer than its row")
            if len(self._splits) != images or self._offsets.shape != (images + 1,):
                raise ValueError("numbers of images, splits and offsets differ")
            ends = (self._offsets[0], self._offsets[-1])
            if ends != (0, len(self._tokens)) or (np.diff(self._offsets) < 1).any():
                raise ValueError("offsets do not partition the captions")
            if self._tokens.size and self._tokens.min() < 0:
                raise ValueError("a token is negative")
            if not set(self._splits) <= set(_SPLITS):
                raise ValueError("unknown split")
            if len(own_ids) != len(files) or len(files) not in (0, images):
                raise ValueError("numbers of images and of their ids differ")
            pairs = zip(self._image_ids, map(json.loads, own_ids), strict=bool(own_ids))
            self.identities = Identities(pairs)
        self.cut = CutCaptions(cut, len(self._tokens), self._tokens.shape[1] - 1)
        self.files = dict(zip(self._image_ids, files, strict=bool(files)))
        self.largest_token = int(self._tokens.max(initial=0))
        self._index = {identity: i for i, identity in enumerate(self._image_ids)}

    @property
    def splits(self) -> dict[str, list[str]]:
        """The images of each split."""
        return {split: self.image_ids(split) for split in _SPLITS}

    def image_ids(self, split: str) -> list[str]:
        """Return the images of 'train', 'val' or 'test' in the order of the annotations."""
        if split not in _SPLITS:
            raise InputError(f"unknown split: {split!r}; use train, val or test")
        return [i for i, part in zip(self._image_ids, self._splits, strict=True) if part == split]

    def captions(self, image_id: str) -> NDArray[np.int32]:
        """Return the captions of an image, (n, L) int32: tokens, `<eos>`, then `<pad>`."""
        if image_id not in self._index:
            raise InputError(
                f"no captions for image {image_id!r} in {str(self._path)!r}; "
                'check data.annotations and run "a2 preprocess" again'
            )
        position = self._index[image_id]
        # a copy: callers may change it in place
        return self._tokens[self._offsets[position] : self._offsets[position + 1]].copy()


def _texts(file: h5py.File, name: str) -> list[str]:
    return own_dataset(file, name).asstr()[...].tolist() if name in file else []


@contextmanager
def deterministic_hdf5(path: Path) -> Iterator[h5py.File]:
    """Give a file to fill, which is written to `path` at the end: equal content, equal bytes."""
    # In memory first: on a full disk h5py would print a traceback for each open dataset.
    # The library's version is fixed; datasets must be created with track_times=False.
    content = io.BytesIO()
    with h5py.File(content, "w", libver=("earliest", "v110")) as file:
        yield file
    path.write_bytes(content.getbuffer())


def write_texts(file: h5py.File, name: str, texts: Sequence[str]) -> None:
    """Write strings as a dataset whose bytes depend only on them."""
    # Fixed width: variable-length strings are in a heap whose unused bytes are undetermined.
    width = max((len(text.encode()) for text in texts), default=1)
    encoded = [text.encode() for text in texts]
    dtype = h5py.string_dtype("utf-8", width)
    file.create_dataset(name, data=np.array(encoded, dtype=dtype), track_times=False)


@contextmanager
def reading(
    path: Path, what: str, *, stage: str = "a2 preprocess", again: str = '"a2 preprocess" again'
) -> Iterator[None]:
    """Raise InputError if the file that `stage` writes is missing or the block finds damage."""
    if not path.is_file():
        raise InputError(f'no file {str(path)!r}; run "{stage}" first{did_you_mean(path)}')
    try:
        yield
    except (*_DAMAGE, zipfile.BadZipFile) as error:
        raise InputError(f"damaged {what} {str(path)!r} ({error}); run {again}") from error
