"""The labelled pictures that the section `detector` names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2.data.detection import DetectionData
from a2.data.detection_coco import read_coco
from a2.data.detection_visual_genome import read_visual_genome
from a2.data.errors import ConfigError, InputError
from a2.data.identity import find_pictures
from a2.data.split_list import read_ids
from a2.pipeline.detector_config import DetectorConfig
from a2.pipeline.inputs import named_file

_FILES = ("start", "labels", "ids", "validation_labels", "validation_ids")
_VISUAL_GENOME_FILES = ("attributes", "object_names", "attribute_names")


@dataclass(frozen=True)
class DetectorData:
    """Pictures to learn from and pictures to validate on, of the same classes."""

    training: DetectionData
    validation: DetectionData


def input_files(config: DetectorConfig) -> Iterator[tuple[str, Path]]:
    """Every file of weights, labels, names and lists that the configuration reads, by its field.

    ConfigError where a needed one is not set, InputError where one is not there.
    """
    needed = {"labels"}
    fields: tuple[str, ...] = _FILES
    if config.layout == "visual-genome":
        needed.update(_VISUAL_GENOME_FILES)
        fields = (*_FILES, *_VISUAL_GENOME_FILES)
    for field in fields:
        path: Path | None = getattr(config, field)
        if path is not None or field in needed:
            yield field, _file(path, field)


def picture_files(config: DetectorConfig) -> dict[str, dict[str, Path]]:
    """The pictures that training and validation may read, by the field of their folder and id.

    ConfigError where a folder is not set or is none. Labels are not read: a picture of the folder
    that has none is among them.
    """
    folders: dict[str, list[Path | None]] = {"images": [config.ids]}
    validation = "images" if config.validation_images is None else "validation_images"
    folders.setdefault(validation, []).append(config.validation_ids)
    return {
        field: _listed(find_pictures(_folder(getattr(config, field), field)), lists)
        for field, lists in folders.items()
    }


def _listed(pictures: Mapping[str, Path], lists: Sequence[Path | None]) -> dict[str, Path]:
    """Those of the lists; all where one list is none."""
    wanted: set[str] = set()
    for path in lists:
        wanted |= set(pictures) if path is None else read_ids(path)
    return {name: path for name, path in pictures.items() if name in wanted}


def read_detector_data(config: DetectorConfig) -> DetectorData:
    """Reads what is learnt from and validated on.

    Raises ConfigError for fields that are not set, InputError for files that cannot be read, where
    both have a picture in common, and where their classes or attributes differ.
    """
    training = _read(config, "images", "labels", "ids")
    data = DetectorData(training, read_validation_data(config))
    _require_apart(data)
    _require_same_names(data)
    return data


def read_validation_data(config: DetectorConfig) -> DetectionData:
    """The pictures of validation alone; errors as of `read_detector_data`."""
    images = "images" if config.validation_images is None else "validation_images"
    labels = "labels" if config.validation_labels is None else "validation_labels"
    return _read(config, images, labels, "validation_ids")


def _read(config: DetectorConfig, images: str, labels: str, ids: str) -> DetectionData:
    """What these three fields name."""
    folder = _folder(getattr(config, images), images)
    file = _file(getattr(config, labels), labels)
    listed = getattr(config, ids)
    only = None if listed is None else read_ids(_file(listed, ids))
    if config.layout == "coco":
        return read_coco(file, folder, only=only)
    return read_visual_genome(
        file,
        _file(config.attributes, "attributes"),
        folder,
        object_names=_file(config.object_names, "object_names"),
        attribute_names=_file(config.attribute_names, "attribute_names"),
        only=only,
    )


def _file(path: Path | None, field: str) -> Path:
    return named_file(path, f"detector.{field}")


def _folder(path: Path | None, field: str) -> Path:
    if path is None:
        raise ConfigError(
            f"detector.{field} is not set; name the folder with --set detector.{field}=DIR"
        )
    if not path.is_dir():
        raise ConfigError(f"detector.{field} is no folder: {str(path)!r}; check the path")
    return path


def _require_apart(data: DetectorData) -> None:
    """By their files: pictures of two folders may have the same ids."""
    learnt = {picture.file.resolve() for picture in data.training.pictures}
    shared = [p.image_id for p in data.validation.pictures if p.file.resolve() in learnt]
    if shared:
        raise InputError(
            f"{len(shared):,} pictures are in training and in validation, {shared[0]!r} first; "
            "set detector.ids and detector.validation_ids, or detector.validation_labels"
        )


def _require_same_names(data: DetectorData) -> None:
    for what in ("classes", "attributes"):
        learnt, validated = getattr(data.training, what), getattr(data.validation, what)
        if learnt != validated:
            raise InputError(
                f"labels of validation have {len(validated):,} {what}, not the {len(learnt):,} of "
                "training; take files of one data set"
            )
