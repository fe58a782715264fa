import pytest
from pydantic import ValidationError

from a2cap.model.decoding.decoding_config import DecodingConfig


def test_defaults_are_the_papers_search():
    config = DecodingConfig()
    assert (config.method, config.beam_size, config.max_length) == ("beam-search", 5, 20)
    assert (config.length_penalty, config.no_repeat_ngram, config.groups) == (0, 0, 1)
    assert (config.temperature, config.top_k, config.top_p) == (1, 0, 1)
    assert not config.min_length and not config.collapse_repeats


@pytest.mark.parametrize(
    "settings",
    [{"beam_size": 0}, {"max_length": 0}, {"max_length": 501}, {"groups": 0}, {"diversity": -0.1}],
)
def test_values_out_of_range_are_rejected(settings):
    with pytest.raises(ValidationError, match=next(iter(settings))):
        DecodingConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"groups": 2},
            "5 beams cannot be divided among 2 groups; choose a number of groups that divides "
            "beam_size",
        ),
        (
            {"min_length": 9, "max_length": 8},
            "min_length 9 is above max_length 8; lower min_length, or raise max_length",
        ),
        (
            {"top_k": 3},
            "top_k is 3, but method is 'beam-search'; leave top_k out, or set method to sampling",
        ),
        (
            {"consensus": True, "beam_size": 2},
            "consensus is true, but none of 2 captions agrees more with the others; raise "
            "beam_size, or set consensus to false",
        ),
        (
            {"method": "sampling", "groups": 5},
            "groups is 5, but method is 'sampling'; leave groups out, or set method to beam-search",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(settings, message):
    with pytest.raises(ValidationError) as raised:
        DecodingConfig(**settings)
    assert raised.value.errors()[0]["msg"] == f"Value error, {message}"


def test_captions_of_one_length_only_may_be_requested():
    assert DecodingConfig(min_length=8, max_length=8).min_length == 8
