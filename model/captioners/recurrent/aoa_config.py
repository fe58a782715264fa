"""Settings of AoANet."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from a2cap.model.alignment_config import AlignmentConfig, SingleAlignment
from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Rate, Recipe, Width

_ADAM = {**ADAM, "lr": 2e-4, "max_length": 16}


class AoaConfig(CaptionerSettings):
    """Sizes and options of AoANet (Huang et al. 2019); the defaults are the authors' code."""

    # they clip each value, not the norm
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {
            "train": {
                **_ADAM,
                "schedule": "step",
                "warmup": 1,
                "decay": 0.8,
                "decay_every": 3,
                "label_smoothing": 0.2,
                "scheduled_sampling": 0.5,
                "scheduled_sampling_epochs": 50,
                "epochs": 25,
                "clip_norm": None,
            }
        },
        "modern": {"train": _ADAM},
    }

    kind: Literal["aoa"] = "aoa"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Width = 1024
    """Width of every state, D."""

    heads: Annotated[int, Field(gt=0)] = 8
    """Number of attention heads, H; they divide the width equally."""

    refiner_layers: Annotated[int, Field(ge=0, le=256)] = 6
    """Layers that refine the regions."""

    dropout: Rate = 0.5
    """Dropout rate of embedded regions and tokens, of the context, and before the output layer."""

    attention_dropout: Rate = 0.1
    """Dropout rate of all attention weights and of what the refiner's layers add."""

    gate_dropout: Rate = 0.3
    """Dropout rate of the input of the refiner's attention on attention."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2, of the decoder's attention."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divided by {self.heads} heads; choose a multiple of "
                f"{self.heads}"
            )
        return self
