"""Settings of the spatial self-attention Transformer."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import ADAM, LayeredSettings, Rate, Recipe


class SpatialConfig(LayeredSettings):
    """Sizes and options of the spatial self-attention Transformer (Springenberg et al. 2018)."""

    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {"train": {**ADAM, "lr": 3e-4, "max_words": 14, "max_length": 15}},
        "modern": {"train": {**ADAM, "lr": 3e-4}},
    }

    kind: Literal["spatial"] = "spatial"
    """Kind of captioner; the other fields of this section depend on it."""

    feed_forward: Annotated[int, Field(gt=0, le=2**20)] = 1024
    """Width of the inner layer of each feed-forward block."""

    encoder_layers: Annotated[int, Field(ge=0, le=256)] = 2
    """Self-attention layers over the cells."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 4
    """Layers of the caption decoder."""

    cells: Annotated[int, Field(gt=0, le=10**4)] = 196
    """Cells of an image, each with a position; d_len of attention over cells."""

    words: Annotated[int, Field(gt=0, le=500)] = 14
    """d_len of attention over words; the authors leave out longer captions (train.max_words)."""

    feature_norm: Literal["layer", "none"] = "layer"
    """Normalisation of the cells before their positions; none is the letter of the paper."""

    dropout: Rate = 0.1
    """Dropout rate of embedded tokens and cells."""

    attention_dropout: Rate = 0.1
    """Dropout rate of attention weights."""

    @property
    def grid_cells(self) -> int:
        """Return `cells`."""
        return self.cells
