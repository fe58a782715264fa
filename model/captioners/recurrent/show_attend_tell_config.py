"""Settings of Show, Attend and Tell."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from a2cap.model.alignment_config import AlignmentConfig, SingleAlignment
from a2cap.model.attention.hard_config import HardAttentionConfig
from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Rate, Recipe, Width

_ADAM = {**ADAM, "lr": 2e-4}


class ShowAttendTellConfig(CaptionerSettings):
    """Sizes and options of Show, Attend and Tell (Xu et al. 2015), soft or hard attention.

    The defaults are the settings of the authors' COCO model.
    """

    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {"train": {**_ADAM, "grouping": "length", "batch_size": 64, "clip_norm": None}},
        "modern": {"train": {**_ADAM, "clip_norm": 5.0, "batch_size": 13}},
    }

    kind: Literal["show-attend-tell"] = "show-attend-tell"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Width = 1800
    """Width of the LSTM's state, D; 1000 on Flickr8k, 1300 on Flickr30k."""

    embedding: Width = 512
    """Width of the token embedding and of the deep output."""

    attention_width: Width = 512
    """Width of the attention's hidden layers; the authors use the width of the features."""

    attention_layers: Literal[1, 2] = 2
    """Layers that project a region before the sum with the state; 1 is Bahdanau's attention."""

    gate: Literal["scalar", "none"] = "scalar"
    """Factor of the context by the previous state (section 4.2.1)."""

    output: Literal["tanh", "linear"] = "tanh"
    """Activation of the deep output: tanh as in the authors' code, linear as printed."""

    initial: Literal["authors", "uniform"] = "authors"
    """Initial values. authors: orthogonal where square, else N(0, 0.01^2), from which attention
    stays even for long. uniform: torch's, layers within 1 / sqrt(inputs) of 0 and embeddings
    N(0, 1), for short trainings."""

    attention: Literal["soft", "hard"] = "soft"
    """soft reads the weighted sum of the regions; hard samples one region per token in training."""

    hard: HardAttentionConfig = HardAttentionConfig()
    """Options of hard attention."""

    doubly_stochastic: Annotated[float, Field(ge=0)] = 1.0
    """Lambda of soft attention's penalty on regions whose attention over a caption does not sum to
    1."""

    dropout: Rate = 0.5
    """Dropout rate in the initial state's network and before and after the deep output."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2."""

    @model_validator(mode="after")
    def _check_hard(self) -> Self:
        if self.attention == "hard" and self.attention_dropout:
            raise ValueError(
                f"attention_dropout is {self.attention_dropout}, but hard attention has no weights "
                "to drop; set attention_dropout to 0, or attention to soft"
            )
        return self

    @model_validator(mode="after")
    def _check_distribution(self) -> Self:
        fusion = self.alignment.fusion
        if self.attention == "hard" and fusion != "none" and not self.alignment.renormalise_aligned:
            raise ValueError(
                "hard attention samples from a distribution, and the weights of alignment.fusion "
                f"do not sum to 1: {fusion!r}; set alignment.renormalise_aligned to true, or "
                "alignment.fusion to none"
            )
        return self
