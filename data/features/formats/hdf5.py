"""The HDF5 format of M2 (meshed-memory-transformer, data/field.py), without image sizes.

Keys are ID_features, ID_boxes and ID_cls_prob. The score of a region is its largest probability,
by which M2 sorts regions. M2 replaces missing features by random ones; this reader skips the image.
"""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import (
    ImageFeatures,
    Sizes,
    decimal_id,
    image_size,
    make_regions,
    read_or_skip,
)
from a2cap.data.files.hdf5_file import own_dataset
from a2cap.data.image_ids import image_id as image_id_of
from a2cap.data.regions import Regions

logger = logging.getLogger(__name__)

_FEATURES, _BOXES, _PROBABILITIES = "_features", "_boxes", "_cls_prob"
_IMAGES_PER_FLUSH = 64


class M2Source:
    """The images of a file in the order of their names."""

    def __init__(self, path: Path, *, sizes: Sizes) -> None:
        self.path = path
        self._sizes = sizes
        with _open(path) as file:
            try:
                self._names = _image_names(file)
            except Exception as error:  # of a damaged tree, HDF5 raises several types
                reason = " ".join(str(error).split())
                raise InputError(
                    f"{path.name!r} is damaged: {reason}; download it again"
                ) from error

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        with _open(self.path) as file:
            for name in self._names:
                yield read_or_skip(name, partial(self._read, file, name))

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, file: h5py.File, name: str) -> ImageFeatures:
        image_id = image_id_of(f"{name}.jpg")
        size = image_size(image_id, self._sizes)
        features = np.asarray(own_dataset(file, name + _FEATURES), np.float32)
        boxes = np.asarray(own_dataset(file, name + _BOXES), np.float32)
        scores = class_ids = None
        if name + _PROBABILITIES in file:
            probabilities = np.asarray(own_dataset(file, name + _PROBABILITIES), np.float32)
            scores = probabilities.max(axis=1)
            class_ids = probabilities.argmax(axis=1).astype(np.int32)
        regions = make_regions(boxes, features, size=size, scores=scores, class_ids=class_ids)
        return ImageFeatures(image_id, regions)


class M2Target:
    """The writer of `path`, by way of `path.partial`.

    Only the probability of a region's class is written, because a store contains no others.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._file = self._open_partial()
        self._done = set(_image_names(self._file))
        self._unflushed = 0

    def __contains__(self, image_id: object) -> bool:
        text = str(image_id)
        return text.isdigit() and str(int(text)) in self._done

    def add(self, image_id: str, regions: Regions) -> None:
        """Write the arrays of an image."""
        name = str(decimal_id(image_id, target=self._path))
        probabilities = np.zeros((len(regions), max(1, int(regions.class_ids.max()) + 1)), "<f4")
        known = regions.class_ids >= 0
        probabilities[np.flatnonzero(known), regions.class_ids[known]] = regions.scores[known]
        # features last: their presence marks a complete image
        arrays = {_PROBABILITIES: probabilities, _BOXES: regions.boxes}
        arrays[_FEATURES] = regions.features.astype(np.float32)
        for suffix, array in arrays.items():
            if name + suffix in self._file:  # of an image that a killed run did not complete
                del self._file[name + suffix]
            self._file[name + suffix] = array
        self._unflushed += 1
        if self._unflushed >= _IMAGES_PER_FLUSH:
            self._file.flush()
            self._unflushed = 0

    def finish(self) -> None:
        """Rename the finished file to its path."""
        self._file.close()
        self._partial.replace(self._path)

    def close(self) -> None:
        """Keep the written images for a later run."""
        self._file.close()

    def _open_partial(self) -> h5py.File:
        try:
            return h5py.File(self._partial, "a")
        except OSError as error:
            logger.warning(
                "%r was left open by a killed run and starts from scratch", self._partial.name
            )
            logger.debug("%s", error)
            self._partial.unlink()
            return h5py.File(self._partial, "w")


def _image_names(file: h5py.File) -> list[str]:
    return [name.removesuffix(_FEATURES) for name in file if name.endswith(_FEATURES)]


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(
            f"{path.name!r} is not an HDF5 file: {error}; download it again"
        ) from error
