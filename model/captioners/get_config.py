"""Settings of the Global Enhanced Transformer."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import LayeredSettings, Rate, Recipe
from a2cap.model.captioners.m2_config import M2Config


class GetConfig(LayeredSettings):
    """Sizes and options of GET (Ji et al. 2021)."""

    # on whose code theirs is built
    recipes: ClassVar[Mapping[str, Recipe]] = M2Config.recipes

    kind: Literal["get"] = "get"
    """Kind of captioner; the other fields of this section depend on it."""

    encoder_layers: Annotated[int, Field(gt=0, le=256)] = 3
    """Self-attention layers over the regions and the global vector."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 3
    """Layers of the caption decoder."""

    controller: Literal["multi-head", "gate"] = "multi-head"
    """How the decoder reads the global vector: as a key and value beside the regions, as in the
    authors' code, or added to the attended regions through a gate."""

    gated_output: bool = False
    """Replace the output projection of each attention that reads regions by a gated linear unit,
    which the authors' code has and multi-head attention as printed has not."""

    attention_dropout: Rate = 0.1
    """Dropout rate of attention weights, over regions and over tokens."""
