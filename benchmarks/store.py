"""Feature store compared with HDF5 datasets per image.

Every form stores and returns the same regions. Only the feature store verifies what it reads, and
only its data is on disk when the writer returns; HDF5 leaves that to the system.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import h5py
import numpy as np

from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import Regions
from benchmarks.measure import Timing, interleaved, print_machine, print_timings

REGIONS, WIDTH = 36, 2048
DISTINCT = 64
"""Number of images with different values; the others repeat them, as no form compresses."""

OURS, UNSEALED, HDF5 = "LMDB", "LMDB without seal", "HDF5"

Images = Mapping[str, Regions]


@dataclass(frozen=True)
class Format:
    """write: store all images in an empty folder; read: load the images with these ids."""

    write: Callable[[Path, Images], None]
    read: Callable[[Path, Sequence[str]], None]


def make_images(count: int) -> dict[str, Regions]:
    """Return random regions with ids like COCO's."""
    rng = np.random.default_rng(0)
    distinct = [_regions(rng) for _ in range(min(count, DISTINCT))]
    return {f"{index + 1:012d}": distinct[index % len(distinct)] for index in range(count)}


def _regions(rng: np.random.Generator) -> Regions:
    return Regions(
        boxes=rng.random((REGIONS, 4), dtype=np.float32) * 400,
        features=rng.random((REGIONS, WIDTH), dtype=np.float32).astype(np.float16),
        scores=rng.random(REGIONS, dtype=np.float32),
        class_ids=rng.integers(0, 1600, REGIONS, dtype=np.int32),
        attribute_ids=rng.integers(0, 400, REGIONS, dtype=np.int32),
        width=640,
        height=480,
    )


def write_lmdb(folder: Path, images: Images, *, seal: bool = False) -> None:
    """Write a feature store with durable commits; seal: read back and verify it at the end."""
    with FeatureWriter(folder / "features.lmdb") as writer:
        for image_id, regions in images.items():
            writer.add(image_id, regions)
        if seal:
            writer.seal()


def read_lmdb(folder: Path, image_ids: Sequence[str]) -> None:
    """Read a feature store, verifying checksums."""
    store = FeatureStore(folder / "features.lmdb")
    for image_id in image_ids:
        store[image_id]


def write_hdf5(folder: Path, images: Images) -> None:
    """Write one file with datasets ID_features, ID_boxes and so on, like M2's feature file."""
    with h5py.File(folder / "features.hdf5", "w") as file:
        for image_id, regions in images.items():
            for name, array in _arrays(regions).items():
                file[f"{image_id}_{name}"] = array


def read_hdf5(folder: Path, image_ids: Sequence[str]) -> None:
    """Open the file once and read datasets by name."""
    names = _arrays(_regions(np.random.default_rng(0)))
    with h5py.File(folder / "features.hdf5", "r") as file:
        for image_id in image_ids:
            _as_regions({name: file[f"{image_id}_{name}"][()] for name in names})


def _arrays(regions: Regions) -> dict[str, np.ndarray]:
    arrays = {
        "boxes": regions.boxes,
        "features": regions.features,
        "scores": regions.scores,
        "class_ids": regions.class_ids,
        "size": np.array([regions.width, regions.height], np.int32),
    }
    if regions.attribute_ids is not None:
        arrays["attribute_ids"] = regions.attribute_ids
    return arrays


def _as_regions(arrays: dict[str, np.ndarray]) -> Regions:
    width, height = (int(side) for side in arrays.pop("size"))
    return Regions(**arrays, width=width, height=height)


FORMATS = {
    OURS: Format(partial(write_lmdb, seal=True), read_lmdb),
    HDF5: Format(write_hdf5, read_hdf5),
}


def time_writing(folder: Path, images: Images, *, rounds: int) -> dict[str, Timing]:
    """Time each format, and the store without its seal, into a folder that is emptied each time."""

    def emptied() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    writers = {UNSEALED: write_lmdb, **{name: form.write for name, form in FORMATS.items()}}
    forms = {name: partial(write, folder, images) for name, write in writers.items()}
    timings = interleaved(forms, rounds=rounds, before=emptied)
    shutil.rmtree(folder)
    return timings


def time_reading(folder: Path, images: Images, *, rounds: int) -> dict[str, Timing]:
    """Time each format in one random order, from a warm cache."""
    image_ids = [str(image_id) for image_id in np.random.default_rng(1).permutation([*images])]
    forms = {}
    for name, form in FORMATS.items():
        path = folder / name
        path.mkdir()
        form.write(path, images)
        forms[name] = partial(form.read, path, image_ids)
    return interleaved(forms, rounds=rounds)


@click.command()
@click.option("--quick", is_flag=True, help="Use a few images, only to check that it runs.")
def main(quick: bool) -> None:
    """Time writing and reading of 36 x 2048 float16 features per image."""
    print_machine()
    count, rounds = (20, 1) if quick else (1000, 5)
    images = make_images(count)
    with tempfile.TemporaryDirectory() as folder:
        for title, measure in (("writing", time_writing), ("reading", time_reading)):
            path = Path(folder) / title
            path.mkdir()
            timings = measure(path, images, rounds=rounds)
            print_timings(f"{title}, {count} images", timings, reference=HDF5, count=count)


if __name__ == "__main__":
    main()
