"""The HDF5 format of M2 (meshed-memory-transformer, data/field.py), without image sizes.

Keys are ID_features, ID_boxes and ID_cls_prob. The score of a region is its largest probability,
by which M2 sorts regions. M2 replaces missing features by random ones; this reader skips the image.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import (
    Ids,
    ImageFeatures,
    Sizes,
    image_size,
    make_regions,
    read_or_skip,
)
from a2cap.data.files.hdf5_file import own_dataset
from a2cap.data.image_ids import named_id

_FEATURES, _BOXES, _PROBABILITIES = "_features", "_boxes", "_cls_prob"


class M2Source:
    """The images of a file in the order of their names."""

    def __init__(self, path: Path, *, sizes: Sizes, ids: Ids = named_id) -> None:
        self.path, self._ids = path, ids
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
        image_id = self._ids(name)
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


def write_m2(path: Path, images: Iterable[ImageFeatures]) -> None:
    """Write images.

    Only the probability of a region's class is written, because a store contains no others.
    """
    with h5py.File(path, "w") as file:
        for image in images:
            name, regions = str(int(image.image_id)), image.regions
            probabilities = np.zeros((len(regions), max(1, regions.class_ids.max() + 1)), "<f4")
            known = regions.class_ids >= 0
            probabilities[np.flatnonzero(known), regions.class_ids[known]] = regions.scores[known]
            file[name + _PROBABILITIES] = probabilities
            file[name + _BOXES] = regions.boxes
            file[name + _FEATURES] = regions.features


def _image_names(file: h5py.File) -> list[str]:
    return [name.removesuffix(_FEATURES) for name in file if name.endswith(_FEATURES)]


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(
            f"{path.name!r} is not an HDF5 file: {error}; download it again"
        ) from error
