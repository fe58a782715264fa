"""Settings of captioning with trained captioners."""

from typing import Annotated, Literal

from pydantic import Field

from a2cap.model.decoding.decoding_config import DecodingConfig

ANIMATED = ".gif"
"""Suffix of an animated figure."""

Style = Literal["panels", "boxes"]
"""panels: a panel of each attention for each word; boxes: one panel for each word with its
top-scoring region before and after alignment (A2, Fig. 1)."""


class CaptioningConfig(DecodingConfig):
    """Decoding by one captioner or an ensemble."""

    ensemble_average: Literal["probabilities", "log_probabilities"] = "probabilities"
    """Quantity that an ensemble averages; log_probabilities is M2's, the A2 paper does not say."""

    ensemble_weights: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
    """Weight of each captioner of an ensemble in that average, this experiment's first, such as
    [0.7, 0.3] for the spatial and the semantic graph of gcn-lstm; [] is equal weights."""

    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """fp32, or bf16: linear layers in bfloat16, attention and probabilities in float32, so that a
    close second caption may win. auto: bf16 where the kind of processor has it, as in training."""

    batch_size: Annotated[int, Field(ge=1, le=10**6)] = 50
    """Images decoded together."""

    prompt: str | None = None
    """Text that a captioner of transformers continues; None for the default of its class."""
