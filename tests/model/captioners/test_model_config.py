import pytest
from pydantic import ValidationError

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
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


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        (
            TransformerConfig,
            {"width": 100},
            "width 100 does not give each of 8 heads an even width; choose a multiple of 16",
        ),
        (
            TransformerConfig,
            {"alignment": AlignmentConfig(aligned_layers=(1, 7))},
            "aligned_layers contains layer 7, the decoder has 6; choose layers from 1 to 6",
        ),
        (AoaConfig, {"width": 100}, "width 100 is not divided by 8 heads; choose a multiple of 8"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(settings, fields, message):
    with pytest.raises(ValidationError, match=message):
        settings(**fields)
