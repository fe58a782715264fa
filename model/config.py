"""Settings of the Transformer captioner (Fei, AAAI 2022, "A2"; Lu et al., ACL 2021, "Lu").

What the paper leaves open is a field of `AlignmentConfig`, its default our reading.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FROZEN = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
)


class AlignmentConfig(BaseModel):
    """How attention over regions is aligned with what the mask network finds important."""

    model_config = _FROZEN

    fusion: Literal["none", "max", "moving", "decay", "gate"] = "gate"
    """How attention and evidence are joined (Eq. 6-10); none: a plain Transformer without masks.
    max always equals the evidence alpha^m itself, because exp(1 - m) >= 1."""

    mask_network: Literal["bilinear", "linear"] = "bilinear"
    """Eq. 2: bilinear compares the decoder's state with each region, whatever their order (Lu);
    linear is the letter of Eq. 2, one output per region slot, regions sorted by score."""

    mask_slots: Annotated[int, Field(gt=0)] = 100
    """Most regions per image that the linear mask network can serve; bilinear has no limit."""

    average: Literal["uniform", "heads"] = "uniform"
    """What a masked region receives in Eq. 3: one share of all existing regions, or the heads' mean
    (where the heads agree, that leaves the mask without a gradient)."""

    renormalise_aligned: bool = False
    """Scale each row of the fused attention back to a sum of 1 (the paper and Lu do not)."""

    renormalise_perturbed: bool = False
    """Scale each row of the perturbed attention back to a sum of 1 (the paper and Lu do not)."""

    detach_mask: bool = True
    """Keep the caption loss from reaching decoder and encoder through the mask (Lu lets it)."""

    penalty_weight: Annotated[float, Field(ge=0)] = 0.035
    """Lambda of Eq. 4, against a loss in nats per token and a penalty summed over regions."""

    moving_rate: Annotated[float, Field(ge=0)] = 0.1
    """Eta of the moving average, Eq. 7."""

    decay_steps: Annotated[float, Field(gt=0)] = 1e5
    """T of the exponential decay, Eq. 8, in optimiser updates of 50 captions each."""

    aligned_layers: (
        Literal["all"] | Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    ) = "all"
    """Decoder layers whose cross-attention is aligned and perturbed, the lowest being 1."""


class ModelConfig(BaseModel):
    """Sizes and choices of the Transformer captioner; the defaults are the paper's."""

    model_config = _FROZEN

    width: Annotated[int, Field(gt=0)] = 512
    """D, the width of every state."""

    heads: Annotated[int, Field(gt=0)] = 8
    """H, attention heads; they share the width equally."""

    feed_forward: Annotated[int, Field(gt=0)] = 2048
    """Width of the inner layer of each feed-forward block."""

    encoder_layers: Annotated[int, Field(ge=0)] = 6
    """Self-attention layers over the regions; 0 leaves the embedded regions as they are."""

    decoder_layers: Annotated[int, Field(gt=0)] = 6
    """Layers of the caption decoder."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of units dropped after each attention and feed-forward block and in the embedding of
    the regions, nowhere else."""

    box_geometry: Literal["none", "linear"] = "none"
    """linear adds a projection of the normalised box to its region, without which no model can
    know left from right; the paper has none."""

    blind: bool = False
    """Zero the region features before the encoder: the control that shows what language, number of
    regions and boxes reach alone."""

    alignment: AlignmentConfig = AlignmentConfig()
    """The attention alignment of A2."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} is not an even number per head for {self.heads} heads; "
                f"choose a multiple of {2 * self.heads}"
            )
        layers = self.alignment.aligned_layers
        if layers != "all" and max(layers) > self.decoder_layers:
            raise ValueError(
                f"alignment.aligned_layers names layer {max(layers)}, the decoder has "
                f"{self.decoder_layers}; name layers from 1 to {self.decoder_layers}"
            )
        return self

    def is_aligned(self, layer: int) -> bool:
        """Whether the cross-attention of decoder layer `layer` (the lowest is 1) is aligned."""
        layers = self.alignment.aligned_layers
        return self.alignment.fusion != "none" and (layers == "all" or layer in layers)
