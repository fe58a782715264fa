"""Settings of alignment (Fei, AAAI 2022, "A2"; Lu et al., ACL 2021, "Lu").

Each point that the paper leaves open is a field with a2's reading as default.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
"""Form of all settings of models."""


class AlignmentConfig(BaseModel):
    """Alignment of attention over regions with the importance that the mask network finds."""

    model_config = FROZEN

    fusion: Literal["none", "max", "moving", "decay", "gate"] = "gate"
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
