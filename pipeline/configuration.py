"""Configuration of an experiment: one frozen model per stage, loaded from YAML and `--set`.

Defaults are in the models only. All problems are reported at once, each with its dotted path.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Self

import yaml
from pydantic import ValidationError, ValidationInfo, model_validator

from a2cap.data.data_config import DataConfig, PreprocessConfig, Section
from a2cap.data.errors import ConfigError, near_name
from a2cap.data.files.yaml_file import parse_yaml, read_yaml
from a2cap.extract.extract_config import LITE, OWN_ENCODER, ExtractConfig
from a2cap.model.captioners.captioner_settings import CaptionerSettings
from a2cap.model.captioners.kinds import find_settings
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.errors import PlugInError
from a2cap.model.plug_ins import MAY_IMPORT
from a2cap.pipeline.config_fields import format_problems
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.training.captioner.train_config import ScstConfig, TrainConfig
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from a2cap.pipeline.weights.detectors import settings_of_weights


class Config(Section):
    """One experiment."""

    detector: DetectorConfig = DetectorConfig()
    """Training of a detector, which is not a stage of the experiment."""
    data: DataConfig = DataConfig()
    """Paths of images and captions."""
    extract: ExtractConfig = ExtractConfig()
    """Extraction of region features."""
    preprocess: PreprocessConfig = PreprocessConfig()
    """Preprocessing of captions."""
    model: ModelConfig = TransformerConfig()
    """The captioner."""
    encoder: EncoderConfig = EncoderConfig()
    """Training of the image encoder, where `extract.weights` is `encoder`."""
    train: TrainConfig = TrainConfig()
    """Cross-entropy training."""
    scst: ScstConfig = ScstConfig()
    """Self-critical training, skipped if it has no epochs."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Decoding and scoring."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Device, workers and threads."""

    @model_validator(mode="before")
    @classmethod
    def _fill_unset(cls, content: object, info: ValidationInfo) -> object:
        if not isinstance(content, Mapping):
            return content
        filled = dict(content)
        sections = {name: value for name, value in content.items() if isinstance(value, Mapping)}
        optim = sections.get("train", {}).get("optim")
        if optim is not None:
            settings = _settings_of(_kind_of(content), may_import=info.context == MAY_IMPORT)
            recipe = settings.recipes.get(str(optim), {}) if settings is not None else {}
            for name, fields in recipe.items():
                filled[name] = {**fields, **sections.get(name, {})}
        section = filled.get("extract")
        if isinstance(section, Mapping) and isinstance(section.get("weights"), str):
            stated = settings_of_weights(section["weights"])
            if section["weights"] == OWN_ENCODER:
                stated = {"boxes": "grid", "grid_backbone": LITE[-1]}
            if stated.get("grid_backbone") in LITE:
                stated["grid_size"] = 7  # the map has 7 to 9 cells a side
            filled["extract"] = {**stated, **section}
        return filled

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        """Reject settings that could not act with the others; those of a kind check themselves.

        Fields of alignment with the fusion none, and the like, may stay: a comparison sets them for
        all of its runs.
        """
        train, scst, kind = self.train, self.scst, self.model.kind
        if self.trains_encoder and not self.extract.pools_map:
            raise ValueError(
                f"extract.weights is 'encoder', but extract.boxes is {self.extract.boxes!r}, which "
                "pools no map of extract.grid_backbone; set extract.boxes to grid"
            )
        if train.optim is not None and train.optim not in self.model.recipes:
            raise ValueError(
                f"train.optim is {train.optim!r}, but captioner {kind!r} has no such recipe; leave "
                "train.optim out, and set train.lr and other fields"
            )
        if train.supervision and not self.model.has_attention:
            raise ValueError(
                f"train.supervision is {train.supervision}, but captioner {kind!r} has no "
                "attention; set train.supervision to 0"
            )
        if train.grouping != "image" and self.model.attribute_tokens:
            raise ValueError(
                f"train.grouping is {train.grouping!r}, but captioner {kind!r} learns attributes "
                "from all captions of an image together; set train.grouping to image"
            )
        defaults = ScstConfig()
        replaced = ("bleu_weight", "idf", "eos") if scst.reward else ()
        for name in replaced:
            if getattr(scst, name) != getattr(defaults, name):
                raise ValueError(
                    f"scst.{name} is {getattr(scst, name)!r}, but scst.reward replaces the reward "
                    f"that it belongs to; leave scst.{name} or scst.reward out"
                )
        return self

    @model_validator(mode="after")
    def _resolve_precision(self) -> Self:
        names = ("train", "scst", "detector", "encoder", "evaluate")
        sections = {name: getattr(self, name) for name in names}
        automatic = {name: s for name, s in sections.items() if s.precision == "auto"}
        if not automatic:
            return self
        from a2cap.pipeline.runtime.training_precision import (
            resolve_training_precision,  # imports torch
        )

        precision = resolve_training_precision("auto", self.runtime.device)
        for name, section in automatic.items():
            # the model is frozen for its users, who never see `auto`
            vars(self)[name] = section.model_copy(update={"precision": precision})
        return self

    @property
    def trains_encoder(self) -> bool:
        """Whether features are those of an encoder that the experiment trains."""
        return self.extract.weights == OWN_ENCODER and self.data.features is None

    def to_yaml(self) -> str:
        """Dump the resolved configuration, which is written beside each output."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


