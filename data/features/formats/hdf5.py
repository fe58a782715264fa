"""HDF5 files of region features, in three forms: ID_features (M2), a group an image, or one array.

M2 replaces missing features by random ones; this reader skips the image.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import arrays_of, as_text, known_arrays
from a2cap.data.features.formats.feature_format import Arrays, Entry, ImageFeatures
from a2cap.data.features.formats.layouts import FEATURE_NAMES, Layout, known_layouts
from a2cap.data.features.formats.pickled import read_pickle
from a2cap.data.features.source_files import index_file
from a2cap.data.files.hdf5_file import is_inside, own_dataset

_IDS = ("image_id", "image_ids", "img_ids", "img_id", "ids")
_RANGES = "pos_boxes"
"""First and last row of each image in arrays that have the regions of all."""


class Hdf5Container:
    """The images of a file in the order of their names."""

    def __init__(self, path: Path) -> None:
        self.path, self.title = path, f"{path.name!r} (HDF5)"
        with _open(path) as file:
            try:
                self._names = self._image_names(file)
            except InputError:
                raise
            except Exception as error:  # of a damaged tree, HDF5 raises several types
                reason = " ".join(str(error).split())
                raise InputError(
                    f"{path.name!r} is damaged: {reason}; download it again"
                ) from error

    def __iter__(self) -> Iterator[Entry]:
        with _open(self.path) as file:
            for row, name in enumerate(self._names):
                yield Entry(name, partial(self._read, file, name, row))

    def __len__(self) -> int:
        return len(self._names)

    def _image_names(self, file: h5py.File) -> list[str]:
        """Return the names of the images, and note the form of the file and its arrays."""
        keys = list(file)
        self._form, self._arrays = "group", keys
        if any(name in keys for name in FEATURE_NAMES):
            self._form = "rows"
            return self._ids(file)
        for suffix in (f"_{name}" for name in FEATURE_NAMES):
            names = [key.removesuffix(suffix) for key in keys if key.endswith(suffix)]
            if names:
                first = f"{names[0]}_"
                self._form = "flat"
                self._arrays = [key.removeprefix(first) for key in keys if key.startswith(first)]
                return names
        if keys and not (is_inside(file, keys[0]) and isinstance(file[keys[0]], h5py.Group)):
            raise InputError(
                f"the layout of {self.path.name!r} is unknown: it has {', '.join(keys[:6])}; known "
                f"names of features and boxes are {known_layouts()}"
            )
        return keys

    def _ids(self, file: h5py.File) -> list[str]:
        """Return the ids of the rows, from the file or the index beside it."""
        for name in _IDS:
            if name in file:
                return [as_text(value) for value in own_dataset(file, name)[:].ravel().tolist()]
        index = index_file(self.path)
        rows = read_pickle(index.read_bytes()) if index else None
        if not isinstance(rows, dict):
            raise InputError(
                f"{self.path.name!r} has no ids of its images ({', '.join(_IDS)}), and no "
                f"{self.path.stem}_imgid2idx.pkl is beside it; copy that there"
            )
        return [str(name) for name in sorted(rows, key=rows.__getitem__)]

    def _read(self, file: h5py.File, name: str, row: int) -> Arrays:
        if self._form == "flat":
            names = [one for one in self._arrays if f"{name}_{one}" in file]
            return known_arrays(names, lambda one: _array(file, f"{name}_{one}"))
        if self._form == "group":
            group = file[name] if is_inside(file, name) else None
            if not isinstance(group, h5py.Group):
                raise ValueError(f"{name} is not a group inside the file; copy it into the file")
            stated = {key: np.asarray(value) for key, value in group.attrs.items()}
            found = known_arrays(group, lambda one: _array(file, f"{name}/{one}"))
            return {**found, **stated}
        names = [one for one in self._arrays if one not in (*_IDS, _RANGES)]
        first, last = (row, row + 1)
        if _RANGES in file:
            first, last = map(int, own_dataset(file, _RANGES)[row])
        return known_arrays(names, lambda one: np.asarray(own_dataset(file, one)[first:last]))


def _array(file: h5py.File, name: str) -> NDArray[np.generic]:
    return np.asarray(own_dataset(file, name))


def write_m2(path: Path, images: Iterable[ImageFeatures], layout: Layout) -> None:
    """Write images in the form ID_features."""
    with h5py.File(path, "w") as file:
        for image in images:
            for name, array in arrays_of(image, layout).items():
                file[f"{int(image.image_id)}_{name}"] = array


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(
            f"{path.name!r} is not an HDF5 file: {error}; download it again"
        ) from error
