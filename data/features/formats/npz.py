"""Folders of NumPy files, one per image.

ImageCaptioning.pytorch (scripts/make_bu_data.py) has three of them side by side: NAME_att with
`feat` (R, F), NAME_fc with the mean feature, NAME_box with boxes, and no size of the image.
MILVLG/bottom-up-attention.pytorch @4dbce86 has one file with x, bbox, num_bbox, image_h, image_w;
its `info` is a pickle and is neither read nor written.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

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

_NAME = "cocobu"
"""What ImageCaptioning.pytorch calls bottom-up features."""


class AttBoxSource:
    """The folders NAME_att and NAME_box of ImageCaptioning.pytorch; sizes come from elsewhere."""

    def __init__(self, folder: Path, *, sizes: Sizes) -> None:
        self.features = att_folder(folder)
        self.boxes = self.features.with_name(f"{self.features.name.removesuffix('_att')}_box")
        self._sizes = sizes

    def __iter__(self) -> Iterator[ImageRegions | SkippedItem]:
        for path in _files(self.features):
            yield _readable(path, self._read)

    def __len__(self) -> int:
        return len(_files(self.features))

    def _read(self, path: Path) -> ImageRegions:
        identity = identity_of(f"{path.stem}.jpg")
        width, height = size_of_image(identity, self._sizes)
        with np.load(path) as arrays:
            features = np.asarray(arrays["feat"], np.float32)
        boxes = np.asarray(np.load(self.boxes / f"{path.stem}.npy"), np.float32)
        _require_rows(boxes, features)
        return ImageRegions(identity, regions_of(boxes, features, width=width, height=height))


class MilvlgSource:
    """A folder of MILVLG's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[ImageRegions | SkippedItem]:
        for path in _files(self.folder):
            yield _readable(path, self._read)

    def __len__(self) -> int:
        return len(_files(self.folder))

    def _read(self, path: Path) -> ImageRegions:
        with np.load(path) as arrays:
            boxes = np.asarray(arrays["bbox"], np.float32)
            features = np.asarray(arrays["x"], np.float32)
            width, height = int(arrays["image_w"]), int(arrays["image_h"])
        _require_rows(boxes, features)
        regions = regions_of(boxes, features, width=width, height=height)
        return ImageRegions(identity_of(f"{path.stem}.jpg"), regions)


class AttBoxTarget:
    """Fills a folder by way of `folder.partial`; every file is whole or not there."""

    def __init__(self, folder: Path) -> None:
        self._place = _Folder(folder, parts=(f"{_NAME}_fc", f"{_NAME}_box", f"{_NAME}_att"))

    def __contains__(self, image_id: object) -> bool:
        return (self._place.parts[-1] / _file_name(str(image_id), ".npz")).exists()

    def add(self, image_id: str, regions: Regions) -> None:
        """Writes the three files; the features come last, so that their file tells the others."""
        mean, boxes, features = self._place.parts
        stem = str(decimal_id(image_id, place=self._place.final))
        vectors = regions.features.astype(np.float32)
        _write(mean / f"{stem}.npy", lambda path: np.save(path, vectors.mean(axis=0)))
        _write(boxes / f"{stem}.npy", lambda path: np.save(path, regions.boxes))
        _write(features / f"{stem}.npz", lambda path: np.savez(path, feat=vectors))

    def finish(self) -> None:
        """Renames the folder into place."""
        self._place.finish()

    def close(self) -> None:
        """Every file is on the disk already."""


class MilvlgTarget:
    """Fills a folder by way of `folder.partial`; every file is whole or not there."""

    def __init__(self, folder: Path) -> None:
        self._place = _Folder(folder, parts=(".",))

    def __contains__(self, image_id: object) -> bool:
        return (self._place.parts[0] / f"{image_id}.npz").exists()

    def add(self, image_id: str, regions: Regions) -> None:
        """Writes one file; InputError for an id with a folder in it."""
        if "/" in image_id:
            raise InputError(
                f"image {image_id!r} lies in a folder, which {self._place.final.name!r} has not; "
                "convert to another format"
            )
        arrays = {
            "x": regions.features.astype(np.float32),
            "bbox": regions.boxes,
            "num_bbox": np.array(len(regions)),
            "image_h": np.array(regions.height),
            "image_w": np.array(regions.width),
        }
        target = self._place.parts[0] / f"{image_id}.npz"
        _write(target, lambda path: np.savez(path, allow_pickle=False, **arrays))

    def finish(self) -> None:
        """Renames the folder into place."""
        self._place.finish()

    def close(self) -> None:
        """Every file is on the disk already."""


class _Folder:
    """A folder that is filled under another name."""

    def __init__(self, final: Path, *, parts: tuple[str, ...]) -> None:
        self.final = final
        self._partial = final.with_name(f"{final.name}.partial")
        self.parts = [self._partial / part for part in parts]
        for part in self.parts:
            part.mkdir(parents=True, exist_ok=True)

    def finish(self) -> None:
        self._partial.rename(self.final)


def att_folder(folder: Path) -> Path:
    """The one folder NAME_att below `folder`; InputError where there is none or another."""
    found = sorted(path for path in folder.glob("*_att") if path.is_dir())
    if len(found) != 1:
        raise InputError(
            f"{len(found)} folders NAME_att in {str(folder)!r}; name a folder that has one"
        )
    return found[0]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def _readable(path: Path, read: Callable[[Path], ImageRegions]) -> ImageRegions | SkippedItem:
    try:
        return read(path)
    except KeyError as error:
        return SkippedItem(path.name, str(error.args[0]))
    except (OSError, ValueError, EOFError, BadZipFile, InputError) as error:
        return SkippedItem(path.name, str(error))


def _require_rows(boxes: NDArray[np.float32], features: NDArray[np.float32]) -> None:
    if features.ndim != 2 or boxes.shape != (len(features), 4):
        raise InputError(
            f"boxes of shape {boxes.shape} beside features of shape {features.shape}; "
            "make the file again"
        )


def _file_name(image_id: str, suffix: str) -> str:
    return f"{int(image_id) if image_id.isdigit() else image_id}{suffix}"


def _write(path: Path, save: Callable[[Path], None]) -> None:
    """Whole or not at all; the name keeps its suffix, which NumPy would add otherwise."""
    partial = path.with_name(f".{path.name}")
    save(partial)
    partial.replace(path)
