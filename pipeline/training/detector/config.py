"""The settings of the section `detector`: a detector's training, which no other stage reads."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.data.config import Section

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Side = Annotated[float, Field(gt=0)]


class DetectorConfig(Section):
    """Labelled images to a detector's weights (Ren et al. 2015; Anderson et al. 2018)."""

    layout: Literal["coco", "visual-genome"] = "coco"
    """What `labels` is: COCO instances, perhaps with attributes, or objects of Visual Genome."""
    images: Path | None = None
    """Folder of the images, searched with all folders below it."""
    labels: Path | None = None
    """COCO's instances.json, or Visual Genome's objects.json."""
    ids: Path | None = None
    """List of the images to train on, one id or file name a line; null is all of `labels`."""
    validation_images: Path | None = None
    """Folder of the images of validation; null is `images`."""
    validation_labels: Path | None = None
    """Their labels; null is `labels`."""
    validation_ids: Path | None = None
    """List of the images of validation; null is all of `validation_labels`."""
    attributes: Path | None = None
    """Visual Genome's attributes.json."""
    object_names: Path | None = None
    """Names of classes, one a line, synonyms after commas; read with visual-genome."""
    attribute_names: Path | None = None
    """Names of attributes in the same form; read with visual-genome."""
    depth: Literal[18, 50, 101, 152] = 101
    """Layers of the ResNet."""
    width: Count = 64
    """Channels of the ResNet's first layer, 64 as published."""
    start: Path | None = None
    """Weights to begin with: a detector of any known layout, whose heads are kept where they fit,
    or the state dict of torchvision's ResNet. null begins at random."""
    norms: Literal["frozen", "learnt"] = "learnt"
    """Batch normalisation: frozen as it is in `start`, as published, or learnt with the statistics
    of each part of a batch."""
    anchor_sizes: Annotated[tuple[Side, ...], Field(min_length=1)] = (64, 128, 256, 512)
    """Square roots of the anchors' areas, in scaled pixels."""
    anchor_ratios: Annotated[tuple[Side, ...], Field(min_length=1)] = (0.5, 1.0, 2.0)
    """Height over width of the anchors."""
    last_stage: Literal["dilated", "strided"] = "dilated"
    """Whether res5 keeps the pooled region's resolution and dilates, or halves it."""
    region_pooling: Literal["maximum", "bilinear"] = "maximum"
    """RoIPool (Girshick 2015), or RoIAlign (He et al. 2017)."""
    proposal_width: Count = 512
    """Channels of the proposal network."""
    attribute_head: bool = True
    """Whether attributes are learnt, where the labels have some (Anderson et al. 2018)."""
    embedding_width: Count = 256
    """Numbers by which the attribute head knows a region's class."""
    attribute_width: Count = 512
    """Hidden units of the attribute head."""
    min_side: Count = 600
    """Pixels to which an image's shorter side is scaled, here and in `a2 extract`."""
    max_side: Count = 1000
    """Pixels that its longer side may not exceed after scaling."""
    flip: bool = True
    """Show half of the images mirrored, other ones in each epoch."""
    roi_size: Count = 14
    """Cells per side into which a region is pooled, here and in `a2 extract`."""
    anchors: Count = 256
    """Anchors of an image from which a step learns."""
    anchor_positives: Share = 0.5
    """Largest part of them that stands for something."""
    proposals: Count = 2000
    """Proposals of an image among which the regions to learn from are drawn."""
    regions: Count = 64
    """Regions of an image from which a step learns."""
    region_positives: Share = 0.5
    """Largest part of them that stands for something."""
    attribute_weight: Annotated[float, Field(ge=0)] = 0.5
    """Factor of the attributes' loss."""
    seed: int = 0
    """Seeds the initial weights, the order of images, mirroring and what is drawn from them."""
    epochs: Count = 12
    """Most epochs; training ends earlier when `patience` runs out."""
    patience: Count = 12
    """Epochs without a better AP50 after which training ends."""
    batch_size: Count = 8
    """Images per update: of all processes together."""
    accumulate: Count = 1
    """Parts of a batch that are computed one after the other, for less memory."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """fp32. tf32: matrix products rounded to 10 bits on a GPU. bf16: matrix products and
    convolutions in bfloat16; parameters and losses stay in float32."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    """sgd has momentum 0.9; adamw is Adam with decoupled decay (Loshchilov and Hutter 2019)."""
    lr: Annotated[float, Field(gt=0)] = 0.01
    """Highest rate; it rises linearly for `warmup` updates, then falls to 0 by half a cosine."""
    warmup: Annotated[int, Field(ge=0)] = 1000
    """Updates until the highest rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Decay of matrices and filters."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 35.0
    """Largest gradient norm."""
    checkpoint_every: Count = 1000
    """Steps between checkpoints; one is also written at the end of each epoch."""
    max_validation_images: Annotated[
        Count | None, Field(serialization_alias="validation_pictures")
    ] = None
    """Images looked at after each epoch, the first by id; null is all."""
    validation_proposals: Count = 300
    """Proposals of an image that are classified in validation."""
    dtype: Literal["float32", "float16"] = "float32"
    """Of the matrices and filters that are stored; float16 takes half the room."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        problems = []
        if self.start is None and self.norms == "frozen":
            problems.append(
                "norms are frozen, but detector.start names no weights that have some; name "
                "weights, or set detector.norms to learnt"
            )
        if self.min_side > self.max_side:
            problems.append(
                f"min_side is {self.min_side}, above max_side, {self.max_side}; "
                "lower min_side or raise max_side"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self
