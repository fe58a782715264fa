"""Settings of the GRU captioner."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from a2cap.model.alignment_config import AlignmentConfig, SingleAlignment
from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Recipe, Width


class GruConfig(CaptionerSettings):
    """Sizes and options of the GRU captioner; the defaults are TensorFlow's captioning tutorial."""

    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {"train": {**ADAM, "lr": 1e-3, "grouping": "caption", "batch_size": 64}},
        "modern": {"train": {**ADAM, "lr": 1e-3, "batch_size": 13}},
    }

    kind: Literal["gru"] = "gru"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Width = 512
    """Width of the GRU's state and of the projected regions, D."""

    embedding: Width = 256
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
    """The attention alignment of A2; none without attention."""

    @property
    def has_attention(self) -> bool:
        """Return True unless each token reads the mean region."""
        return self.attention != "none"
