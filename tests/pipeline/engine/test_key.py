"""Keys: equal for equal content, different for different content."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from a2cap.pipeline.engine.key import KEY_LENGTH, PreImage, canonical_json, key_fields

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.dictionaries(st.text(), values, max_size=5))
def test_canonical_json_ignores_the_order_of_fields_and_loads_back(params):
    backwards = dict(reversed(params.items()))
    assert canonical_json(params) == canonical_json(backwards)
    assert json.loads(canonical_json(params)) == params


def test_canonical_json_is_ascii_without_spaces():
    assert canonical_json({"b": ["é", 1], "a": None}) == '{"a":null,"b":["\\u00e9",1]}'


def test_a_field_added_later_is_in_the_key_unless_it_has_its_default():
    class Settings(BaseModel):
        lr: float = Field(1.0, serialization_alias="rate", json_schema_extra={"unit": "1"})
        seed: int = 0
        optimiser: str = Field("adam", json_schema_extra={"added": True})

    assert key_fields(Settings(), exclude={"seed"}) == {"rate": 1.0}
    changed = Settings(optimiser="sgd")
    assert key_fields(changed) == {"rate": 1.0, "seed": 0, "optimiser": "sgd"}


def test_a_field_without_effect_always_has_its_default_in_the_key():
    class Settings(BaseModel):
        every: int = Field(10, json_schema_extra={"no_effect": True})

    assert key_fields(Settings(every=3)) == {"every": 10}


def test_the_key_survives_a_json_round_trip_of_the_pre_image():
    image = PreImage("train-xe", 1, {"train": {"lr": 1.0}}, {"features": "abc"})
    assert len(image.key) == KEY_LENGTH
    assert image.key == PreImage(**json.loads(json.dumps(image.as_dict()))).key


@pytest.mark.parametrize("constant", [float("nan"), float("inf")])
def test_a_value_without_a_json_form_is_rejected(constant):
    with pytest.raises(ValueError, match="Out of range float values"):
        canonical_json({"lr": constant})
