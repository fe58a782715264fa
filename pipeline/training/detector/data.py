"""The labelled images that the section `detector` names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.annotations.split_list import read_ids
from a2cap.data.detection.coco import read_coco
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.detection.visual_genome import read_visual_genome
from a2cap.data.errors import InputError
from a2cap.data.files.paths import require_file, require_folder
from a2cap.data.image_ids import find_images
from a2cap.extract.image import image_size
from a2cap.pipeline.training.detector.config import DetectorConfig

_FILES = ("labels", "ids", "validation_labels", "validation_ids")
_VISUAL_GENOME_FILES = ("attributes", "object_names", "attribute_names")


@dataclass(frozen=True)
class DetectorData:
    """Images to learn from and images to validate on, of the same classes."""

    training: DetectionData
    validation: DetectionData


def input_files(config: DetectorConfig) -> Iterator[tuple[str, Path]]:
    """Every file of labels, names and lists that the configuration reads, by its field.

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


def image_files(config: DetectorConfig) -> dict[str, dict[str, Path]]:
    """The images that training and validation may read, by the field of their folder and id.

    ConfigError where a folder is not set or is none. Labels are not read: an image of the folder
    that has none is among them.
    """
    lists = {"images": ["ids"]}
    validation = "images" if config.validation_images is None else "validation_images"
    lists.setdefault(validation, []).append("validation_ids")
    return {
        field: _listed(find_images(_folder(getattr(config, field), field)), config, listed_by)
        for field, listed_by in lists.items()
    }


def _listed(
    images: Mapping[str, Path], config: DetectorConfig, lists: Sequence[str]
) -> dict[str, Path]:
    """Those of the lists that the fields name; all where one names none."""
    wanted: set[str] = set()
    for field in lists:
        listed = _ids(config, field)
        wanted |= set(images) if listed is None else listed
    return {name: path for name, path in images.items() if name in wanted}


def _ids(config: DetectorConfig, field: str) -> frozenset[str] | None:
    path = getattr(config, field)
    return None if path is None else read_ids(_file(path, field))


def read_detector_data(config: DetectorConfig) -> DetectorData:
    """Read the images to learn from and at most `max_validation_images` to validate on.

    An image whose header cannot be read, or that is of another size than its labels say, is
    skipped. Raises ConfigError for fields that are not set, InputError for files that cannot be
    read, where too many images are skipped, where both have an image in common, and where their
    classes or attributes differ.
    """
    training = _read(config, "images", "labels", "ids")
    data = DetectorData(training, read_validation_data(config))
    _require_apart(data)
    _require_same_names(data)
    return data


def read_validation_data(config: DetectorConfig) -> DetectionData:
    """The images of validation alone, the first ones by id; errors as of `read_detector_data`."""
    images = "images" if config.validation_images is None else "validation_images"
    labels = "labels" if config.validation_labels is None else "validation_labels"
    data = _read(config, images, labels, "validation_ids")
    return replace(data, images=data.images[: config.max_validation_images])


def _read(config: DetectorConfig, images: str, labels: str, ids: str) -> DetectionData:
    """What these three fields name."""
    folder = _folder(getattr(config, images), images)
    file = _file(getattr(config, labels), labels)
    only = _ids(config, ids)
    if config.layout == "coco":
        return _without_misfits(read_coco(file, folder, only=only))
    data = read_visual_genome(
        file,
        _file(config.attributes, "attributes"),
        folder,
        object_names=_file(config.object_names, "object_names"),
        attribute_names=_file(config.attribute_names, "attribute_names"),
        only=only,
    )
    return _without_misfits(data)


def _without_misfits(data: DetectionData) -> DetectionData:
    """Without the images whose boxes would lie elsewhere than their labels mean."""
    misfits = {image.image_id: _misfit(image) for image in data.images}
    skipped = tuple(SkippedItem(name, reason) for name, reason in misfits.items() if reason)
    check_skip_limit(skipped, len(data.images), "labelled images")
    kept = tuple(image for image in data.images if not misfits[image.image_id])
    if not kept:
        raise InputError(
            f"none of {len(skipped):,} labelled images can be used: {skipped[0].image_id!r} "
            f"({skipped[0].reason}); take the images that were labelled"
        )
    return replace(data, images=kept, skipped=(*data.skipped, *skipped))


def _misfit(image: LabelledImage) -> str | None:
    """Why the file does not fit its labels, None where it does."""
    try:
        width, height = image_size(image.file)
    except InputError as error:
        return str(error)
    if (width, height) == (image.width, image.height):
        return None
    return (
        f"{width} x {height} pixels as it is shown, its labels are of "
        f"{image.width} x {image.height}"
    )


def _file(path: Path | None, field: str) -> Path:
    return require_file(path, f"detector.{field}")


def _folder(path: Path | None, field: str) -> Path:
    return require_folder(path, f"detector.{field}")


def _require_apart(data: DetectorData) -> None:
    """By their files: images of two folders may have the same ids."""
    learnt = {image.file.resolve() for image in data.training.images}
    shared = [p.image_id for p in data.validation.images if p.file.resolve() in learnt]
    if shared:
        raise InputError(
            f"{len(shared):,} images are in training and in validation, {shared[0]!r} first; "
            "set detector.ids and detector.validation_ids, or detector.validation_labels"
        )


def _require_same_names(data: DetectorData) -> None:
    for what in ("classes", "attributes"):
        learnt, validated = getattr(data.training, what), getattr(data.validation, what)
        if len(learnt) != len(validated):
            raise InputError(
                f"labels of validation have {len(validated):,} {what}, not the {len(learnt):,} of "
                "training; take files of one data set"
            )
        for theirs, ours in zip(learnt, validated, strict=True):
            if theirs != ours:
                raise InputError(
                    f"labels of validation know {ours!r} among the {what} where those of training "
                    f"know {theirs!r}; take files of one data set"
                )
