"""Folders of NumPy files, one per image.

ImageCaptioning.pytorch (scripts/make_bu_data.py) uses three folders without image sizes: NAME_att
with `feat` (R, F), NAME_fc with the mean feature and NAME_box with boxes.
MILVLG/bottom-up-attention.pytorch @4dbce86 uses one with x, bbox, num_bbox, image_h and image_w;
its `info` is a pickle and is neither read nor written.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import (
    ImageFeatures,
    Sizes,
    check_shapes,
    decimal_id,
    image_size,
    make_regions,
)
from a2cap.data.image_ids import image_id as image_id_of
from a2cap.data.regions import Regions

_NAME = "cocobu"
"""Name of bottom-up features in ImageCaptioning.pytorch."""


class AttBoxSource:
    """The images in the folders NAME_att and NAME_box of ImageCaptioning.pytorch."""

    def __init__(self, folder: Path, *, sizes: Sizes) -> None:
        self.features = att_folder(folder)
        self.boxes = self.features.with_name(f"{self.features.name.removesuffix('_att')}_box")
        self._sizes = sizes

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for path in _files(self.features):
            yield _read_or_skip(path, self._read)

    def __len__(self) -> int:
        return len(_files(self.features))

    def _read(self, path: Path) -> ImageFeatures:
        image_id = image_id_of(f"{path.stem}.jpg")
        width, height = image_size(image_id, self._sizes)
        with np.load(path) as arrays:
            features = np.asarray(arrays["feat"], np.float32)
        boxes = np.asarray(np.load(self.boxes / f"{path.stem}.npy"), np.float32)
        check_shapes(boxes, features)
        return ImageFeatures(image_id, make_regions(boxes, features, width=width, height=height))


class MilvlgSource:
    """The images in a folder of MILVLG."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for path in _files(self.folder):
            yield _read_or_skip(path, self._read)

    def __len__(self) -> int:
        return len(_files(self.folder))

    def _read(self, path: Path) -> ImageFeatures:
        with np.load(path) as arrays:
            boxes = np.asarray(arrays["bbox"], np.float32)
            features = np.asarray(arrays["x"], np.float32)
            width, height = int(arrays["image_w"]), int(arrays["image_h"])
        check_shapes(boxes, features)
        regions = make_regions(boxes, features, width=width, height=height)
        return ImageFeatures(image_id_of(f"{path.stem}.jpg"), regions)


class AttBoxTarget:
    """The writer of the three folders of ImageCaptioning.pytorch, by way of `folder.partial`."""

    def __init__(self, folder: Path) -> None:
        self._folder = _PartialFolder(folder, parts=(f"{_NAME}_fc", f"{_NAME}_box", f"{_NAME}_att"))

    def __contains__(self, image_id: object) -> bool:
        return (self._folder.parts[-1] / _file_name(str(image_id), ".npz")).exists()

    def add(self, image_id: str, regions: Regions) -> None:
        """Write the three files of an image."""
        mean, boxes, features = self._folder.parts
        stem = str(decimal_id(image_id, target=self._folder.final))
        vectors = regions.features.astype(np.float32)
        _write(mean / f"{stem}.npy", lambda path: np.save(path, vectors.mean(axis=0)))
        _write(boxes / f"{stem}.npy", lambda path: np.save(path, regions.boxes))
        # features last: their file marks a complete image
        _write(features / f"{stem}.npz", lambda path: np.savez(path, feat=vectors))

    def finish(self) -> None:
        """Rename the folder to its path."""
        self._folder.finish()

    def close(self) -> None:
        """Do nothing: every file is on the disk already."""


class MilvlgTarget:
    """The writer of a folder of MILVLG, by way of `folder.partial`."""

    def __init__(self, folder: Path) -> None:
        self._folder = _PartialFolder(folder, parts=(".",))

    def __contains__(self, image_id: object) -> bool:
        return (self._folder.parts[0] / f"{image_id}.npz").exists()

    def add(self, image_id: str, regions: Regions) -> None:
        """Write one file; raise InputError for an id with a folder in it."""
        if "/" in image_id:
            raise InputError(
                f"image {image_id!r} is in a subfolder, which {self._folder.final.name!r} cannot "
                "contain; convert to another format"
            )
        arrays = {
            "x": regions.features.astype(np.float32),
            "bbox": regions.boxes,
            "num_bbox": np.array(len(regions)),
            "image_h": np.array(regions.height),
            "image_w": np.array(regions.width),
        }
        target = self._folder.parts[0] / f"{image_id}.npz"
        _write(target, lambda path: np.savez(path, allow_pickle=False, **arrays))

    def finish(self) -> None:
        """Rename the folder to its path."""
        self._folder.finish()

    def close(self) -> None:
        """Do nothing: every file is on the disk already."""


class _PartialFolder:
    """A folder that has a temporary name until it is finished."""

    def __init__(self, final: Path, *, parts: tuple[str, ...]) -> None:
        self.final = final
        self._partial = final.with_name(f"{final.name}.partial")
        self.parts = [self._partial / part for part in parts]
        for part in self.parts:
            part.mkdir(parents=True, exist_ok=True)

    def finish(self) -> None:
        self._partial.rename(self.final)


def att_folder(folder: Path) -> Path:
    """Return the folder NAME_att in `folder`; raise InputError unless there is exactly one."""
    found = sorted(path for path in folder.glob("*_att") if path.is_dir())
    if len(found) != 1:
        raise InputError(
            f"{len(found)} folders NAME_att in {str(folder)!r}; name a folder with exactly one"
        )
    return found[0]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def _read_or_skip(path: Path, read: Callable[[Path], ImageFeatures]) -> ImageFeatures | SkippedItem:
    try:
        return read(path)
    except KeyError as error:
        return SkippedItem(path.name, str(error.args[0]))
    except (OSError, ValueError, EOFError, BadZipFile, InputError) as error:
        return SkippedItem(path.name, str(error))


def _file_name(image_id: str, suffix: str) -> str:
    return f"{int(image_id) if image_id.isdigit() else image_id}{suffix}"


def _write(path: Path, save: Callable[[Path], None]) -> None:
    """Write a file atomically."""
    # a name that keeps its suffix, because NumPy would add it
    partial = path.with_name(f".{path.name}")
    save(partial)
    partial.replace(path)
