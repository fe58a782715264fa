"""Configuration of the sections `train` and `scst`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.model.captioners.captioner_settings import Rate
from a2cap.model.plug_ins import Function
from a2cap.pipeline.training.selection import FIGURES
from a2cap.pipeline.training.training_config import Count, Fraction, TrainingConfig

if TYPE_CHECKING:
    Figure = str
else:
    Figure = Literal[tuple(FIGURES)]


class CaptionerTrainingConfig(TrainingConfig):
    """Settings of both trainings of a captioner."""

    betas: tuple[Rate, Rate] = (0.9, 0.98)
    """Adam's decay rates."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest gradient norm, of the captioner and of the mask network each by itself."""
    shuffle_window: Count | None = None
    """Images, such as 10000, within which an epoch is shuffled; the parts of a plan then come one
    after the other, in a random order, for disks behind a network. null shuffles all images."""
    captions_per_image: Count = 5
    """Reference captions of each image in a batch."""
    validation_beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """Beams when validation captions are decoded for CIDEr."""
    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Longest generated caption in tokens, <eos> included."""
    select: Figure = "CIDEr"
    """Validation figure that selects the best epoch and that `patience` waits for: of the decoded
    captions (Xu et al. 2015 select by BLEU), or the loss on the reference captions."""
    ema: Rate = 0.0
    """Decay of an exponential moving average of the weights, such as 0.9999, which is validated and
    saved in place of them. 0 is none."""

    @property
    def selected(self) -> str:
        """Name of the figure of `select`, better if higher."""
        return FIGURES[self.select]


class TrainConfig(CaptionerTrainingConfig):
    """Cross-entropy training (the recipe of Cornia et al. 2020 that the A2 paper follows)."""

    epochs: Count = 30
    """Most epochs; training ends earlier when `patience` runs out."""
    optim: Literal["modern", "authors"] | None = None
    """Recipe of the model's kind that gives the fields which are not set here: that of its authors,
    or a common one of today (`recipes` of its settings, model/captioners/)."""
    grouping: Literal["image", "caption", "length"] = "image"
    """image: a batch is images with several captions each, encoded once. caption: a batch is
    (image, caption) pairs, as in M2; `batch_size` then counts pairs. length: pairs whose captions
    have the same number of tokens (Xu et al. 2015)."""
    max_words: Count | None = None
    """Longest caption to train on; longer ones are left out and counted. null is all, cut as
    preprocess.max_length says."""
    max_regions: Count | None = None
    """Most regions of an image that the captioner sees, the top-scoring first; null is all."""
    start: Path | None = None
    """Trained captioner whose tensors training starts from (a directory of train-xe, train-scst or
    "a2 weights import", or a bundled one: photos, scenes). Words that it lacks and a new alignment
    start as usual."""
    frequency_bias: bool = False
    """Start the bias of the output layer at the log-frequency of each token in the training
    captions, as NeuralTalk does (Karpathy and Fei-Fei 2015; docs/captioners.md has the effect)."""
    label_smoothing: Rate = 0.0
    """Share of each target that is spread over the vocabulary (Szegedy et al. 2016); what it adds
    to the caption loss is reported apart."""
    supervision: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the cross-entropy of attention against the boxes of data.instances at words that
    name their category (Liu et al. 2017), what no captioner without boxes has; 0 is none."""
    scheduled_sampling: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability that the decoder reads a sampled token in place of the reference's (Bengio et al.
    2015; sampled in one pass over the reference)."""
    scheduled_sampling_epochs: Count = 50
    """Epochs over which that probability rises from 0."""
    optimiser: Literal["adam", "rmsprop", "sgd"] = "adam"
    """rmsprop: that of Graves 2013, used by Xu et al. on Flickr8k with the rate 1e-4: centred, with
    decay 0.95, momentum 0.9, and 1e-4 added within the root. sgd: with momentum 0.9."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the L2 norm in the gradient."""
    schedule: Literal["noam", "constant", "step", "cosine", "linear"] = "noam"
    """noam: lr * D^-0.5 * min(s^-0.5, s * warmup^-1.5) at step s (Vaswani et al. 2017). step: times
    `decay` every `decay_every` epochs. cosine and linear: from lr to 0 over `epochs`. These
    three rise over `warmup`."""
    lr: Annotated[float, Field(gt=0)] = 1.0
    """Factor of the noam schedule, or the constant or highest rate."""
    warmup: Count = 10_000
    """Steps until the peak of a schedule (the paper prints "10,00"; M2 has 10,000); 1 is none."""
    decay: Fraction = 0.8
    """Factor of the step schedule."""
    decay_every: Count = 3
    """Epochs between two steps of the step schedule."""

    @property
    def warmup_updates(self) -> int:
        """Updates over which the learning rate rises, 0 without a warm-up."""
        return 0 if self.schedule == "constant" or self.warmup == 1 else self.warmup

    @property
    def rate_depends_on_epochs(self) -> bool:
        """Return True if an update depends on how many epochs follow."""
        return self.schedule in ("cosine", "linear")


class ScstConfig(CaptionerTrainingConfig):
    """Self-critical training of the captioner from cross-entropy (Rennie et al. 2017)."""

    epochs: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Most epochs; training ends earlier when `patience` runs out. 0 leaves the stage out, and the
    captioner from cross-entropy is evaluated."""
    lr: Annotated[float, Field(gt=0)] = 5e-6
    """Adam's constant rate; its moments start from zero."""
    samples: Count = 5
    """Captions sampled per image; beams for `beam_mean`."""
    baseline: Literal["leave_one_out", "greedy", "beam_mean"] = "leave_one_out"
    """Reward that a sample is compared with. leave_one_out: the mean of the image's other samples
    (Luo 2020). greedy: the greedy caption (Rennie). beam_mean: the mean of beams, which are the
    samples (M2)."""
    idf: Literal["image", "caption"] = "image"
    """Documents of CIDEr-D's document frequencies: the captions of an image together, or each
    caption by itself (M2). Third-party code differs here, and it changes the final score."""
    eos: bool = True
    """Count <eos> as a word of captions and references in the reward; without it, captioners learn
    to end captions badly. Third-party code differs here too."""
    bleu_weight: Annotated[float, Field(ge=0)] = 0.0
    """The reward is CIDEr-D + bleu_weight * BLEU-4."""
    reward: Function | None = None
    """Python function in place of that reward, as "module:function", of a module that Python finds:
    from captions, and for each of them a list of references, as PTB tokens joined by spaces, to a
    number each. A configuration of yours imports it, never a trained captioner's folder; the key
    contains a digest of its code."""
    dropout: Literal["off", "rescore"] = "off"
    """off: the gradient is that of the sampling policy. rescore: the pass with the gradient has
    dropout, which sampling had not: off-policy."""
    mask: Literal["frozen", "continued"] = "frozen"
    """frozen: the mask networks do not change. continued: they train on with the mask loss on
    `captions_per_image` reference captions (Eq. 4), at the same rate."""

    @model_validator(mode="after")
    def _other_samples_exist(self) -> Self:
        if self.baseline == "leave_one_out" and self.samples < 2:
            raise ValueError(
                f"samples is {self.samples}, which leaves no other sample to compare with; raise "
                "scst.samples to 2 or more, or choose another scst.baseline"
            )
        return self
