"""Attention file: the attention of generated captions to regions, in HDF5 (`attention.h5`).

I images; image i has L_i tokens and R_i regions, those of its record in the feature store, or the
top-scoring `train.max_regions` of them. Datasets: `image_ids` (I,); `words` (I,) int32, the L_i;
`regions` (I,) int32, the R_i; `original`, `aligned` and `keep` (sum of L_i R_i,) float16, L_i rows
of R_i values per image; `gate` (sum of L_i,) float16. `keep` and `gate` exist if the captioner has
them, `aligned` exists with `keep`. Equal input gives equal bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from a2cap.data.captions.caption_file import deterministic_hdf5, reading, write_texts
from a2cap.data.errors import InputError
from a2cap.data.files.hdf5_file import own_dataset

_CHUNK = 1 << 13
_PER_REGION = ("original", "aligned", "keep")
_Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True)
class CaptionAttention:
    """Attention to the R regions of an image at each of L tokens, over layers and heads.

    original, aligned: (L, R) float32; rows of aligned sum to more than 1 unless renormalised.
    keep: (L, R) float32, the mask m in (0, 1); None without alignment, aligned is then the
        original.
    gate: (L,) float32; None if the fusion has no gate.
    layers: the same per layer with an axis of the H heads before all others, lowest first; not in a
        file.
    """

    original: NDArray[np.float32]
    aligned: NDArray[np.float32]
    keep: NDArray[np.float32] | None = None
    gate: NDArray[np.float32] | None = None
    layers: tuple["CaptionAttention", ...] = ()

    def of(self, layer: int | None, head: int | None = None) -> "CaptionAttention":
        """Return the attention of a layer or of one of its heads; without a layer, the whole.

        Both are counted from 1. Raises InputError for one that does not exist.
        """
        if layer is None and head is None:
            return self
        if layer is None:
            raise InputError(f"head {head} of which layer; name the layer too")
        _check_number("layer", layer, len(self.layers))
        attention = self.layers[layer - 1]
        if head is not None:
            _check_number(f"head in layer {layer}", head, len(attention.original))
        heads = slice(None) if head is None else slice(head - 1, head)

        def mean(values: NDArray[np.float32]) -> NDArray[np.float32]:
            return np.asarray(values[heads].mean(axis=0))

        return attention.map(mean, mean)

    def map(self, rows: _Change, gate: _Change) -> "CaptionAttention":
        """Apply a function to all values over regions, and one to the gate, of the layers too."""
        return CaptionAttention(
            rows(self.original),
            rows(self.aligned),
            None if self.keep is None else rows(self.keep),
            None if self.gate is None else gate(self.gate),
            tuple(layer.map(rows, gate) for layer in self.layers),
        )


def _check_number(noun: str, number: int, count: int) -> None:
    if not 1 <= number <= count:
        raise InputError(f"no such {noun}: {number}; choose from 1 to {count}")


def write_attention(path: Path, images: Iterable[tuple[str, CaptionAttention]]) -> None:
    """Write pairs of image id and attention in their order.

    All of them have a mask, or none; all have a gate, or none.
    """
    with deterministic_hdf5(path) as file:
        image_ids: list[str] = []
        shapes: list[tuple[int, int]] = []
        for image_id, attention in images:
            image_ids.append(image_id)
            shapes.append(attention.original.shape)
            for name in (*_PER_REGION, "gate"):
                values = getattr(attention, name)
                # without a mask, `aligned` is the same as `original`
                is_copy = name == "aligned" and attention.keep is None
                if values is not None and not is_copy:
                    _append(file, name, values)
        write_texts(file, "image_ids", image_ids)
        sizes = np.array(shapes, dtype=np.int32).reshape(-1, 2)
        file.create_dataset("words", data=sizes[:, 0], track_times=False)
        file.create_dataset("regions", data=sizes[:, 1], track_times=False)


def _append(file: h5py.File, name: str, values: NDArray[np.float32]) -> None:
    # the number of rows is unknown before the last image
    if name not in file:
        options = {"maxshape": (None,), "chunks": (_CHUNK,), "track_times": False}
        file.create_dataset(name, (0,), np.float16, **options)
    column = file[name]
    before = len(column)
    column.resize(before + values.size, axis=0)
    column[before:] = values.astype(np.float16).ravel()


class AttentionFile:
    """The attention of an attention.h5 by image id, iterated in the order of writing.

    Raises InputError if the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        again = '"a2 evaluate --force"'
        with (
            reading(path, "attention", stage="a2 evaluate", again=again),
            h5py.File(path, "r") as file,
        ):
            self._read_index(file)

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._positions

    def __getitem__(self, image_id: str) -> CaptionAttention:
        if image_id not in self._positions:
            raise InputError(
                f"no attention for image {image_id!r} in {str(self._path)!r}; "
                "set evaluate.attention to all"
            )
        position = self._positions[image_id]
        shape = (int(self._words[position]), int(self._regions[position]))
        # opened per image: an open h5py file survives neither fork nor pickling
        with h5py.File(self._path, "r") as file:
            first = self._first_cell[position]
            parts = {name: _part(file, name, first, shape) for name in _PER_REGION}
            gate = _part(file, "gate", self._first_word[position], shape[:1])
        original = parts["original"]
        if original is None:  # no image has a token
            original = np.zeros(shape, dtype=np.float32)
        aligned = original if parts["aligned"] is None else parts["aligned"]
        return CaptionAttention(original, aligned, parts["keep"], gate)

    def _read_index(self, file: h5py.File) -> None:
        image_ids = own_dataset(file, "image_ids").asstr()[...].tolist()
        self._words = own_dataset(file, "words")[...].astype(np.int64)
        self._regions = own_dataset(file, "regions")[...].astype(np.int64)
        if not len(image_ids) == len(self._words) == len(self._regions):
            raise ValueError("lengths of image_ids, words and regions differ")
        self._positions = {image_id: position for position, image_id in enumerate(image_ids)}
        self._first_word = np.concatenate([[0], np.cumsum(self._words)])
        self._first_cell = np.concatenate([[0], np.cumsum(self._words * self._regions)])
        ends = dict.fromkeys(_PER_REGION, self._first_cell) | {"gate": self._first_word}
        for name, firsts in ends.items():
            count = len(own_dataset(file, name)) if name in file else firsts[-1]
            if count != firsts[-1]:
                raise ValueError(f"{name} has {count} values, expected {firsts[-1]}")


def _part(
    file: h5py.File, name: str, first: int, shape: tuple[int, ...]
) -> NDArray[np.float32] | None:
    if name not in file:
        return None
    values: NDArray[np.float16] = own_dataset(file, name)[first : first + np.prod(shape, dtype=int)]
    return values.astype(np.float32).reshape(shape)
