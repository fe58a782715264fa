"""NumPy files of an image each, in a folder or a zip: .npz, or .npy and _info.npy of mmf.

ImageCaptioning.pytorch (scripts/make_bu_data.py) uses three folders without image sizes: NAME_att
with `feat` (R, F), NAME_fc with the mean feature and NAME_box with boxes.
"""

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import Arrays, known_arrays
from a2cap.data.features.formats.dictionaries import read_pickle
from a2cap.data.features.formats.feature_source import Container, Entry
from a2cap.data.features.formats.layouts import ATT_BOX
from a2cap.data.files.expansion import read_member

OpenFile = Callable[[], BinaryIO]
SUFFIXES = (".npz", ".npy")
_INFO = "_info.npy"


def opener(path: Path) -> OpenFile:
    """Return what opens a file from its start."""
    return lambda: path.open("rb")


def numpy_container(files: Mapping[str, OpenFile], name: str) -> Container:
    """Return the images of files by their paths in a folder or zip."""
    entries = []
    for file in sorted(file for file in files if not file.endswith(_INFO)):
        path = PurePosixPath(file)
        # a number is an id, whatever folder it is in
        image = path.stem if path.stem.isdecimal() else str(path.with_suffix(""))
        read = partial(read_npz, files[file])
        if file.endswith(".npy"):
            info = files.get(file.removesuffix(".npy") + _INFO)
            read = partial(_read_with_info, files[file], info)
        entries.append(Entry(image, read))
    return Container.of(f"{name!r} (NumPy)", entries)


def att_box_container(folder: Path) -> Container:
    """Return the images of NAME_att and NAME_box; InputError unless there is one NAME_att."""
    folders = sorted(path for path in folder.glob("*_att") if path.is_dir())
    if len(folders) != 1:
        raise InputError(
            f"{len(folders)} folders NAME_att in {str(folder)!r}; name a folder with exactly one"
        )
    boxes = folders[0].with_name(f"{folders[0].name.removesuffix('_att')}_box")
    entries = [
        Entry(file.stem, partial(_read_with_boxes, file, boxes / f"{file.stem}.npy"))
        for file in sorted(folders[0].glob("*.npz"))
    ]
    return Container.of(f"{folder.name!r} (NumPy)", entries)


def _read_with_boxes(file: Path, boxes: Path) -> Arrays:
    return {**read_npz(opener(file)), ATT_BOX.fields["boxes"]: read_array(boxes.read_bytes())}


def _read_with_info(open_file: OpenFile, open_info: OpenFile | None) -> Arrays:
    if open_info is None:
        raise InputError(f"no ID{_INFO} with its boxes is beside it; copy it there")
    with open_file() as file, open_info() as info:
        fields = read_array(info.read(), may_pickle=True)
        arrays = fields if isinstance(fields, dict) else {}
        return {**arrays, "features": read_array(file.read())}


def read_npz(open_file: OpenFile) -> Arrays:
    """Return the arrays of an .npz file; None in place of those that no layout has."""
    with open_file() as file, ZipFile(file) as archive:
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
