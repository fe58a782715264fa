import pytest
from pydantic import ValidationError

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig


def test_defaults_are_the_papers_sizes_and_a2s_reading_of_open_points():
    config = TransformerConfig()
    assert (config.width, config.heads, config.feed_forward) == (512, 8, 2048)
    assert (config.encoder_layers, config.decoder_layers, config.dropout) == (6, 6, 0.1)
    assert config.box_geometry == "none"
    assert not config.blind
    assert config.alignment.model_dump() == {
        "fusion": "gate",
        "mask_network": "bilinear",
        "mask_slots": 100,
        "average": "uniform",
        "renormalise_aligned": False,
        "renormalise_perturbed": False,
        "detach_mask": True,
        "penalty_weight": 0.035,
        "moving_rate": 0.1,
        "decay_steps": 1e5,
        "aligned_layers": "all",
    }


def test_config_survives_json_with_a_list_of_layers():
    config = TransformerConfig(alignment=AlignmentConfig(aligned_layers=(1, 6), fusion="decay"))
    assert TransformerConfig.model_validate_json(config.model_dump_json()) == config


def test_a_width_that_heads_do_not_divide_is_rejected():
    with pytest.raises(
        ValidationError,
        match="width 100 does not give each of 8 heads an even width; choose a multiple of 16",
    ):
        TransformerConfig(width=100)


def test_an_aligned_layer_above_the_decoder_is_rejected():
    message = "aligned_layers contains layer 7, the decoder has 6; choose layers from 1 to 6"
    with pytest.raises(ValidationError, match=message):
        TransformerConfig(alignment=AlignmentConfig(aligned_layers=(1, 7)))
