"""Settings of the meshed-memory Transformer."""

from typing import Annotated, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import LayeredSettings


class M2Config(LayeredSettings):
    """Sizes and options of M2 (Cornia et al. 2020); the defaults are the authors' code.

    With alignment, each decoder layer has a mask network for each encoder layer.
    """

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
