"""Settings of LSTM-A."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from a2cap.model.captioners.captioner_settings import ADAM, CaptionerSettings, Recipe

_ADAM = {**ADAM, "lr": 5e-4}

FIRST_WORD = 4
"""Token id of the most frequent word; those of the special tokens are below."""


class LstmAConfig(CaptionerSettings):
    """Sizes and options of LSTM-A (Yao et al. 2017)."""

    # of X-modaler, which clips each value and not the norm
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "authors": {
            "train": {
                **_ADAM,
                "schedule": "step",
                "warmup": 1,
                "decay": 0.8,
                "decay_every": 3,
                "scheduled_sampling": 0.25,
                "scheduled_sampling_epochs": 25,
                "epochs": 30,
                "batch_size": 8,
                "clip_norm": None,
            }
        },
        "modern": {"train": {**_ADAM, "clip_norm": 5.0}},
    }

    kind: Literal["lstm-a"] = "lstm-a"
    """Kind of captioner; the other fields of this section depend on it."""

    variant: Literal["a1", "a2", "a3", "a4", "a5"] = "a3"
    """What the LSTM reads. a1: the attributes, before the tokens; a2: the image, then the
    attributes; a3: the attributes, then the image; a4: the image, and the attributes with each
    token; a5: the attributes, and the image with each token."""

    attributes: Annotated[int, Field(gt=0, le=10**5)] = 1000
    """Number of attributes: the most frequent words of the vocabulary, as in the paper."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 1024
    """Width of the LSTM's state, D."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 1024
    """Width of the token embedding and of the embedded image and attributes."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout rate of what the LSTM reads, and of its state before the output."""

    @property
    def has_attention(self) -> bool:
        """Return False: it reads the mean region and the attributes of the image."""
        return False

    @property
    def attribute_tokens(self) -> range:
        """Return the most frequent words."""
        return range(FIRST_WORD, FIRST_WORD + self.attributes)
