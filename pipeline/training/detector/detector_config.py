"""Configuration of the section `detector`, and the files that it names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.data.annotations.split_list import read_keys
from a2cap.data.files.paths import require_file, require_folder
from a2cap.data.image_ids import find_images, named_id
from a2cap.pipeline.training.training_config import Count, Fraction, TrainingConfig

Side = Annotated[float, Field(gt=0)]
Width = Annotated[int, Field(ge=1, le=2**16)]

_FILES = ("labels", "ids", "validation_labels", "validation_ids")
_VISUAL_GENOME_FILES = ("attributes", "object_names", "attribute_names")


class DetectorConfig(TrainingConfig):
    """Training of a detector (Ren et al. 2015; Anderson et al. 2018)."""

    layout: Literal["coco", "visual-genome"] = "coco"
    """Format of `labels`: COCO instances, optionally with attributes, or Visual Genome objects."""
    images: Path | None = None
    """Folder of the images, searched recursively."""
    labels: Path | None = None
    """COCO's instances.json, or Visual Genome's objects.json."""
    ids: Path | None = None
    """List of the training images, one file name or its id a line; null is all of `labels`."""
    validation_images: Path | None = None
    """Folder of the validation images; null is `images`."""
    validation_labels: Path | None = None
    """Labels of the validation images; null is `labels`."""
    validation_ids: Path | None = None
    """List of the validation images; null is all of `validation_labels`."""
    attributes: Path | None = None
    """Visual Genome's attributes.json."""
    object_names: Path | None = None
    """Class names, one a line, synonyms after commas; needed by visual-genome."""
    attribute_names: Path | None = None
    """Attribute names in the same form; needed by visual-genome."""
    depth: Literal[18, 50, 101, 152] = 101
    """Layers of the ResNet."""
    width: Width = 64
    """Channels of the ResNet's first layer, 64 as published."""
    start: Path | None = None
    """Initial weights: a detector of any known layout, whose heads are kept if they fit, or the
    state dict of torchvision's ResNet. null initialises at random."""
    norms: Literal["frozen", "learnt"] = "learnt"
    """Batch normalisation: frozen at the values of `start`, as published, or learnt with the
    statistics of each part of a batch."""
    anchor_sizes: Annotated[tuple[Side, ...], Field(min_length=1)] = (64, 128, 256, 512)
    """Square roots of the anchors' areas, in scaled pixels."""
    anchor_ratios: Annotated[tuple[Side, ...], Field(min_length=1)] = (0.5, 1.0, 2.0)
    """Height over width of the anchors."""
    last_stage: Literal["dilated", "strided"] = "dilated"
    """dilated: res5 keeps the resolution of the pooled region. strided: res5 halves it."""
    region_pooling: Literal["maximum", "bilinear"] = "maximum"
    """maximum: RoIPool (Girshick 2015). bilinear: RoIAlign (He et al. 2017)."""
    proposal_width: Width = 512
    """Channels of the proposal network."""
    attribute_head: bool = True
    """Learn attributes, if the labels have any (Anderson et al. 2018)."""
    embedding_width: Width = 256
    """Width of the class embedding in the attribute head."""
    attribute_width: Width = 512
    """Hidden units of the attribute head."""
    min_side: Count = 600
    """Pixels of an image's shorter side after scaling, here and in `a2 extract`."""
    max_side: Count = 1000
    """Most pixels of its longer side after scaling."""
    flip: bool = True
    """Mirror half of the images, other ones in each epoch."""
    roi_size: Width = 14
    """Cells per side of a pooled region, here and in `a2 extract`."""
    anchors: Count = 256
    """Anchors sampled per image and step."""
    anchor_positives: Fraction = 0.5
    """Largest share of sampled anchors that match an object."""
    proposals: Count = 2000
    """Proposals per image from which regions are sampled."""
    regions: Count = 64
    """Regions sampled per image and step."""
    region_positives: Fraction = 0.5
    """Largest share of sampled regions that match an object."""
    attribute_weight: Annotated[float, Field(ge=0)] = 0.5
    """Factor of the attribute loss."""
    attribute_loss: Literal["softmax", "sigmoid", "families"] = "softmax"
    """softmax over all attributes, as published; sigmoid of each on its own; families: a softmax
    over each of `attribute_families`."""
    attribute_families: tuple[tuple[str, ...], ...] = ()
    """Families of exclusive attributes, [[red, blue, …], [small, large], …]: for the loss
    `families`, and for the accuracy of each in the figures."""
    epochs: Count = 12
    """Most epochs; training ends earlier when `patience` runs out."""
    patience: Count = 12
    """Epochs without a better AP50 after which training ends."""
    batch_size: Count = 8
    """Images per update, over all ranks."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    """sgd has momentum 0.9; adamw is Adam with decoupled decay (Loshchilov and Hutter 2019)."""
    lr: Annotated[float, Field(gt=0)] = 0.01
    """Peak rate; it rises linearly for `warmup` updates, then falls to 0 along half a cosine."""
    warmup: Annotated[int, Field(ge=0, le=10**9)] = 1000
    """Updates until the peak rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Decay of matrices and filters; biases and normalisations do not decay."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 35.0
    """Largest gradient norm; null does not clip."""
    validation_proposals: Count = 300
    """Proposals per image that validation classifies."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored matrices and filters; float16 takes half the disk space."""

    @property
    def warmup_updates(self) -> int:
        """Updates over which the learning rate rises, 0 without a warm-up."""
        return self.warmup

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        problems = []
        if self.start is None and self.norms == "frozen":
            problems.append(
                "norms is 'frozen' without detector.start, the weights that contain them; set "
                "detector.start, or set detector.norms to learnt"
            )
        if self.min_side > self.max_side:
            problems.append(
                f"min_side is {self.min_side}, above max_side {self.max_side}; "
                "lower min_side or raise max_side"
            )
        if self.attribute_loss == "families" and not self.attribute_families:
            problems.append(
                "attribute_loss is 'families' without detector.attribute_families; set them"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self


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
            yield field, require_file(path, f"detector.{field}")


def image_files(config: DetectorConfig) -> dict[str, dict[str, Path]]:
    """Return the images that training and validation may read, by field of the folder and id.

    Raises ConfigError if a folder is not set or does not exist.
    """
    # labels are large and not read here, so images without labels are included
    lists = {"images": ["ids"]}
    validation = "images" if config.validation_images is None else "validation_images"
    lists.setdefault(validation, []).append("validation_ids")
    files = {}
    for field, listed_by in lists.items():
        images = find_images(require_folder(getattr(config, field), f"detector.{field}"))
        ids: set[str] = set()
        for name in listed_by:
            listed = listed_names(config, name)
            # no list: all images
            ids.update(images if listed is None else map(named_id, listed))
        files[field] = {name: path for name, path in images.items() if name in ids}
    return files


def listed_names(config: DetectorConfig, field: str) -> list[str] | None:
    """Return the names in a list of images, None if its field is not set."""
    path = getattr(config, field)
    return None if path is None else read_keys(require_file(path, f"detector.{field}"))
