"""Configuration of the extract stage."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from a2cap.data.data_config import Section

LITE = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
"""Names of networks in `extract.grid_backbone`, and in `extract.weights` of those in wheels."""

OWN_ENCODER = "encoder"
"""Value of `extract.weights` that names the encoder which the experiment itself trains."""

Count = Annotated[int, Field(gt=0, le=10**6)]
GridBackbone = (
    Literal["vgg11", "vgg13", "vgg16", "vgg19"]
    | Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
    | Literal["alexnet", "googlenet"]
    | Literal["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"]
    | Annotated[str, Field(pattern=r"^timm/[\w.]+$")]
)
"""Networks of torchvision, EfficientNet-Lite, or `timm/NAME`."""

_ORDERED = (("min_regions", "max_regions"), ("min_regions", "proposals"), ("min_side", "max_side"))
"""Pairs of fields of which the first may not exceed the second."""

META_KEY = "a2.detector"
"""Metadata entry of a safetensors file that contains the conventions of its detector."""
GRID_KEY, BASE_KEY = "a2.grid", "a2.base"
"""Entries that name the network of a grid whose weights a file has, or the differences from them
that a wheel's network is to have added."""


class ExtractConfig(Section):
    """Configuration of an extractor: how an image becomes regions."""

    weights: str | None = None
    """File of the detector's weights in a known layout (see
    `a2cap.extract.weights.checkpoint_layouts`), name of a bundled (`scenes`) or downloaded detector
    (`a2 weights fetch`), `efficientnet-lite2` for the cells of a network with ImageNet weights, or
    `encoder` for `grid_backbone` trained on the captions (section `encoder`).
    There is no default: features of unknown weights are useless, and do not show it."""
    procedure: Literal["weights", "caffe", "detectron2"] = "weights"
    """Rules for resizing, clipping, dropping and suppressing: those stored with the weights, or
    another extractor's. Anchors, pooling and strides always are those of the weights."""
    boxes: Literal["detect", "given", "grid"] = "detect"
    """Source of regions: the detector's proposals, the boxes of an annotation file, or the cells
    of a grid, for which `weights` is a state dict of `grid_backbone`. With an EfficientNet-Lite as
    `grid_backbone`, given boxes are pooled from its map."""
    grid_backbone: GridBackbone = "resnet101"
    """Network of torchvision, EfficientNet-Lite, or `timm/NAME` (extra a2cap[timm]); only for boxes
    `grid`, like the three fields below, and an EfficientNet-Lite also for boxes `given`."""
    grid_layer: str = "layer4"
    """Layer whose map is pooled: `layer4` of a ResNet, `features` or `features.28` of a VGG,
    `features` of AlexNet, `inception5b` of GoogLeNet. Of EfficientNet-Lite and timm's networks the
    last map is pooled."""
    grid_size: Literal[7, 14] = 14
    """Cells per side."""
    grid_crop: Literal["none", "centre"] = "none"
    """centre: scale the shorter side to 256 pixels and keep the middle 224 x 224 (of
    EfficientNet-Lite and timm, its size and 8/7 of it), as captioners on VGG's 14 x 14 x 512 map
    do; `min_side` is then unused."""
    min_regions: Count = 10
    """Minimum regions per image; equal to max_regions for a fixed number (36 in many papers)."""
    max_regions: Count = 100
    """Maximum regions per image."""
    proposals: Count = 300
    """Proposals that are classified per image; this takes nine tenths of the time. Where the
    weights state it, that is the default; so for the three fields below."""
    min_side: Count = 600
    """Pixels to which an image's shorter side is scaled."""
    max_side: Count = 1000
    """Maximum pixels of its longer side after scaling."""
    roi_size: Count = 14
    """Cells per side into which a region is pooled, 14 as published; time grows by its square."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Minimum class probability of a region, between min_regions and max_regions."""
    precision: Literal["auto", "exact", "mixed"] = "auto"
    """exact: float32 everywhere. mixed: proposals are selected in bfloat16, the features of
    selected regions are computed in float32; where the map of `grid_backbone` is pooled, its
    convolutions are in bfloat16. auto: mixed for a detector on a GPU of CUDA 8.0 or later and on a
    CPU with AVX512_BF16 (or AMX), otherwise exact."""
    backend: Literal["native", "detectron2"] = "native"
    """Modules that compute: a2's, or detectron2's if it is installed (exact only)."""
    dtype: Literal["float16", "float32"] = "float16"
    """Type of stored features."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        problems = [
            f"{low} is {getattr(self, low)}, above {high}, {getattr(self, high)}; "
            f"lower {low} or raise {high}"
            for low, high in _ORDERED
            if getattr(self, low) > getattr(self, high)
        ]
        if self.backend == "detectron2" and self.precision == "mixed":
            problems.append(
                "backend detectron2 computes in float32 only; set precision=exact or backend=native"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def conflict(self, stated: Mapping[str, int | str]) -> str | None:
        """Return the fields that contradict the settings of the weights, with the remedy."""
        wrong = {name: value for name, value in stated.items() if getattr(self, name) != value}
        if self.pools_map and self.boxes == "given":
            wrong.pop("boxes", None)  # what a backbone's name states is only its default
        if not wrong:
            return None
        asked = ", ".join(f"extract.{name} is {getattr(self, name)}" for name in wrong)
        remedy = " ".join(f"--set extract.{name}={value}" for name, value in wrong.items())
        return f"the weights were trained with other settings: {asked}; add {remedy}"

    @property
    def pools_map(self) -> bool:
        """Whether regions are pooled from the map of `grid_backbone`: cells, or given boxes."""
        return self.boxes == "grid" or (self.boxes == "given" and self.grid_backbone in LITE)

    @property
    def precision_in_key(self) -> Literal["auto", "exact", "mixed"]:
        """The precision; `auto` depends on the processor only where it changes no feature."""
        if self.pools_map:
            return "mixed" if self.precision == "mixed" else "exact"
        has_choice = self.boxes == "detect" and self.backend == "native"
        return self.precision if has_choice else "exact"

    @property
    def region_counts(self) -> tuple[int, int]:
        """Minimum and maximum regions of an image whose boxes are not given."""
        if self.boxes == "grid":
            return self.grid_size**2, self.grid_size**2
        return self.min_regions, self.max_regions


def stated_settings(meta: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields that the conventions of a detector state; meta: as `DetectorMeta`."""
    min_side, max_side = meta["scale"]
    optional = {name: meta[name] for name in ("roi_size", "proposals") if meta.get(name)}
    return {"min_side": min_side, "max_side": max_side, **optional}
