"""Settings of the log-bilinear captioner."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Rate, Recipe


class LogBilinearConfig(CaptionerSettings):
    """Sizes of the modality-biased log-bilinear model (Kiros et al. 2014)."""

    # the authors' SGD is with momentum, and their learning rate was searched
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "modern": {"train": {**ADAM, "lr": 1e-3, "clip_norm": 5.0}}
    }

    kind: Literal["log-bilinear"] = "log-bilinear"
    """Kind of captioner; the other fields of this section depend on it."""

    context: Annotated[int, Field(gt=0, le=100)] = 5
    """Number of previous tokens that the next one depends on, n - 1."""

    dropout: Rate = 0.3
    """Dropout rate of embedded tokens and of the predicted representation."""

    @property
    def has_attention(self) -> bool:
        """Return False: it reads the mean region."""
        return False