Override = str | tuple[str, object]
"""`section.field=YAML` of a command line, or (`section.field`, value) of a program."""


def load_config(
    path: Path | None = None, overrides: Sequence[Override] = (), *, is_of_user: bool = True
) -> Config:
    """Load the YAML file `path` and apply the overrides.

    A name without suffix, such as a2-gate, is a file of the package's configs if none exists here.
    is_of_user: False for a file of a result, which may not import code outside a2.
    Raises ConfigError, which lists every unknown field, wrong value and malformed override.
    """
    if path is not None and not (path.exists() or path.suffix or len(path.parts) > 1):
        bundled = {file.stem: file for file in Path(str(files("a2cap.configs"))).glob("*.yaml")}
        if path.name not in bundled:
            near = near_name(path.name, bundled)
            remedy = f"{near} Name" if near else "name"
            names = ", ".join(sorted(bundled))
            raise ConfigError(
                f"config not found: {path.name!r}; {remedy} a file, or one of {names}"
            )
        path = bundled[path.name]
    content = {} if path is None else read_yaml(path)
    problems = [problem for override in overrides if (problem := _apply(content, override))]
    return _validate(content, problems, MAY_IMPORT if is_of_user else None)


def load_named_config(path: Path | None, overrides: Sequence[Override]) -> Config:
    """Load a configuration as `load_config` does, which a file without `runtime.name` names."""
    config = load_config(path, overrides)
    if path is None or config.runtime.name is not None:
        return config
    runtime = config.runtime.model_copy(update={"name": path.stem})
    return config.model_copy(update={"runtime": runtime})


def config_from(sections: Mapping[str, object]) -> Config:
    """Return the configuration with these fields by section; raise ConfigError as `load_config`."""
    return _validate(sections, [], MAY_IMPORT)


def _validate(
    content: Mapping[str, object], problems: list[str], context: dict[str, bool] | None
) -> Config:
    """Return the configuration; raise ConfigError with these problems and those found."""
    count = len(problems)
    try:
        config = Config.model_validate(content, context=context)
    except ValidationError as error:
        kind = _kind_of(content)
        captioner = _settings_of(kind, may_import=False) or TransformerConfig
        lines, number = format_problems(error.errors(), root=Config, captioner=captioner, kind=kind)
        problems, count = [*problems, *lines], count + number
    if problems:
        total = "1 problem" if count == 1 else f"{count:,} problems"
        raise ConfigError(f"{total} in the configuration:\n  " + "\n  ".join(problems))
    return config


def override(field: str, value: Path | str | tuple[Path, ...] | list[list[str]]) -> str:
    """Format an override that sets a field to a path, paths, text or lists with any characters."""
    if isinstance(value, list):
        plain: object = value
    else:
        plain = [str(path) for path in value] if isinstance(value, tuple) else str(value)
    # quoted by YAML, which reads JSON's escapes only up to U+FFFF
    dumped = yaml.safe_dump(plain, default_style='"', default_flow_style=True, width=math.inf)
    text = dumped.rstrip("\n")
    return f"{field}={text}"


def _apply(content: dict[str, object], override: Override) -> str | None:
    """Write one override into `content`; return its problem, or None."""
    if isinstance(override, str):
        name, equals, text = override.partition("=")
        value: object = text
        with suppress(yaml.YAMLError):
            value = parse_yaml(text)
        has_value = bool(equals)
    else:
        (name, value), has_value = override, True
        override = f"{name}={value}"
    parts = name.strip().split(".")
    if parts == ["model"] and has_value and value not in (None, ""):
        # the defaults of a kind, whatever the file says of another one
        content["model"] = {"kind": str(value)}
        return None
    if not has_value or len(parts) < 2 or not all(parts):
        return f"{override!r} is not an override; write section.field=value, or model=KIND"
    section = content
    for part in parts[:-1]:
        inner = section.get(part)
        copied = dict(inner) if isinstance(inner, Mapping) else {}
        section[part] = copied
        section = copied
    section[parts[-1]] = value
    return None


def _kind_of(content: Mapping[str, object]) -> str:
    """Return the kind of captioner that the content of a configuration names."""
    section = content.get("model")
    return (
        str(section.get("kind", "transformer")) if isinstance(section, Mapping) else "transformer"
    )


def _settings_of(kind: str, *, may_import: bool) -> type[CaptionerSettings] | None:
    """Return the class of the section `model`, None for a kind that is not known."""
    with suppress(PlugInError):
        return find_settings(kind, may_import=may_import)[1]
    return None
