from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from a2cap.data.captions.presets import PRESETS
from a2cap.data.config import DataConfig, PreprocessConfig


def test_no_path_is_set_by_default_and_captions_have_up_to_twenty_tokens():
    paths = ("images", "annotations", "features", "sizes", "split_list", "split", "instances")
    paths += ("word_groups", "scenes")
    assert DataConfig().model_dump() == {**dict.fromkeys(paths), "ids": "number"}
    chosen = {"vocabulary": "karpathy", "tokenizer": "karpathy"}
    assert PreprocessConfig().model_dump() == {**chosen, "min_count": None, "max_length": 20}


def test_every_vocabulary_preset_can_be_chosen():
    choices = get_args(PreprocessConfig.model_fields["vocabulary"].annotation)
    assert set(choices) == set(PRESETS)


@pytest.mark.parametrize("config", [DataConfig, PreprocessConfig])
def test_every_field_has_a_description(config):
    assert all(field.description for field in config.model_fields.values())


@pytest.mark.parametrize(
    "values", [{"min_count": 0}, {"max_length": 0}, {"vocabulary": "gpt2"}, {"words": 1}]
)
def test_values_out_of_bounds_and_unknown_fields_are_rejected(values):
    with pytest.raises(ValidationError, match=next(iter(values))):
        PreprocessConfig(**values)


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        setattr(DataConfig(), "images", Path("x"))  # noqa: B010 - mypy knows that it is frozen
