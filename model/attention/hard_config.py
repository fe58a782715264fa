"""Settings of hard attention."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from a2cap.model.alignment_config import FROZEN


class HardAttentionConfig(BaseModel):
    """Hard attention of Show, Attend and Tell (section 4.1)."""

    model_config = FROZEN

    decode: Literal["expectation", "argmax", "sample"] = "expectation"
    """Context outside of cross-entropy training: the weighted sum of all regions, as in the results
    of the authors; the most attended region; or a region drawn again at each pass."""

    baseline: Literal["moving", "soft"] = "moving"
    """Reward that a sample is compared with: the moving average of log p per token, or log p of the
    same caption with soft attention, one more decoder pass and far less variance at the start."""

    lambda_r: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the REINFORCE term; 1 is unbiased, the authors' code has 0.1."""

    lambda_e: Annotated[float, Field(ge=0)] = 0.002
    """Weight of the attention's entropy; raise it if the attention stays on one region."""
