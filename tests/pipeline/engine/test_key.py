"""Keys: equal for equal content, however it is spelt, and different for everything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.pipeline.engine.key import KEY_LENGTH, PreImage, canonical_json

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.dictionaries(st.text(), values))
def test_the_order_of_fields_changes_nothing_and_json_comes_back(params):
    backwards = dict(reversed(params.items()))
    assert canonical_json(params) == canonical_json(backwards)
    assert json.loads(canonical_json(params)) == params


def test_the_key_is_a_short_name_of_the_whole_pre_image():
    image = PreImage("train-xe", 1, {"train": {"lr": 1.0}}, {"features": "abc"})
    assert len(image.key) == KEY_LENGTH
    assert image.key == PreImage(**json.loads(json.dumps(image.as_dict()))).key


@pytest.mark.parametrize("constant", [float("nan"), float("inf")])
def test_a_value_without_a_json_spelling_is_refused(constant):
    with pytest.raises(ValueError, match="Out of range float values"):
        canonical_json({"lr": constant})
