"""Folders of NumPy files, one per image.

ImageCaptioning.pytorch (scripts/make_bu_data.py) uses three folders without image sizes: NAME_att
with `feat` (R, F), NAME_fc with the mean feature and NAME_box with boxes.
MILVLG/bottom-up-attention.pytorch @4dbce86 uses one with x, bbox, num_bbox, image_h and image_w;
its `info` is a pickle and is neither read nor written.
"""

import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

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
from a2cap.data.files.expansion import expansion_limit
from a2cap.data.image_ids import named_id

_NAME = "cocobu"
"""Name of bottom-up features in ImageCaptioning.pytorch."""

Arrays = NDArray[np.generic] | Mapping[str, NDArray[np.generic]]
"""Content of an .npy or an .npz file."""


class NpzSource:
    """The images in a folder of .npz files; read: reads the file of one image."""

    def __init__(self, folder: Path, read: Callable[[Path], ImageFeatures]) -> None:
        self._files = sorted(folder.glob("*.npz"))
        self._read = read

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for path in self._files:
            yield read_or_skip(path.name, partial(self._read, path))

    def __len__(self) -> int:
        return len(self._files)


def write_npz(
    folder: Path,
    images: Iterable[ImageFeatures],
    files: Callable[[ImageFeatures], Mapping[str, Arrays]],
) -> None:
    """Write a folder; files: image -> content by path in it."""
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    for image in images:
        for name, arrays in files(image).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(arrays, Mapping):
                np.savez(path, allow_pickle=False, **arrays)
            else:
                np.save(path, arrays)


def att_box_source(folder: Path, *, sizes: Sizes, ids: Ids = named_id) -> NpzSource:
    """Open the folders NAME_att and NAME_box; raise InputError unless there is one NAME_att."""
    found = sorted(path for path in folder.glob("*_att") if path.is_dir())
    if len(found) != 1:
        raise InputError(
            f"{len(found)} folders NAME_att in {str(folder)!r}; name a folder with exactly one"
        )
    boxes = found[0].with_name(f"{found[0].name.removesuffix('_att')}_box")
    return NpzSource(found[0], partial(_read_att_box, boxes=boxes, sizes=sizes, ids=ids))


def _read_att_box(path: Path, *, boxes: Path, sizes: Sizes, ids: Ids) -> ImageFeatures:
    image_id = ids(path.stem)
    size = image_size(image_id, sizes)
    with ZipFile(path) as archive:
        features = _read_array(_member(archive, "feat"))
    corners = _read_array((boxes / f"{path.stem}.npy").read_bytes())
    return ImageFeatures(image_id, make_regions(corners, features, size=size))


def read_milvlg(path: Path, ids: Ids = named_id) -> ImageFeatures:
    """Read an image of a folder of MILVLG."""
    with ZipFile(path) as archive:
        boxes, features, width, height = (
            _read_array(_member(archive, name)) for name in ("bbox", "x", "image_w", "image_h")
        )
    size = int(width.item()), int(height.item())
    regions = make_regions(boxes, features, size=size)
    return ImageFeatures(ids(path.stem), regions)


def _member(archive: ZipFile, name: str) -> bytes:
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > expansion_limit(info.compress_size):
        raise ValueError(f"{name} expands to {info.file_size:,} bytes")
    return archive.read(info)


def _read_array(content: bytes) -> NDArray[np.float32]:
    """Read the bytes of an .npy file; raise ValueError for a pickle or a wrong number of bytes."""
    # np.load would allocate what the header claims before it reads
    stream = io.BytesIO(content)
    read_header = read_array_header_1_0 if read_magic(stream) == (1, 0) else read_array_header_2_0
    shape, fortran_order, dtype = read_header(stream)
    values = np.frombuffer(stream.read(), dtype)  # rejects pickled objects
    return values.reshape(shape, order="F" if fortran_order else "C").astype(np.float32)


def att_box_files(image: ImageFeatures) -> dict[str, Arrays]:
    """Return the files of an image in the three folders of ImageCaptioning.pytorch."""
    stem, features = str(int(image.image_id)), image.regions.features
    return {
        f"{_NAME}_fc/{stem}.npy": features.mean(axis=0),
        f"{_NAME}_box/{stem}.npy": image.regions.boxes,
        f"{_NAME}_att/{stem}.npz": {"feat": features},
    }


def milvlg_files(image: ImageFeatures) -> dict[str, Arrays]:
    """Return the file of an image in a folder of MILVLG."""
    regions = image.regions
    return {
        f"{image.image_id}.npz": {
            "x": regions.features,
            "bbox": regions.boxes,
            "num_bbox": np.array(len(regions)),
            "image_h": np.array(regions.height),
            "image_w": np.array(regions.width),
        }
    }
