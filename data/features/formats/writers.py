"""Writers of region features in the formats of `a2 convert --to`."""

import base64
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import h5py
import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_source import ImageFeatures
from a2cap.data.features.formats.layouts import ATT_BOX, CAFFE, LXMERT, M2, MILVLG, FeatureLayout
from a2cap.data.features.formats.own_files import write_parquet, write_tar

Format = Literal["a2", "caffe", "lxmert", "att-box", "milvlg", "m2", "tar", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

_NAME = "cocobu"
"""Name of bottom-up features in ImageCaptioning.pytorch."""


def write_tsv(path: Path, images: Iterable[ImageFeatures], *, layout: FeatureLayout) -> None:
    """Write a line of each image, without a header line."""
    with path.open("wb") as file:
        for image in images:
            arrays = _arrays_of(image, layout)
            file.write(b"\t".join(_encoded(arrays[name]) for name in layout.columns) + b"\n")


def _write_m2(path: Path, images: Iterable[ImageFeatures]) -> None:
    with h5py.File(path, "w") as file:
        for image in images:
            for name, array in _arrays_of(image, M2).items():
                file[f"{int(image.image_id)}_{name}"] = array


def _write_att_box(folder: Path, images: Iterable[ImageFeatures]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    folders = [folder / f"{_NAME}_{name}" for name in ("fc", "box", "att")]
    for path in folders:
        path.mkdir(parents=True)
    means, boxes, features = folders
    for image in images:
        name, regions = str(int(image.image_id)), image.regions
        np.save(means / name, regions.features.mean(axis=0))
        np.save(boxes / name, regions.boxes)
        np.savez(
            features / name, allow_pickle=False, **{ATT_BOX.fields["features"]: regions.features}
        )


def _write_milvlg(folder: Path, images: Iterable[ImageFeatures]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    folder.mkdir(parents=True)
    for image in images:
        arrays = {name: np.array(value) for name, value in _arrays_of(image, MILVLG).items()}
        np.savez(folder / f"{image.image_id}.npz", allow_pickle=False, **arrays)


@dataclass(frozen=True)
class Writer:
    """The writer of a format.

    write: writes images to a file or folder, on which it replaces what a killed run left.
    has_half: True if features can be float16.
    is_numbered: True if ids are numbers.
    is_flat: True if an id is the name of a file.
    """

    write: Callable[[Path, Iterator[ImageFeatures]], None]
    has_half: bool = False
    is_numbered: bool = False
    is_flat: bool = False

    def check_id(self, image_id: str, target: Path) -> None:
        """Raise InputError for an id that the format cannot contain."""
        if self.is_numbered and not (image_id.isascii() and image_id.isdigit()):
            problem = f"image id {image_id!r} is not a number, which {target.name!r} needs"
        elif self.is_flat and "/" in image_id:
            problem = f"image {image_id!r} is in a subfolder, which {target.name!r} cannot contain"
        else:
            return
        raise InputError(f"{problem}; convert to another format")


WRITERS: Mapping[Format, Writer] = {
    "caffe": Writer(lambda path, images: write_tsv(path, images, layout=CAFFE), is_numbered=True),
    "lxmert": Writer(lambda path, images: write_tsv(path, images, layout=LXMERT)),
    "att-box": Writer(_write_att_box, is_numbered=True),
    "milvlg": Writer(_write_milvlg, is_flat=True),
    "m2": Writer(_write_m2, is_numbered=True),
    "tar": Writer(write_tar, has_half=True),
    "parquet": Writer(write_parquet, has_half=True),
}
"""The formats beside the feature store."""


def _arrays_of(image: ImageFeatures, layout: FeatureLayout) -> dict[str, object]:
    """Return ids, numbers and little-endian arrays by the names of the layout.

    Of class probabilities, only those that are known: a region's own.
    """
    regions = image.regions
    count, attributes = len(regions), regions.attribute_ids
    confidence = regions.attribute_scores
    probabilities = np.zeros((count, max(1, regions.class_ids.max() + 1)), "<f4")
    valid = regions.class_ids >= 0
    probabilities[np.flatnonzero(valid), regions.class_ids[valid]] = regions.scores[valid]
    fields = {
        "image_id": image.image_id,
        "width": regions.width,
        "height": regions.height,
        "count": count,
        "features": regions.features.astype("<f4"),
        "boxes": regions.boxes.astype("<f4"),
        "scores": regions.scores.astype("<f4"),
        "class_ids": regions.class_ids.astype("<i8"),
        "attribute_ids": (np.full(count, -1) if attributes is None else attributes).astype("<i8"),
        "attribute_scores": (np.zeros(count) if confidence is None else confidence).astype("<f4"),
        "probabilities": probabilities,
    }
    return {
        layout.fields[field]: value for field, value in fields.items() if field in layout.fields
    }


def _encoded(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return base64.b64encode(value.tobytes())
    return str(value).encode()
