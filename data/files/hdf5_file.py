"""Datasets of HDF5 files, read only if the file itself contains their values."""

import h5py

from a2cap.data.files.expansion import expansion_limit


def own_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset of a file; raise KeyError if it is missing, ValueError if it is not inside.

    HDF5 can refer to any file of the machine, by links, virtual datasets and external storage, and
    can claim a size of which nothing is stored.
    """
    dataset = file[name] if is_inside(file, name) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external:
        raise ValueError(f"{name} is not a dataset inside the file; copy its values into the file")
    if dataset.nbytes > expansion_limit(dataset.id.get_storage_size()):
        raise ValueError(f"{name} claims {dataset.nbytes:,} bytes, few of them are stored")
    return dataset


def is_inside(file: h5py.File, path: str) -> bool:
    """Return False if a part of a path in the file is a link to another place."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        # in order, because HDF5 follows the links before the last part
        link = file.get("/".join(parts[:end]), getlink=True)
        if not isinstance(link, h5py.HardLink):
            return link is None
    return True
