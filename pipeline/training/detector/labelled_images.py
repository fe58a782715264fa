"""Labelled images of the section `detector`, for training and validation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.annotations.split_list import read_ids
from a2cap.data.detection.coco import read_coco
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.paths import require_file, require_folder
from a2cap.data.image_ids import find_images
from a2cap.pipeline.training.detector.detector_config import DetectorConfig

_FILES = ("labels", "ids", "validation_labels", "validation_ids")
_VISUAL_GENOME_FILES = ("attributes", "object_names", "attribute_names")


@dataclass(frozen=True)
class DetectorData:
    """Training and validation images with the same classes."""

    training: DetectionData
    validation: DetectionData


def input_files(config: DetectorConfig) -> Iterator[tuple[str, Path]]:
    """Yield every configured file of labels, names and lists, with its field.

    Raises ConfigError if a required field is not set, InputError if a file does not exist.
    """
    required = {"labels"}
    fields: tuple[str, ...] = _FILES
    if config.layout == "visual-genome":
        required.update(_VISUAL_GENOME_FILES)
        fields = (*_FILES, *_VISUAL_GENOME_FILES)
    for field in fields:
        path: Path | None = getattr(config, field)
        if path is not None or field in required:
            yield field, _file(path, field)


def image_files(config: DetectorConfig) -> dict[str, dict[str, Path]]:
    """Return the images that training and validation may read, by field of the folder and id.

    Raises ConfigError if a folder is not set or does not exist.
    """
    # labels are large and not read here, so images without labels are included
    lists = {"images": ["ids"]}
    validation = "images" if config.validation_images is None else "validation_images"
    lists.setdefault(validation, []).append("validation_ids")
    found = {}
    for field, listed_by in lists.items():
        images = find_images(_folder(getattr(config, field), field))
        wanted: set[str] = set()
        for name in listed_by:
            listed = _ids(config, name)
            wanted |= images.keys() if listed is None else listed  # no list: all images
        found[field] = {name: path for name, path in images.items() if name in wanted}
    return found


def _ids(config: DetectorConfig, field: str) -> frozenset[str] | None:
    path = getattr(config, field)
    return None if path is None else read_ids(_file(path, field))


def read_detector_data(config: DetectorConfig) -> DetectorData:
    """Read the training images and at most `max_validation_images` validation images.

    Skips images with an unreadable header or another size than in their labels. Raises ConfigError
    for fields that are not set, InputError for data that cannot be used.
    """
    training = _read(config, "images", "labels", "ids")
    data = DetectorData(training, read_validation_data(config))
    _require_disjoint(data)
    _require_same_names(data)
    return data


def read_validation_data(config: DetectorConfig) -> DetectionData:
    """Read the validation images, the first by id; raise the errors of `read_detector_data`."""
    images = "images" if config.validation_images is None else "validation_images"
    labels = "labels" if config.validation_labels is None else "validation_labels"
    data = _read(config, images, labels, "validation_ids")
    return replace(data, images=data.images[: config.max_validation_images])


def _read(config: DetectorConfig, images: str, labels: str, ids: str) -> DetectionData:
    folder = _folder(getattr(config, images), images)
    file = _file(getattr(config, labels), labels)
    only = _ids(config, ids)
    if config.layout == "coco":
        return _skip_misfits(read_coco(file, folder, only=only))
    from a2cap.data.detection.visual_genome import read_visual_genome  # imports Pillow

    data = read_visual_genome(
        file,
        _file(config.attributes, "attributes"),
        folder,
        object_names=_file(config.object_names, "object_names"),
        attribute_names=_file(config.attribute_names, "attribute_names"),
        only=only,
    )
    return _skip_misfits(data)


def _skip_misfits(data: DetectionData) -> DetectionData:
    """Skip the images whose labels do not fit their pixels."""
    misfits = {image.image_id: _misfit(image) for image in data.images}
    skipped = tuple(SkippedItem(name, reason) for name, reason in misfits.items() if reason)
    check_skip_limit(skipped, len(data.images), "labelled images")
    kept = tuple(image for image in data.images if not misfits[image.image_id])
    if not kept:
        raise InputError(
            f"none of {len(skipped):,} labelled images can be used: {skipped[0].image_id!r} "
            f"({skipped[0].reason}); use the images that were labelled"
        )
    return replace(data, images=kept, skipped=(*data.skipped, *skipped))


def _misfit(image: LabelledImage) -> str | None:
    """Return why the file does not fit its labels, or None if it does."""
    from a2cap.extract.image import image_size  # imports OpenCV

    try:
        width, height = image_size(image.file)
    except A2Error as error:  # InputError or UnreadableError
        return str(error)
    if (width, height) == (image.width, image.height):
        return None
    return (
        f"{width} x {height} pixels after EXIF rotation, its labels expect "
        f"{image.width} x {image.height}"
    )


def _file(path: Path | None, field: str) -> Path:
    return require_file(path, f"detector.{field}")


def _folder(path: Path | None, field: str) -> Path:
    return require_folder(path, f"detector.{field}")


def _require_disjoint(data: DetectorData) -> None:
    # compared by file, since images of two folders may have the same ids
    training = {image.file.resolve() for image in data.training.images}
    shared = [p.image_id for p in data.validation.images if p.file.resolve() in training]
    if shared:
        raise InputError(
            f"{len(shared):,} images are in training and in validation: {shared[0]!r} first; "
            "set detector.ids and detector.validation_ids, or detector.validation_labels"
        )


def _require_same_names(data: DetectorData) -> None:
    for kind in ("classes", "attributes"):
        training, validation = getattr(data.training, kind), getattr(data.validation, kind)
        if len(training) != len(validation):
            raise InputError(
                f"validation labels have {len(validation):,} {kind}, training labels "
                f"{len(training):,}; use files of one data set"
            )
        for theirs, ours in zip(training, validation, strict=True):
            if theirs != ours:
                raise InputError(
                    f"{kind} of training and validation labels differ: {theirs!r} and {ours!r}; "
                    "use files of one data set"
                )
