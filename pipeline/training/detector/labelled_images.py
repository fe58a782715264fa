"""Labelled images of the section `detector`, for training and validation."""

from dataclasses import dataclass, replace

from a2cap.data.detection.coco import read_coco
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.detection.visual_genome import read_visual_genome
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.image_file import image_size
from a2cap.data.files.paths import require_file, require_folder
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit
from a2cap.data.image_ids import named_id
from a2cap.pipeline.training.detector.detector_config import DetectorConfig, listed_names


@dataclass(frozen=True)
class DetectorData:
    """Training and validation images with the same classes."""

    training: DetectionData
    validation: DetectionData


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
    folder = require_folder(getattr(config, images), f"detector.{images}")
    file = require_file(getattr(config, labels), f"detector.{labels}")
    only = listed_names(config, ids)
    if config.layout == "coco":
        return _skip_misfits(read_coco(file, folder, only=only))
    data = read_visual_genome(
        file,
        require_file(config.attributes, "detector.attributes"),
        folder,
        object_names=require_file(config.object_names, "detector.object_names"),
        attribute_names=require_file(config.attribute_names, "detector.attribute_names"),
        only=None if only is None else {*map(named_id, only)},
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
