"""Configuration of an experiment: one frozen model per stage, loaded from YAML and `--set`.

Defaults are in the models only. All problems are reported at once, each with its dotted path.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from reprlib import Repr
from typing import Any, Self

import yaml
from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from a2cap.data.data_config import DataConfig, PreprocessConfig, Section
from a2cap.data.errors import ConfigError
from a2cap.data.files.yaml_file import parse_yaml, read_yaml
from a2cap.extract.extract_config import ExtractConfig
from a2cap.model.captioners.kinds import KINDS, find_settings
from a2cap.model.captioners.model_config import KIND_ERROR, ModelConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.errors import KindError
from a2cap.model.plug_ins import MAY_IMPORT
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.training.captioner.recipes import RECIPES
from a2cap.pipeline.training.captioner.train_config import ScstConfig, TrainConfig
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.weights.detectors import settings_of_weights

_MOST_PROBLEMS = 20
_REPR = Repr()
_REPR.maxlevel = 2
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 200


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
    def _fill_unset(cls, content: object) -> object:
        if not isinstance(content, Mapping):
            return content
        filled = dict(content)
        sections = {name: value for name, value in content.items() if isinstance(value, Mapping)}
        kind = sections.get("model", {}).get("kind", "transformer")
        optim = sections.get("train", {}).get("optim")
        for name, fields in RECIPES.get(str(kind), {}).get(str(optim), {}).items():
            filled[name] = {**fields, **sections.get(name, {})}
        section = filled.get("extract")
        if isinstance(section, Mapping) and isinstance(section.get("weights"), str):
            stated = settings_of_weights(section["weights"])
            if stated.get("boxes") == "grid":
                stated["grid_size"] = 7  # the map has 7 to 9 cells a side
            filled["extract"] = {**stated, **section}
        return filled

    @model_validator(mode="after")
    def _resolve_precision(self) -> Self:
        sections = {name: getattr(self, name) for name in ("train", "scst", "detector", "evaluate")}
        chosen = {name: one for name, one in sections.items() if one.precision == "auto"}
        if not chosen:
            return self
        from a2cap.pipeline.runtime.training_precision import resolve_precision  # imports torch

        precision = resolve_precision("auto", self.runtime.device)
        for name, section in chosen.items():
            # the model is frozen for its users, who never see `auto`
            vars(self)[name] = section.model_copy(update={"precision": precision})
        return self

    def to_yaml(self) -> str:
        """Dump the resolved configuration, which is written beside each output."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_config(
    path: Path | None = None, overrides: Sequence[str] = (), *, is_of_user: bool = True
) -> Config:
    """Load the YAML file `path` and apply the overrides, each `section.field=value`.

    A name without suffix, such as a2-gate, is a file of the package's configs if none exists here.
    is_of_user: False for a file of a result, which may not import code outside a2.
    Raises ConfigError, which lists every unknown field, wrong value and malformed override.
    """
    if path is not None and not (path.exists() or path.suffix or len(path.parts) > 1):
        found = {file.stem: file for file in Path(str(files("a2cap.configs"))).glob("*.yaml")}
        if path.name not in found:
            near = get_close_matches(path.name, found, n=1)
            meant = f"did you mean {near[0]!r}? Name" if near else "name"
            named = ", ".join(sorted(found))
            raise ConfigError(f"config not found: {path.name!r}; {meant} a file, or one of {named}")
        path = found[path.name]
    content = {} if path is None else read_yaml(path)
    problems = []
    for override in overrides:
        problem = _apply(content, override)
        if problem:
            problems.append(problem)
    return _validate(content, problems, MAY_IMPORT if is_of_user else None)


def load_named_config(path: Path | None, overrides: Sequence[str]) -> Config:
    """Load a configuration as `load_config` does, which a file without `runtime.name` names."""
    config = load_config(path, overrides)
    if path is None or config.runtime.name is not None:
        return config
    named = config.runtime.model_copy(update={"name": path.stem})
    return config.model_copy(update={"runtime": named})


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
        errors = error.errors()
        count += len(errors)
        # to describe a thousand takes seconds
        captioner = _captioner_settings(content.get("model"))
        problems += [_format_problem(details, captioner) for details in errors[:_MOST_PROBLEMS]]
        if errors[_MOST_PROBLEMS:]:
            problems.append(f"and {len(errors) - _MOST_PROBLEMS:,} more")
    if problems:
        named = "1 problem" if count == 1 else f"{count:,} problems"
        raise ConfigError(f"{named} in the configuration:\n  " + "\n  ".join(problems))
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


def _apply(content: dict[str, object], override: str) -> str | None:
    """Write one override into `content`; return its problem, or None."""
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        return f"{override!r} is not an override; write section.field=value"
    section = content
    for part in parts[:-1]:
        inner = section.get(part)
        copied = dict(inner) if isinstance(inner, Mapping) else {}
        section[part] = copied
        section = copied
    try:
        section[parts[-1]] = parse_yaml(text)
    except yaml.YAMLError:
        section[parts[-1]] = text
    return None


