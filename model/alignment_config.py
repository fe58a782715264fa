"""Fusions and settings of alignment (Fei, AAAI 2022, "A2"; Lu et al., ACL 2021, "Lu").

FUSIONS is the only list of fusions: settings, alignment, the order of tables, benchmarks and tests
read it. Each point that the paper leaves open is a field with a2's reading as default. This module
does not import torch, which settings do without; the equations are methods of tensors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import Tensor

FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
"""Form of all settings of models."""


@dataclass(frozen=True)
class FusionInputs:
    """What a fusion may read besides attention and evidence.

    schedule_step: int64 scalar, optimiser updates so far; share: (B, H, Q, 1) in (0, 1), of the
    learned network of a fusion that has one.
    """

    config: "AlignmentConfig"
    schedule_step: "Tensor"
    share: "Tensor | None" = None


@dataclass(frozen=True)
class Fusion:
    """One fusion.

    equation: as the documentation prints it.
    fuse: from attention alpha and evidence alpha^m, (B, H, Q, R) each, to alpha^a, None for
        attention that is left as it is.
    learned: True if the share of alpha is a network's (Eq. 10), which is then recorded and shown.
    settings: fields of `model.alignment` that act with this fusion alone.
    """

    name: str
    equation: str
    fuse: "Callable[[Tensor, Tensor, FusionInputs], Tensor] | None"
    learned: bool = False
    settings: tuple[str, ...] = ()


def interpolate(first: "Tensor", second: "Tensor", share: "Tensor") -> "Tensor":
    """Return share * first + (1 - share) * second."""
    # one kernel instead of four; on a CPU, results are bit for bit those of earlier versions
    if first.is_cuda:
        return second.lerp(first, share)
    return share * first + (1 - share) * second


def _maximum(attention: "Tensor", evidence: "Tensor", inputs: FusionInputs) -> "Tensor":
    # always the evidence, because exp(1 - m) >= 1
    return attention.maximum(evidence)


def _moving(attention: "Tensor", evidence: "Tensor", inputs: FusionInputs) -> "Tensor":
    return attention + inputs.config.moving_rate * evidence


def _decay(attention: "Tensor", evidence: "Tensor", inputs: FusionInputs) -> "Tensor":
    # from the attention at step 0 to the evidence
    step = inputs.schedule_step.to(attention.dtype)
    weight = (-step / inputs.config.decay_steps).exp()
    return weight * attention + (1 - weight) * evidence


def _gate(attention: "Tensor", evidence: "Tensor", inputs: FusionInputs) -> "Tensor":
    assert inputs.share is not None  # of a learned fusion
    return interpolate(attention, evidence, inputs.share)


FUSIONS: Mapping[str, Fusion] = {
    fusion.name: fusion
    for fusion in (
        Fusion("none", "α", None),
        Fusion("max", "max(α, αᵐ)", _maximum),
        Fusion("moving", "α + η αᵐ", _moving, settings=("moving_rate",)),
        Fusion("decay", "e^(−s/T) α + (1 − e^(−s/T)) αᵐ", _decay, settings=("decay_steps",)),
        Fusion("gate", "g α + (1 − g) αᵐ, g = σ(W q + b)", _gate, learned=True),
    )
}
"""Name -> fusion, in the order of the paper's Table 3."""

if TYPE_CHECKING:
    FusionName = str
else:
    FusionName = Literal[tuple(FUSIONS)]


class AlignmentConfig(BaseModel):
    """Alignment of attention over regions with the importance that the mask network finds."""

    model_config = FROZEN

    fusion: FusionName = "gate"
    """Fusion of attention and evidence (Eq. 6-10); none is a plain Transformer without masks.
    max always equals the evidence alpha^m, because exp(1 - m) >= 1."""

    mask_network: Literal["bilinear", "linear"] = "bilinear"
    """Mask network of Eq. 2: bilinear compares the decoder's state with each region, in any order
    (Lu); linear is Eq. 2 as printed, one output per region slot, in the order of the feature store:
    that of proposals or of scores, as its extractor ordered them."""

    mask_slots: Annotated[int, Field(gt=0, le=10**6)] = 100
    """Maximum regions per image for the linear mask network; bilinear has no limit."""

    average: Literal["uniform", "heads"] = "uniform"
    """Replacement for the weight of a masked region in Eq. 3: uniform over the existing regions, or
    the heads' mean (which gives the mask no gradient where the heads agree)."""

    renormalise_aligned: bool = False
    """Scale each row of the fused attention back to a sum of 1 (the paper and Lu do not)."""

    renormalise_perturbed: bool = False
    """Scale each row of the perturbed attention back to a sum of 1 (the paper and Lu do not)."""

    detach_mask: bool = True
    """Stop the caption loss from reaching decoder and encoder through the mask (Lu does not)."""

    penalty_weight: Annotated[float, Field(ge=0)] = 0.035
    """Lambda of Eq. 4, against a loss in nats per token and a penalty summed over regions."""

    moving_rate: Annotated[float, Field(ge=0)] = 0.1
    """Eta of the moving average, Eq. 7."""

    decay_steps: Annotated[float, Field(gt=0)] = 1e5
    """T of the exponential decay, Eq. 8, in optimiser updates of 50 captions each."""

    aligned_layers: (
        Literal["all"] | Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    ) = "all"
    """Decoder layers with aligned cross-attention, counted from 1, the lowest."""

    def includes(self, layer: int) -> bool:
        """Report whether decoder layer `layer` (counted from 1, the lowest) is aligned."""
        return self.fusion != "none" and (
            self.aligned_layers == "all" or layer in self.aligned_layers
        )


def _in_the_only_layer(alignment: AlignmentConfig) -> AlignmentConfig:
    if alignment.aligned_layers not in ("all", (1,)):
        raise ValueError(
            f"alignment.aligned_layers is {list(alignment.aligned_layers)}, this kind has one "
            'attention; choose "all"'
        )
    return alignment


SingleAlignment = Annotated[AlignmentConfig, AfterValidator(_in_the_only_layer)]
"""Alignment of a captioner with one attention over the regions."""
