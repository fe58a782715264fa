"""Settings of captioning with trained captioners."""

from typing import Annotated, Literal

from pydantic import Field

from a2cap.model.decoding.config import DecodingConfig


class CaptioningConfig(DecodingConfig):
    """Decoding by one captioner or an ensemble."""

    ensemble_average: Literal["probabilities", "log_probabilities"] = "probabilities"
    """Quantity that an ensemble averages; log_probabilities is M2's, the A2 paper does not say."""

    batch_size: Annotated[int, Field(ge=1, le=10**6)] = 50
    """Images decoded together."""
