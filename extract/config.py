"""Settings of the extract stage; every default of the extractor lives here."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.data.config import Section

CALIBRATED_RANDOM = "calibrated-random"
"""Value of `extract.weights` that asks for random weights made from the images themselves."""

Count = Annotated[int, Field(gt=0)]
GridBackbone = Literal[
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
]
"""Networks of torchvision."""


class ExtractConfig(Section):
    """How an image becomes regions."""

    weights: str | None = None
    """File with the detector's weights in any known layout (see `a2cap.extract.weights.layouts`),
    the name of
    a detector that comes along (`scenes`) or that `a2 weights fetch` has brought, or the word
    `calibrated-random` for smoke runs. There is no default: features of unknown weights are
    useless and look like any others."""
    depth: Literal[18, 50, 101, 152] = 101
    """Layers of the ResNet; read only with calibrated-random, a weights file states its own."""
    width: Count = 64
    """Channels of the ResNet's first layer, 64 as published; read only with calibrated-random."""
    procedure: Literal["weights", "caffe", "airsplay", "detectron2"] = "weights"
    """Whose rules for resizing, clipping, dropping and suppressing are followed: those that the
    weights were stored with (caffe's, but for detectron2's own models), or another extractor's.
    Anchors, pooling and strides always are the weights'."""
    boxes: Literal["detect", "given", "grid"] = "detect"
    """Where regions come from: the detector's proposals, boxes that the annotation supplies, or the
    cells of a grid, for which `weights` is a state dict of torchvision's `grid_backbone`."""
    grid_backbone: GridBackbone = "resnet101"
    """Network of torchvision; read only with boxes `grid`, like the two below."""
    grid_layer: str = "layer4"
    """Its layer whose map is pooled: `layer4` of a ResNet, `features` or `features.28` of a VGG."""
    grid_size: Literal[7, 14] = 14
    """Cells per side."""
    min_regions: Count = 10
    """Fewest regions per image; equal to max_regions for a fixed number (36 in many papers)."""
    max_regions: Count = 100
    """Most regions per image."""
    proposals: Count = 300
    """Regions that the proposal network hands to the classifier: nine tenths of the time goes
    into describing them."""
    min_side: Count = 600
    """Pixels to which an image's shorter side is scaled."""
    max_side: Count = 1000
    """Pixels that its longer side may not exceed after scaling."""
    roi_size: Count = 14
    """Cells per side into which a region is pooled, 14 as published; time grows by its square."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Class probability from which a region is kept, between min_regions and max_regions."""
    precision: Literal["exact", "mixed"] = "exact"
    """exact: float32 everywhere. mixed: bfloat16 decides which proposals are kept, several times
    faster; stored features are float32 all the same."""
    backend: Literal["native", "detectron2"] = "native"
    """Whose modules compute: ours, or detectron2's where that is installed (exact only)."""
    dtype: Literal["float16", "float32"] = "float16"
    """How features are stored; the detector computes them in float32."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of calibrated-random weights; read only with them."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        ordered = (
            ("min_regions", "max_regions"),
            ("min_regions", "proposals"),
            ("min_side", "max_side"),
        )
        problems = [
            f"{low} is {getattr(self, low)}, above {high}, {getattr(self, high)}; "
            f"lower {low} or raise {high}"
            for low, high in ordered
            if getattr(self, low) > getattr(self, high)
        ]
        if self.boxes == "grid" and self.weights == CALIBRATED_RANDOM:
            problems.append(
                f"a grid needs trained weights: weights is {CALIBRATED_RANDOM!r}; name a state "
                "dict of torchvision"
            )
        if self.backend == "detectron2" and self.precision == "mixed":
            problems.append(
                "backend detectron2 computes in float32 only; set precision=exact or backend=native"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def region_counts(self) -> tuple[int, int]:
        """Fewest and most regions of an image whose boxes are not given."""
        if self.boxes == "grid":
            return self.grid_size**2, self.grid_size**2
        return self.min_regions, self.max_regions