def _captioner_settings(section: object) -> type[BaseModel]:
    """Return the class of the section `model`, after its kind was found."""
    kind = section.get("kind", "transformer") if isinstance(section, Mapping) else "transformer"
    with suppress(KindError):
        return find_settings(str(kind), may_import=False)[1]
    return TransformerConfig


def _format_problem(details: ErrorDetails, captioner: type[BaseModel]) -> str:
    """Format a pydantic error as `path: what happened: value; what to do`."""
    parts = [str(part) for part in details["loc"]]
    path = ".".join(parts)
    if details["type"] in ("value_error", KIND_ERROR):  # raised by a2, with a remedy
        return f"{path}: {details['ctx']['error']}"
    if details["type"] not in ("extra_forbidden", "invalid_key"):  # a key such as null or 3
        problem = f"{path}: {details['msg'].lower()}: {_shown(details['input'])}"
        at = (".".join(parts[1:]), captioner) if path.startswith("model.") else (path, Config)
        about = [valid_values(*at), describe_field(*at)]
        return f"{problem}; choose a valid value: {'; '.join(filter(None, about))}"
    is_of_model = parts[0] == "model"
    inside, root = (parts[1:-1], captioner) if is_of_model else (parts[:-1], Config)
    valid = list(_model_at(inside, root).model_fields)
    nearest = get_close_matches(parts[-1], valid, n=1, cutoff=0.5)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else f"valid names: {', '.join(valid)}"
    return f"{path}: unknown field; {remedy}"


def describe_field(path: str, root: type[BaseModel] = Config) -> str:
    """Describe the field at a dotted path, or around it: its default and its docstring."""
    model, name = _field_at(path, root)
    field = model.model_fields[name]
    default = "" if is_section(field) else f"default {field.default!r}. "
    return (default + " ".join((field.description or "").split())).removesuffix(".")


def valid_values(path: str, root: type[BaseModel] = Config) -> str:
    """Format the valid values of the field at a dotted path, or around it; "" for a section."""
    model, name = _field_at(path, root)
    if name == "kind":
        return f"{', '.join(KINDS)}, or module:Class of an installed package"
    if is_section(model.model_fields[name]):
        return ""
    return _format_schema(model.model_json_schema(by_alias=False)["properties"][name])


def explain_field(path: str) -> list[str]:
    """Describe a field with its valid values, or each field of a section, one line per field.

    Raises ConfigError for an unknown field.
    """
    known = [field for field, _ in field_paths()]
    if path not in known:
        nearest = get_close_matches(path, known, n=1, cutoff=0.5)
        remedy = f"did you mean {nearest[0]!r}?" if nearest else 'see "a2 config show"'
        raise ConfigError(f"unknown field: {path!r}; {remedy}")
    inside = [field for field in known if field.rpartition(".")[0] == path]
    if inside:
        return [f"{field}: {describe_field(field)}" for field in inside]
    return [f"{path}: {describe_field(path)}", f"valid: {valid_values(path)}"]


def field_paths(
    model: type[BaseModel] = Config, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Yield all sections and fields with their dotted paths."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field
        if is_section(field):
            yield from field_paths(type(field.default), f"{prefix}{name}.")


def section_models(name: str) -> list[type[BaseModel]]:
    """Return the model of a section; for `model`, the model of every kind of captioner."""
    return [model for model, _ in KINDS.values()] if name == "model" else [_model_at([name])]


def _format_schema(schema: Mapping[str, Any]) -> str:
    """Format the valid values of a JSON schema: `integer, >= 1, <= 1000`."""
    if "anyOf" in schema:
        return " or ".join(map(_format_schema, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        items = schema.get("prefixItems", [schema.get("items")])
        return f"list of {' and of '.join(dict.fromkeys(map(_format_schema, items)))}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[bound]}" for bound, sign in signs.items() if bound in schema]
    return ", ".join([schema.get("format", schema["type"]), *bounds])


def _model_at(section: Sequence[str], model: type[BaseModel] = Config) -> type[BaseModel]:
    """Return the model of the innermost section of a path."""
    for part in section:
        field = model.model_fields.get(part)
        if field is not None and is_section(field):
            model = type(field.default)  # of the default kind, where a section has several
    return model


def _field_at(path: str, model: type[BaseModel]) -> tuple[type[BaseModel], str]:
    """Return the innermost field on a dotted path, as its model and its name."""
    found: tuple[type[BaseModel], str] = (model, path.partition(".")[0])
    for part in path.split("."):
        if part in model.model_fields:
            found = model, part
        else:  # an item of a tuple
            break
        model = _model_at([part], model)
    return found


def is_section(field: FieldInfo) -> bool:
    """Return True if the field is a section and not a value."""
    return isinstance(field.default, BaseModel)


def _shown(value: object) -> str:
    """Format a value, shortened: aliases of YAML make a short file a huge value."""
    try:
        return _REPR.repr(value)
    except ValueError:  # hexadecimal digits have no limit of their number, decimal ones have
        return "an integer of more than 4,300 digits"
