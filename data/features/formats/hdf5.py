"""M2's HDF5 (meshed-memory-transformer, data/field.py): ID_features, ID_boxes, ID_cls_prob.

The file knows no size of an image. M2 takes regions in the order of their largest probability,
which is kept as their score; where an image lacks its features M2 invents some, and this does not.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import (
    ImageRegions,
    Sizes,
    decimal_id,
    regions_of,
    size_of_image,
)
from a2cap.data.image_ids import image_id as identity_of
from a2cap.data.regions import Regions

logger = logging.getLogger(__name__)

_FEATURES, _BOXES, _PROBABILITIES = "_features", "_boxes", "_cls_prob"
_FLUSHED_TOGETHER = 64


class M2Source:
    """The images of one file, in the order of their names; sizes come from elsewhere."""

    def __init__(self, path: Path, *, sizes: Sizes) -> None:
        self.path = path
        self._sizes = sizes
        with _open(path) as file:
            self._names = [n.removesuffix(_FEATURES) for n in file if n.endswith(_FEATURES)]

    def __iter__(self) -> Iterator[ImageRegions | SkippedItem]:
        with _open(self.path) as file:
            for name in self._names:
                try:
                    yield self._read(file, name)
                except KeyError as error:
                    yield SkippedItem(name, str(error.args[0]))
                except (OSError, InputError) as error:
                    yield SkippedItem(name, str(error))

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, file: h5py.File, name: str) -> ImageRegions:
        identity = identity_of(f"{name}.jpg")
        width, height = size_of_image(identity, self._sizes)
        features = np.asarray(file[name + _FEATURES], np.float32)
        boxes = np.asarray(file[name + _BOXES], np.float32)
        if boxes.shape != (len(features), 4):
            raise InputError(
                f"boxes of shape {boxes.shape} beside features of shape {features.shape}; "
                "make the file again"
            )
        scores = class_ids = None
        if name + _PROBABILITIES in file:
            probabilities = np.asarray(file[name + _PROBABILITIES], np.float32)
            scores = probabilities.max(axis=1)
            class_ids = probabilities.argmax(axis=1).astype(np.int32)
        regions = regions_of(
            boxes, features, width=width, height=height, scores=scores, class_ids=class_ids
        )
        return ImageRegions(identity, regions)


class M2Target:
    """Writes `path` by way of `path.partial`; HDF5 that a killed run left open is begun anew.

    A probability is written for the class of a region alone, because a store keeps no others.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._file = self._begin()
        self._done = {name.removesuffix(_FEATURES) for name in self._file if _is_whole(name)}
        self._unflushed = 0

    def __contains__(self, image_id: object) -> bool:
        text = str(image_id)
        return text.isdigit() and str(int(text)) in self._done

    def add(self, image_id: str, regions: Regions) -> None:
        """Writes the image's arrays; its features come last."""
        name = str(decimal_id(image_id, place=self._path))
        probabilities = np.zeros((len(regions), max(1, int(regions.class_ids.max()) + 1)), "<f4")
        known = regions.class_ids >= 0
        probabilities[np.flatnonzero(known), regions.class_ids[known]] = regions.scores[known]
        for suffix, array in (
            (_PROBABILITIES, probabilities),
            (_BOXES, regions.boxes),
            (_FEATURES, regions.features.astype(np.float32)),
        ):
            if name + suffix in self._file:
                del self._file[name + suffix]
            self._file[name + suffix] = array
        self._done.add(name)
        self._unflushed += 1
        if self._unflushed >= _FLUSHED_TOGETHER:
            self._file.flush()
            self._unflushed = 0

    def finish(self) -> None:
        """Renames the finished file into place."""
        self._file.close()
        self._partial.replace(self._path)

    def close(self) -> None:
        """Keeps what was written for a later run."""
        self._file.close()

    def _begin(self) -> h5py.File:
        try:
            return h5py.File(self._partial, "a")
        except OSError as error:
            logger.warning("%r was left open by a killed run and is begun anew", self._partial.name)
            logger.debug("%s", error)
            self._partial.unlink()
            return h5py.File(self._partial, "w")


def _is_whole(name: str) -> bool:
    return name.endswith(_FEATURES)


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path.name!r} is no HDF5 file: {error}; get it again") from error
