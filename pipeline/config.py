"""The configuration: one frozen model per stage, composed and loaded from YAML and `--set`.

Every default lives in the models; every problem is reported at once, each with its dotted path and
the nearest valid name.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from a2cap.data.config import DataConfig, PreprocessConfig
from a2cap.data.errors import ConfigError
from a2cap.extract.config import ExtractConfig
from a2cap.model.config import ModelConfig
from a2cap.pipeline.training.detector.config import DetectorConfig

Section = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
)


Precision = Literal["fp32", "tf32", "bf16"]


class TrainConfig(BaseModel):
    """Cross-entropy training (the recipe of Cornia et al. 2020 that the A2 paper follows)."""

    model_config = Section

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


class ScstConfig(BaseModel):
    """Self-critical training of the captioner that cross-entropy made (Rennie et al. 2017)."""

    model_config = Section

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


class EvaluateConfig(BaseModel):
    """Decoding and scoring."""

    model_config = Section

    split: Literal["val", "test"] = "test"
    """The Karpathy split that is captioned."""
    beam_size: Annotated[int, Field(ge=1)] = 5
    """Beams kept per image."""
    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Longest caption in tokens."""
    length_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Beams are ranked by log p / length^penalty; 0 is the paper's plain sum."""
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0
    """Words in a row that no caption says twice (Paulus et al. 2018): 3 blocks trigrams, 0 is off,
    as in the paper."""
    groups: Annotated[int, Field(ge=1)] = 1
    """Groups of beams that are kept from saying the same (Vijayakumar et al. 2016); they share the
    beams equally, 1 is plain beam search."""
    diversity: Annotated[float, Field(ge=0)] = 0.5
    """What a group pays for a word, in nats per beam of earlier groups that says it at that place;
    0.2 to 0.8 in their paper."""
    ensemble: tuple[Path, ...] = ()
    """Results of further trainings on the same features and vocabulary (directories of train-xe or
    train-scst) that say each word together with this experiment's captioner."""
    ensemble_average: Literal["probabilities", "log_probabilities"] = "probabilities"
    """What an ensemble takes the mean of; log_probabilities is M2's, the A2 paper does not say."""
    collapse_repeats: bool = False
    """Say a word that follows itself once, as M2 does before it scores; off, as in the paper."""
    batch_size: Annotated[int, Field(ge=1)] = 50
    """Images decoded together."""
    spice: bool = True
    """SPICE too, where "a2 weights fetch spice" has brought its parser, which reads every caption:
    minutes for 5,000 images, less where the same references were parsed before."""
    baseline: Path | None = None
    """metrics.json of another evaluation, printed beside this one's figures."""
    baseline_name: str = "baseline"
    """What the report calls it."""
    report_images: Annotated[int, Field(ge=0, serialization_alias="report_pictures")] = 500
    """Most images embedded in report.html, the worst and the best by CIDEr; all are listed."""
    attention: Literal["all", "report", "none"] = "all"
    """Of which images attention.h5 keeps where the captioner looked at each word: all (about 3 kB
    an image of 36 regions), those embedded in the report, or none."""

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.beam_size % self.groups:
            raise ValueError(
                f"{self.beam_size} beams cannot be shared equally by groups: {self.groups}; choose "
                "a number of groups that divides evaluate.beam_size"
            )
        return self


class RuntimeConfig(BaseModel):
    """How to compute, not what: these fields are in no key."""

    model_config = Section

    device: str = "auto"
    """auto (a GPU when there is one), cpu, cuda, or cuda:N."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Loader processes of training."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of torch; null leaves torch's choice."""


class Config(BaseModel):
    """One experiment."""

    model_config = Section

    detector: DetectorConfig = DetectorConfig()
    """Training of a detector of one's own, beside the experiment."""
    data: DataConfig = DataConfig()
    """Where images and captions are."""
    extract: ExtractConfig = ExtractConfig()
    """Images to region features."""
    preprocess: PreprocessConfig = PreprocessConfig()
    """Captions to a vocabulary and token ids."""
    model: ModelConfig = ModelConfig()
    """The captioner."""
    train: TrainConfig = TrainConfig()
    """Cross-entropy training."""
    scst: ScstConfig = ScstConfig()
    """Self-critical training, which is left out unless it has epochs."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Decoding and scoring."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Device, workers, threads."""

    def to_yaml(self) -> str:
        """The resolved configuration, as written beside each output."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The configuration in `path` (YAML) with each `section.field=value` of `overrides` applied.

    Raises ConfigError that lists every unknown field, wrong value and malformed override.
    """
    content = read_yaml(path) if path is not None else {}
    problems = []
    for override in overrides:
        problem = _apply(content, override)
        if problem:
            problems.append(problem)
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        problems += [_in_words(details) for details in error.errors()]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{count} in the configuration:\n  " + "\n  ".join(problems))
    return config


def override(field: str, value: Path | str | tuple[Path, ...]) -> str:
    """One override that sets a field to a path, paths or text, whatever characters are in it."""
    plain = [str(path) for path in value] if isinstance(value, tuple) else str(value)
    # YAML's own spelling: it reads JSON's only up to U+FFFF
    dumped = yaml.safe_dump(plain, default_style='"', default_flow_style=True, width=math.inf)
    text = dumped.rstrip("\n")
    return f"{field}={text}"


def read_yaml(path: Path) -> dict[str, object]:
    """The sections that a file holds, unchecked; ConfigError where it is none of YAML."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file not found: {str(path)!r}; check the path") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"config file is not YAML: {str(path)!r} ({what}); mend it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"config file holds no sections: {str(path)!r}; see configs/ for examples"
        )
    return content


def _apply(content: dict[str, object], override: str) -> str | None:
    """Writes one override into `content`; returns what is wrong with it, if anything."""
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        return f"{override!r} is no override; write section.field=value"
    section = content
    for part in parts[:-1]:
        inner = section.get(part)
        copied = dict(inner) if isinstance(inner, Mapping) else {}
        section[part] = copied
        section = copied
    try:
        section[parts[-1]] = yaml.safe_load(text)
    except yaml.YAMLError:
        section[parts[-1]] = text
    return None


def _in_words(details: ErrorDetails) -> str:
    """One pydantic error as `path: what happened: value; what to do`."""
    parts = [str(part) for part in details["loc"]]
    path = ".".join(parts)
    if details["type"] == "value_error":  # of our own validators, which say what to do
        return f"{path}: {details['ctx']['error']}"
    if details["type"] != "extra_forbidden":
        return f"{path}: {details['msg'].lower()}: {details['input']!r}; see the field's docstring"
    valid = list(_field_names(parts[:-1]))
    nearest = get_close_matches(parts[-1], valid, n=1, cutoff=0.5)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else f"valid names: {', '.join(valid)}"
    return f"{path}: unknown field; {remedy}"


def _field_names(section: Sequence[str]) -> Iterator[str]:
    """Names of the fields of the model at a dotted path."""
    model: type[BaseModel] = Config
    for part in section:
        annotation = model.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    yield from model.model_fields
