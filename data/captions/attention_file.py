"""Where a captioner looked, word by word, for many images in one HDF5 file, `attention.h5`.

I images, image i with L_i words and R_i regions: its record's in the feature store, in their
order, or the surest `train.max_regions` of them. `image_ids` (I,); `words` (I,) int32, the L_i;
`regions` (I,) int32, the R_i; `original`, `aligned` and `keep` (sum of L_i R_i,) float16, for each
image L_i rows of R_i values; `gate` (sum of L_i,) float16. `keep` and `gate` are there where the
captioner has them, `aligned` where it has `keep`. Equal input gives equal bytes.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from a2cap.data.captions.caption_file import write_texts
from a2cap.data.errors import InputError

_CHUNK = 1 << 13
_PER_REGION = ("original", "aligned", "keep")


@dataclass(frozen=True)
class CaptionAttention:
    """Attention to the R regions of an image at each of L words, over layers and heads.

    original, aligned: (L, R) float32; rows of aligned sum to more than 1 unless renormalised.
    keep: (L, R) float32, the mask m in (0, 1), or None where nothing is aligned; aligned is then
    the original. gate: (L,) float32, or None where the fusion is no gate.
    """

    original: NDArray[np.float32]
    aligned: NDArray[np.float32]
    keep: NDArray[np.float32] | None = None
    gate: NDArray[np.float32] | None = None


def write_attention(path: Path, images: Iterable[tuple[str, CaptionAttention]]) -> None:
    """Writes the attention of images, (image id, attention), as they come.

    All of them have a mask and a gate, or none has.
    """
    # Fixed version and no times, as in captions.h5.
    # In memory first: on a full disk h5py would print a traceback for each of its open parts.
    content = io.BytesIO()
    with h5py.File(content, "w", libver=("earliest", "v110")) as file:
        image_ids: list[str] = []
        shapes: list[tuple[int, int]] = []
        for image_id, attention in images:
            image_ids.append(image_id)
            shapes.append(attention.original.shape)
            for name in _columns(attention):
                _append(file, name, getattr(attention, name))
        write_texts(file, "image_ids", image_ids)
        sizes = np.array(shapes, dtype=np.int32).reshape(-1, 2)
        file.create_dataset("words", data=sizes[:, 0], track_times=False)
        file.create_dataset("regions", data=sizes[:, 1], track_times=False)
    path.write_bytes(content.getbuffer())


def _columns(attention: CaptionAttention) -> Iterator[str]:
    yield "original"
    if attention.keep is not None:
        yield from ("aligned", "keep")
    if attention.gate is not None:
        yield "gate"


def _append(file: h5py.File, name: str, values: NDArray[np.float32]) -> None:
    if name not in file:
        file.create_dataset(
            *(name, (0,), np.float16), maxshape=(None,), chunks=(_CHUNK,), track_times=False
        )
    column = file[name]
    before = len(column)
    column.resize(before + values.size, axis=0)
    column[before:] = values.astype(np.float16).ravel()


class AttentionFile:
    """An attention.h5 by image id; iteration is in the order of writing.

    Raises InputError where the file is missing or not one of these.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise InputError(f'no file {str(path)!r}; run "a2 evaluate" first')
        try:
            with h5py.File(path, "r") as file:
                self._read_index(file)
        except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise self._damaged(str(error)) from error

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._places

    def __getitem__(self, image_id: str) -> CaptionAttention:
        if image_id not in self._places:
            raise InputError(
                f"no attention for image {image_id!r} in {str(self._path)!r}; "
                "set evaluate.attention to all"
            )
        place = self._places[image_id]
        shape = (int(self._words[place]), int(self._regions[place]))
        with h5py.File(self._path, "r") as file:
            cells, words = self._first_cell[place], self._first_word[place]
            found = {name: _part(file, name, cells, shape) for name in _PER_REGION}
            gate = _part(file, "gate", words, shape[:1])
        original = found["original"]
        if original is None:  # no image has a word
            original = np.zeros(shape, dtype=np.float32)
        aligned = original if found["aligned"] is None else found["aligned"]
        return CaptionAttention(original, aligned, found["keep"], gate)

    def _read_index(self, file: h5py.File) -> None:
        image_ids = file["image_ids"].asstr()[...].tolist()
        self._words = file["words"][...].astype(np.int64)
        self._regions = file["regions"][...].astype(np.int64)
        if not len(image_ids) == len(self._words) == len(self._regions):
            raise ValueError("images, words and regions do not belong together")
        self._places = {image_id: place for place, image_id in enumerate(image_ids)}
        self._first_word = np.concatenate([[0], np.cumsum(self._words)])
        self._first_cell = np.concatenate([[0], np.cumsum(self._words * self._regions)])
        ends = dict.fromkeys(_PER_REGION, self._first_cell) | {"gate": self._first_word}
        for name, firsts in ends.items():
            if name in file and len(file[name]) != firsts[-1]:
                raise ValueError(f"{name} has {len(file[name])} values, expected {firsts[-1]}")

    def _damaged(self, problem: str) -> InputError:
        return InputError(
            f'damaged attention {str(self._path)!r} ({problem}); run "a2 evaluate --force"'
        )


def _part(
    file: h5py.File, name: str, first: int, shape: tuple[int, ...]
) -> NDArray[np.float32] | None:
    if name not in file:
        return None
    values: NDArray[np.float32] = file[name][first : first + np.prod(shape, dtype=int)].astype(
        np.float32
    )
    return values.reshape(shape)
