import pytest
from pydantic import ValidationError

from a2cap.model.decoding.config import DecodingConfig


def test_defaults_are_the_papers_search():
    assert DecodingConfig().model_dump() == {
        "beam_size": 5,
        "max_length": 20,
        "length_penalty": 0.0,
        "no_repeat_ngram": 0,
        "groups": 1,
        "diversity": 0.5,
        "collapse_repeats": False,
    }


@pytest.mark.parametrize(
    "settings",
    [{"beam_size": 0}, {"max_length": 0}, {"max_length": 501}, {"groups": 0}, {"diversity": -0.1}],
)
def test_values_out_of_range_are_rejected(settings):
    with pytest.raises(ValidationError, match=next(iter(settings))):
        DecodingConfig(**settings)


def test_groups_that_do_not_divide_the_beams_are_rejected():
    with pytest.raises(ValidationError) as raised:
        DecodingConfig(groups=2)
    assert raised.value.errors()[0]["msg"] == (
        "Value error, 5 beams cannot be divided among 2 groups; choose a number of groups that "
        "divides beam_size"
    )


def test_config_is_frozen_and_rejects_unknown_fields():
    with pytest.raises(ValidationError, match="frozen"):
        DecodingConfig().beam_size = 3
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        DecodingConfig(beams=3)
