"""Settings of NIC, and of the RNN of Karpathy and Fei-Fei."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Rate, Recipe, Width


class NicConfig(CaptionerSettings):
    """Sizes and options of NIC (Vinyals et al. 2015); the defaults are the authors' code."""

    # their rate of 2.0 is without momentum, which multiplies ours by 10
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {
            "train": {
                "optimiser": "sgd",
                "schedule": "step",
                "warmup": 1,
                "lr": 0.2,
                "decay": 0.5,
                "decay_every": 8,
                "clip_norm": 5.0,
                "grouping": "caption",
                "batch_size": 32,
            }
        },
        "modern": {"train": {**ADAM, "lr": 1e-3, "clip_norm": 5.0, "batch_size": 13}},
    }

    kind: Literal["nic"] = "nic"
    """Kind of captioner; the other fields of this section depend on it."""

    cell: Literal["lstm", "rnn"] = "lstm"
    """rnn: with a ReLU and the image beside the first token (Karpathy and Fei-Fei 2015)."""

    width: Width = 512
    """Width of the state, D."""

    embedding: Width = 512
    """Width of the token embedding and of the embedded image."""

    dropout: Rate = 0.3
    """Dropout rate of what the cell reads, the image too, and of its state before the output."""

    @property
    def has_attention(self) -> bool:
        """Return False: it reads the mean region once."""
        return False
