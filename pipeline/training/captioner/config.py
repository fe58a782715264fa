"""Configuration of the sections `train` and `scst`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.data.config import Section
from a2cap.pipeline.runtime.config import Precision


class TrainConfig(Section):
    """Cross-entropy training (the recipe of Cornia et al. 2020 that the A2 paper follows)."""

    seed: int = 0
    """Seeds the initial weights, the order of images, the choice of captions and dropout."""
    epochs: Annotated[int, Field(ge=1)] = 30
    """Most epochs; training ends earlier when `patience` runs out."""
    patience: Annotated[int, Field(ge=1)] = 5
    """Epochs without a better validation CIDEr after which training ends."""
    grouping: Literal["image", "caption"] = "image"
    """image: a batch is images with several captions each, encoded once. caption: a batch is
    (image, caption) pairs, as in M2."""
    batch_size: Annotated[int, Field(ge=1)] = 10
    """Images per update, or pairs when grouping by caption: of all processes together."""
    accumulate: Annotated[int, Field(ge=1)] = 1
    """Parts of a batch that are computed one after the other, for less memory. The gradient is that
    of the whole batch, but for rounding and the noise of dropout."""
    precision: Precision = "fp32"
    """fp32. tf32: matrix products of float32 rounded to 10 bits on a GPU, as fp32 on a CPU. bf16:
    matrix products in bfloat16; parameters, masks, fusion, penalty and losses stay in float32.
    Validation decodes in float32. A CPU without matrix units for bfloat16 (AMX) is slower with
    it."""
    compile: bool = False
    """Layers through torch.compile, or as they are where that fails, which is said in a line. It is
    in the key, since compiled dropout draws other noise. Resuming is then not promised to be exact:
    which code the compiler makes depends on the sizes that it meets first."""
    captions_per_image: Annotated[int, Field(ge=1, serialization_alias="captions_per_picture")] = 5
    """Captions of each image in a batch, when grouping by image."""
    max_regions: Annotated[int, Field(ge=1)] | None = None
    """Most regions of an image that the captioner sees, the surest first; null is all."""
    schedule: Literal["noam", "constant"] = "noam"
    """noam: lr * D^-0.5 * min(s^-0.5, s * warmup^-1.5) at step s (Vaswani et al. 2017)."""
    lr: Annotated[float, Field(gt=0)] = 1.0
    """Factor of the noam schedule, or the constant rate."""
    warmup: Annotated[int, Field(ge=1)] = 10_000
    """Steps until the noam schedule's peak (the paper prints "10,00"; M2 has 10,000)."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Adam's decay rates."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest gradient norm, of the captioner and of the mask network each by itself."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 1000
    """Steps between checkpoints; one is also written at the end of each epoch."""
    validation_beam_size: Annotated[int, Field(ge=1)] = 5
    """Beams when validation captions are decoded for CIDEr."""
    max_validation_images: Annotated[
        Annotated[int, Field(ge=1)] | None, Field(serialization_alias="validation_pictures")
    ] = None
    """Validation images decoded each epoch, the first by id; null is all."""
    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Longest decoded caption in tokens."""


class ScstConfig(Section):
    """Self-critical training of the captioner that cross-entropy made (Rennie et al. 2017)."""

    epochs: Annotated[int, Field(ge=0)] = 0
    """Most epochs; training ends earlier when `patience` runs out. 0: there is no such stage, and
    the captioner of cross-entropy is what is evaluated."""
    patience: Annotated[int, Field(ge=1)] = 5
    """Epochs without a better validation CIDEr after which training ends."""
    seed: int = 0
    """Seeds the order of images, the samples and dropout."""
    batch_size: Annotated[int, Field(ge=1)] = 10
    """Images per update, with `samples` captions each: of all processes together."""
    accumulate: Annotated[int, Field(ge=1)] = 1
    """Parts of a batch that are computed one after the other, for less memory."""
    precision: Precision = "fp32"
    """As `train.precision`, of samples and gradients."""
    lr: Annotated[float, Field(gt=0)] = 5e-6
    """Adam's rate, the same at every step; its moments begin anew."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Adam's decay rates."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest gradient norm, of the captioner and of the mask network each by itself."""
    samples: Annotated[int, Field(ge=1)] = 5
    """Captions drawn of each image; beams for `beam_mean`."""
    baseline: Literal["leave_one_out", "greedy", "beam_mean"] = "leave_one_out"
    """What a sample has to surpass. leave_one_out: the mean of the image's other samples (Luo
    2020). greedy: the greedy caption (Rennie). beam_mean: the mean of beams, as samples (M2)."""
    idf: Literal["image", "caption"] = "image"
    """What counts as a document in CIDEr-D's document frequencies: the captions of an image
    together, or each by itself (M2). Peers differ here, and it moves the final score."""
    eos: bool = True
    """Whether <eos> is a word of captions and references in the reward; without it, captions learn
    to end badly. Peers differ here too."""
    bleu_weight: Annotated[float, Field(ge=0)] = 0.0
    """The reward is CIDEr-D + bleu_weight * BLEU-4."""
    dropout: Literal["off", "rescore"] = "off"
    """off: the gradient is that of what was drawn. rescore: the pass with the gradient has dropout,
    which the drawing had not: off-policy."""
    mask: Literal["frozen", "continued"] = "frozen"
    """frozen: the mask networks stay as they are. continued: they go on with the mask loss on the
    ground truth (Eq. 4), at the same rate."""
    captions_per_image: Annotated[int, Field(ge=1, serialization_alias="captions_per_picture")] = 5
    """True captions of each image for the mask loss, where it is continued."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 1000
    """Steps between checkpoints; one is also written at the end of each epoch."""
    validation_beam_size: Annotated[int, Field(ge=1)] = 5
    """Beams when validation captions are decoded for CIDEr."""
    max_validation_images: Annotated[
        Annotated[int, Field(ge=1)] | None, Field(serialization_alias="validation_pictures")
    ] = None
    """Validation images decoded each epoch, the first by id; null is all."""
    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Longest caption in tokens, drawn or decoded, <eos> included."""

    @model_validator(mode="after")
    def _one_can_be_left_out(self) -> Self:
        if self.baseline == "leave_one_out" and self.samples < 2:
            raise ValueError(
                f"samples {self.samples} leave none to compare with; raise scst.samples to 2 or "
                "more, or choose another scst.baseline"
            )
        return self
