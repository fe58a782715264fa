"""Settings of the GRU captioner."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.model.alignment_config import AlignmentConfig, SingleAlignment
from a2cap.model.captioners.captioner_settings import CaptionerSettings


class GruConfig(CaptionerSettings):
    """Sizes and options of the GRU captioner; the defaults are TensorFlow's captioning tutorial."""

    kind: Literal["gru"] = "gru"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the GRU's state and of the projected regions, D."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 256
    """Width of the token embedding."""

    attention: Literal["none", "dot", "general", "additive"] = "dot"
    """Score of a region by the state: s'h and s'Wh (Luong), v'tanh(Wh + Us) (Bahdanau); none reads
    the mean region at each token."""

    order: Literal["text", "bahdanau"] = "text"
    """Step that reads the context: the output layer, from the new state; or the GRU, from the
    previous state."""

    initial: Literal["zero", "mean"] = "zero"
    """Initial state; mean is a tanh layer of the mean region."""

    scale: Literal["none", "sqrt"] = "none"
    """Divisor of a dot product: sqrt(D) keeps a softmax over large features from saturating."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2; without attention its fusion must be none."""

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        if self.attention == "none" and self.alignment.fusion != "none":
            raise ValueError(
                f"alignment.fusion is {self.alignment.fusion!r}, but attention is none; set "
                "alignment.fusion to none, or attention to dot"
            )
        return self
