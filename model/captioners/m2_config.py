"""Settings of the meshed-memory Transformer."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from a2cap.model.captioners.captioner_settings import LayeredSettings, Recipe

_NOAM = {"grouping": "caption", "batch_size": 50, "patience": 5, "warmup": 10_000}


class M2Config(LayeredSettings):
    """Sizes and options of M2 (Cornia et al. 2020); the defaults are the authors' code.

    With alignment, each decoder layer has a mask network for each encoder layer.
    """

    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {"train": {**_NOAM, "clip_norm": None}},
        "modern": {"train": _NOAM},
    }

    kind: Literal["m2"] = "m2"
    """Kind of captioner; the other fields of this section depend on it."""

    encoder_layers: Annotated[int, Field(gt=0, le=256)] = 3
    """Self-attention layers over the regions; the decoder attends to each of them."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 3
    """Layers of the caption decoder."""

    memory_slots: Annotated[int, Field(gt=0, le=2**16)] = 40
    """Learned keys and values beside the regions in each encoder layer."""

    positions: Literal["sinusoidal", "table"] = "sinusoidal"
    """Positions of tokens: sinusoidal, or a table that is saved with an imported captioner."""

    @model_validator(mode="after")
    def _check_prophet(self) -> Self:
        if self.prophet:
            raise ValueError(
                f"prophet is {self.prophet}, but Prophet Attention reads one state of each region, "
                "and the decoder of m2 those of every encoder layer; set prophet to 0, or choose "
                "kind transformer"
            )
        return self
