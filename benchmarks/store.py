"""Feature store compared with one HDF5 array per field, a row for each image of equal size.

Only the feature store verifies what it reads, takes images of any number of regions, and has its
data on disk when the writer returns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from a2cap.data.batches.loader import image_batches
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import Regions

REGIONS, WIDTH = 36, 2048
DISTINCT = 64
"""Number of images with different values; the others repeat them, as neither form compresses."""

Images = Mapping[str, Regions]


def make_images(count: int) -> dict[str, Regions]:
    """Return random regions with ids like COCO's."""
    rng = np.random.default_rng(0)
    distinct = [
        Regions(
            boxes=rng.random((REGIONS, 4), dtype=np.float32) * 400,
            features=rng.random((REGIONS, WIDTH), dtype=np.float32).astype(np.float16),
            scores=rng.random(REGIONS, dtype=np.float32),
            class_ids=rng.integers(0, 1600, REGIONS, dtype=np.int32),
            attribute_ids=rng.integers(0, 400, REGIONS, dtype=np.int32),
            width=640,
            height=480,
        )
        for _ in range(min(count, DISTINCT))
    ]
    return {f"{index + 1:012d}": distinct[index % len(distinct)] for index in range(count)}


def write_store(folder: Path, images: Images) -> None:
    """Write and seal a feature store."""
    with FeatureWriter(folder / "features.lmdb") as writer:
        for image_id, regions in images.items():
            writer.add(image_id, regions)
        writer.seal()


def read_store(folder: Path, image_ids: Sequence[str]) -> None:
    """Read a feature store, verifying checksums."""
    store = FeatureStore(folder / "features.lmdb")
    for image_id in image_ids:
        store[image_id]


def load_batches(folder: Path, image_ids: Sequence[str], *, workers: int) -> None:
    """Load batches of 50 images, padded and widened to float32, as training does."""
    store = folder / "features.lmdb"
    for _ in image_batches(store, image_ids, batch_size=50, workers=workers):
        pass


def write_arrays(folder: Path, images: Images) -> None:
    """Write a dataset per field."""
    with h5py.File(folder / "arrays.hdf5", "w") as file:
        for number, regions in enumerate(images.values()):
            for name, values in vars(regions).items():
                if not number and values is not None:
                    array = np.asarray(values)
                    file.create_dataset(name, (len(images), *array.shape), array.dtype)
                if name in file:
                    file[name][number] = values
        file["ids"] = [*images]


def read_arrays(folder: Path, image_ids: Sequence[str]) -> None:
    """Open the file once and read rows by number."""
    with h5py.File(folder / "arrays.hdf5", "r") as file:
        rows = {image_id.decode(): number for number, image_id in enumerate(file["ids"][()])}
        datasets = {name: file[name] for name in file if name != "ids"}
        for image_id in image_ids:
            fields = {name: data[rows[image_id]] for name, data in datasets.items()}
            Regions(**{"attribute_ids": None, **fields})
