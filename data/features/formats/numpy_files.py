"""NumPy files of an image each, in a folder or a zip: .npz, or .npy and _info.npy of mmf.

ImageCaptioning.pytorch (scripts/make_bu_data.py) uses three folders without image sizes: NAME_att
with `feat` (R, F), NAME_fc with the mean feature and NAME_box with boxes.
"""

import io
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import arrays_of, known_arrays
from a2cap.data.features.formats.feature_format import Arrays, Entries, Entry, ImageFeatures
from a2cap.data.features.formats.layouts import ATT_BOX, MILVLG
from a2cap.data.features.formats.pickled import read_pickle
from a2cap.data.files.expansion import read_member

SUFFIXES = (".npz", ".npy")
_INFO = "_info.npy"
_NAME = "cocobu"
"""Name of bottom-up features in ImageCaptioning.pytorch."""

Content = NDArray[np.generic] | Mapping[str, NDArray[np.generic]]
"""Content of an .npy or an .npz file."""


def numpy_container(
    names: Iterable[str], open_file: Callable[[str], BinaryIO], title: str
) -> Entries:
    """Return files by their paths in a folder or zip; open_file: opens one of them."""
    entries = []
    for name in sorted(name for name in names if not name.endswith(_INFO)):
        path = PurePosixPath(name)
        # a number is an id, whatever folder it is in
        image = path.stem if path.stem.isdecimal() else str(path.with_suffix(""))
        read = _read_npz if name.endswith(".npz") else _read_with_info
        entries.append(Entry(image, partial(read, name, open_file)))
    return Entries(f"{title} (NumPy)", entries)


def _read_npz(name: str, open_file: Callable[[str], BinaryIO]) -> Arrays:
    return read_npz(open_file(name))


def _read_with_info(name: str, open_file: Callable[[str], BinaryIO]) -> Arrays:
    with open_file(name) as file, open_file(name.removesuffix(".npy") + _INFO) as info:
        content = read_array(info.read(), may_pickle=True)
        fields = content if isinstance(content, dict) else {}
        return {**fields, "features": read_array(file.read())}


def att_box_container(folder: Path) -> Entries:
    """Return the images of NAME_att and NAME_box; InputError unless there is one NAME_att."""
    folders = sorted(path for path in folder.glob("*_att") if path.is_dir())
    if len(folders) != 1:
        raise InputError(
            f"{len(folders)} folders NAME_att in {str(folder)!r}; name a folder with exactly one"
        )
    boxes = folders[0].with_name(f"{folders[0].name.removesuffix('_att')}_box")
    files = sorted(folders[0].glob("*.npz"))
    entries = [
        Entry(file.stem, partial(_read_with_boxes, file, boxes / f"{file.stem}.npy"))
        for file in files
    ]
    return Entries(f"{folder.name!r} (NumPy)", entries)


def _read_with_boxes(file: Path, boxes: Path) -> Arrays:
    return {**read_npz(file.open("rb")), ATT_BOX.boxes: read_array(boxes.read_bytes())}


def read_npz(file: BinaryIO) -> Arrays:
    """Return the arrays of an .npz file; None in place of those that no layout has."""
    with file, ZipFile(file) as archive:
        names = [member.removesuffix(".npy") for member in archive.namelist()]
        return known_arrays(names, lambda name: read_array(read_member(archive, f"{name}.npy")))


def read_array(content: bytes, *, may_pickle: bool = False) -> object:
    """Read the bytes of an .npy file; raise ValueError for a pickle or a wrong number of bytes.

    may_pickle: read an array of one object too, without running code of it.
    """
    # np.load would allocate what the header claims before it reads
    stream = io.BytesIO(content)
    read_header = read_array_header_1_0 if read_magic(stream) == (1, 0) else read_array_header_2_0
    shape, fortran_order, dtype = read_header(stream)
    if may_pickle and dtype.hasobject:
        return read_pickle(stream.read())
    values = np.frombuffer(stream.read(), dtype)  # rejects pickled objects
    return values.reshape(shape, order="F" if fortran_order else "C")


def write_npz(
    folder: Path,
    images: Iterable[ImageFeatures],
    files: Callable[[ImageFeatures], Mapping[str, Content]],
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


def att_box_files(image: ImageFeatures) -> dict[str, Content]:
    """Return the files of an image in the three folders of ImageCaptioning.pytorch."""
    stem, features = str(int(image.image_id)), image.regions.features
    return {
        f"{_NAME}_fc/{stem}.npy": features.mean(axis=0),
        f"{_NAME}_box/{stem}.npy": image.regions.boxes,
        f"{_NAME}_att/{stem}.npz": {ATT_BOX.features: features},
    }


def milvlg_files(image: ImageFeatures) -> dict[str, Content]:
    """Return the file of an image in a folder of MILVLG."""
    arrays = arrays_of(image, MILVLG)
    return {f"{image.image_id}.npz": {name: np.array(value) for name, value in arrays.items()}}
