"""Round trips of the configuration: override, YAML file, resolved file."""

import json
import types
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from a2cap.data.errors import ConfigError
from a2cap.pipeline.configuration import load_config, override
from tests.pipeline.config_fields import config_fields

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def values(annotation, metadata=()):
    """Build the strategy of an annotation's values, within the bounds of its metadata."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        [inner] = arguments[1:]
        return values(arguments[0], inner.metadata if isinstance(inner, FieldInfo) else [inner])
    if origin in (Union, types.UnionType):
        return st.one_of([values(argument, metadata) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), min_size=1, max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    return plain_values(
        annotation, {key: value for item in metadata for key, value in bounds(item)}
    )


def bounds(item):
    """List the names and values of the bounds in a metadata item, such as Ge(ge=1)."""
    return [(name, getattr(item, name)) for name in ("ge", "gt", "le", "lt") if hasattr(item, name)]


def plain_values(kind, limits):
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if kind is int:
        low = low + 1 if "gt" in limits else low
        return st.integers(low, 10**6 if high is None else high)
    if kind is float:
        return st.floats(
            low,
            high,
            exclude_min="gt" in limits,
            exclude_max="lt" in limits,
            allow_nan=False,
            allow_infinity=False,
        )
    return {bool: st.booleans(), type(None): st.none(), str: TEXT, Path: TEXT.map(Path)}[kind]


FIELDS = config_fields()

ALLOWED_BY_OTHERS = {
    "evaluate.groups": st.sampled_from([1, 5]),
    "evaluate.metrics": st.just(("statistics:fmean",)),
    "extract.min_regions": st.integers(1, 100),
    "extract.max_regions": st.integers(10, 10**6),
    "extract.proposals": st.integers(10, 10**6),
    "model.width": st.integers(1, 1000).map(lambda half: 16 * half),
    "model.heads": st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]),
    "model.alignment.aligned_layers": st.just("all")
    | st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
}
"""Field whose values another field's default bounds, or are functions -> allowed values."""


def values_of(name):
    field = FIELDS[name]
    return ALLOWED_BY_OTHERS.get(name, values(field.annotation, field.metadata))


def plain(value):
    """Convert a value to its YAML form."""
    return str(value) if isinstance(value, Path) else json.loads(json.dumps(value, default=str))


def set_to(name, value):
    """Format the override that sets a field."""
    paths = isinstance(value, tuple) and isinstance(value[0], Path)
    text = isinstance(value, Path | str)
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        return override(name, [list(texts) for texts in value])
    return override(name, value) if text or paths else f"{name}={json.dumps(value)}"


def loaded(*arguments):
    """Load a configuration; discard the example if its fields contradict each other."""
    try:
        return load_config(*arguments)
    except ConfigError:
        assume(False)


def leaf_of(config, name):
    for part in name.split("."):
        config = getattr(config, part)
    return config


RESOLVED = tuple(
    f"{name}.precision" for name in ("train", "scst", "evaluate", "detector", "encoder")
)
"""Fields whose `auto` is replaced by the choice when a configuration is loaded."""


# Only the field's own YAML is written here: dumping and reading all fields takes 20 times longer
# and is what the next test does.
@pytest.mark.slow
def test_any_value_of_any_field_survives_an_override_and_a_file(tmp_path):
    path = tmp_path / "config.yaml"

    def survives(name, value):
        config = loaded(None, [set_to(name, value)])
        assert leaf_of(config, name) == value or (value == "auto" and name in RESOLVED)
        assert type(leaf_of(config, name)) is type(value)
        path.write_text(nested(name, plain(value)), encoding="utf-8")
        assert load_config(path) == config

    # most values of a field such as min_side contradict the default of another
    checks = [HealthCheck.filter_too_much]
    for name in FIELDS:
        limits = settings(max_examples=5, suppress_health_check=checks)
        limits(given(st.just(name), values_of(name))(survives))()


def nested(name, value):
    """Dump one field in its sections."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return yaml.safe_dump(value)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_any_configuration_reads_back_from_its_resolved_file(tmp_path_factory, data):
    chosen = data.draw(st.sets(st.sampled_from(sorted(FIELDS)), min_size=8, max_size=24))
    drawn = {name: data.draw(values_of(name)) for name in sorted(chosen)}
    config = loaded(None, [set_to(name, value) for name, value in drawn.items()])
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    again = load_config(path)
    assert again == config
    assert again.to_yaml() == config.to_yaml()


FLOATS = [name for name, field in FIELDS.items() if "float" in str(field.annotation)]


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_a_value_that_is_not_finite_is_rejected(value):
    for name in FLOATS:
        written = f"[{value}, 0.9]" if name == "train.betas" else value
        with pytest.raises(ConfigError, match=name):
            load_config(None, [f"{name}={written}"])
