"""HDF5 files of region features, in three forms: ID_features (M2), a group an image, or one array.

M2 replaces missing features by random ones; this reader skips the image.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import Arrays, as_text, known_arrays
from a2cap.data.features.formats.dictionaries import read_pickle
from a2cap.data.features.formats.feature_source import Container, Entry, damaged
from a2cap.data.features.formats.layouts import FEATURE_NAMES, known_layouts
from a2cap.data.features.source_files import index_file
from a2cap.data.files.hdf5_file import is_inside, own_dataset

_IDS = ("image_id", "image_ids", "img_ids", "img_id", "ids")
_RANGES = "pos_boxes"
"""First and last row of each image in arrays that have the regions of all."""

_Read = Callable[[h5py.File, str, int], Arrays]
"""Return the arrays of an image by its name and its position."""


def hdf5_container(path: Path, name: str) -> Container:
    """Return the images of a file in the order of their names; InputError if it is damaged."""
    with _opened(path, name) as file:
        try:
            images, read = _form_of(file, path)
        except InputError:
            raise
        except Exception as error:  # of a damaged tree, HDF5 raises several types
            raise damaged(repr(name), error) from error

    def entries() -> Iterator[Entry]:
        with _opened(path, name) as file:
            for row, image in enumerate(images):
                yield Entry(image, partial(read, file, image, row))

    return Container(f"{name!r} (HDF5)", entries, lambda: len(images))


def _opened(path: Path, name: str) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise damaged(repr(name), error) from error


def _form_of(file: h5py.File, path: Path) -> tuple[Sequence[str], _Read]:
    """Return the names of the images, and what reads one of them."""
    keys = list(file)
    if any(name in keys for name in FEATURE_NAMES):
        arrays = [key for key in keys if key not in (*_IDS, _RANGES)]
        return _ids(file, path), partial(_read_rows, arrays)
    for suffix in (f"_{name}" for name in FEATURE_NAMES):
        if images := [key.removesuffix(suffix) for key in keys if key.endswith(suffix)]:
            first = f"{images[0]}_"
            arrays = [key.removeprefix(first) for key in keys if key.startswith(first)]
            return images, partial(_read_named, arrays)
    if keys and not (is_inside(file, keys[0]) and isinstance(file[keys[0]], h5py.Group)):
        raise InputError(
            f"the layout of {path.name!r} is unknown: it has {', '.join(keys[:6])}; known names of "
            f"features and boxes are {known_layouts()}"
        )
    return keys, _read_group


def _ids(file: h5py.File, path: Path) -> list[str]:
    """Return the ids of the rows, from the file or the index beside it."""
    for name in _IDS:
        if name in file:
            return [as_text(value) for value in own_dataset(file, name)[:].ravel().tolist()]
    index = index_file(path)
    rows = read_pickle(index.read_bytes()) if index else None
    if not isinstance(rows, dict):
        raise InputError(
            f"{path.name!r} has no ids of its images ({', '.join(_IDS)}), and no "
            f"{path.stem}_imgid2idx.pkl is beside it; copy that there"
        )
    return [str(name) for name in sorted(rows, key=rows.__getitem__)]


def _read_rows(arrays: Sequence[str], file: h5py.File, image: str, row: int) -> Arrays:
    ranges = own_dataset(file, _RANGES) if _RANGES in file else None
    first, last = (row, row + 1) if ranges is None else map(int, ranges[row])
    return known_arrays(arrays, lambda name: np.asarray(own_dataset(file, name)[first:last]))


def _read_named(arrays: Sequence[str], file: h5py.File, image: str, row: int) -> Arrays:
    names = [name for name in arrays if f"{image}_{name}" in file]
    return known_arrays(names, lambda name: np.asarray(own_dataset(file, f"{image}_{name}")))


def _read_group(file: h5py.File, image: str, row: int) -> Arrays:
    group = file[image] if is_inside(file, image) else None
    if not isinstance(group, h5py.Group):
        raise ValueError(f"{image} is not a group inside the file; copy it into the file")
    stated = {key: np.asarray(value) for key, value in group.attrs.items()}
    arrays = known_arrays(group, lambda name: np.asarray(own_dataset(file, f"{image}/{name}")))
    return {**arrays, **stated}
