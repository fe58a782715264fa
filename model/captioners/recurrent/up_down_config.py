"""Settings of Up-Down."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from a2cap.model.alignment_config import AlignmentConfig, SingleAlignment
from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Rate, Recipe, Width


class UpDownConfig(CaptionerSettings):
    """Sizes and options of Up-Down (Anderson et al. 2018); the defaults are the authors' code."""

    # 60,000 updates of 100 captions are 53 epochs; their momentum scales the rate, torch's does not
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {
            "model": {"dropout": 0.0},
            "train": {
                "optimiser": "sgd",
                "schedule": "linear",
                "warmup": 1,
                "lr": 0.01,
                "weight_decay": 5e-4,
                "clip_norm": 10.0,
                "epochs": 53,
                "batch_size": 100,
                "captions_per_image": 1,
            },
        },
        "modern": {
            "model": {"dropout": 0.5},
            "train": {**ADAM, "lr": 5e-4, "clip_norm": 10.0, "batch_size": 10},
        },
    }

    kind: Literal["up-down"] = "up-down"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Width = 1000
    """Width of the state of both LSTMs, D."""

    embedding: Width = 1000
    """Width of the token embedding."""

    attention_width: Width = 512
    """Width of the attention's hidden layer."""

    dropout: Rate = 0.0
    """Dropout rate of embedded tokens and of the state before the output layer; the authors have
    none, later implementations 0.5."""

    initial: Literal["authors", "uniform"] = "authors"
    """Initial values. authors: N(0, 0.01^2), from which narrow captioners learn no more than the
    frequency of words for long. uniform: torch's, layers within 1 / sqrt(inputs) of 0 and
    embeddings N(0, 1)."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2."""
