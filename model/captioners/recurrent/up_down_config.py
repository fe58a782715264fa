"""Settings of Up-Down."""

from typing import Annotated, Literal

from pydantic import Field

from a2cap.model.alignment_config import AlignmentConfig, SingleAlignment
from a2cap.model.captioners.captioner_settings import CaptionerSettings


class UpDownConfig(CaptionerSettings):
    """Sizes and options of Up-Down (Anderson et al. 2018); the defaults are the authors' code."""

    kind: Literal["up-down"] = "up-down"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 1000
    """Width of the state of both LSTMs, D."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 1000
    """Width of the token embedding."""

    attention_width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the attention's hidden layer."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of embedded tokens and of the state before the output layer; the authors have
    none, later implementations 0.5."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2."""
