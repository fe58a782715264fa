"""Numbers of parameters of captioners without alignment: as published, or by the equations."""

import pytest
import torch

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.get_config import GetConfig
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig


def size_of_aoa(d, words):
    """Count the embedding, 6 refining layers, LSTM, attention, its gate and the output layer."""
    gate, layer_norm = 2 * d * (2 * d + 1), 2 * d
    encoder = 2048 * d + d + 6 * ((d + 1) * 3 * d + gate + layer_norm) + layer_norm
    attention = (d + 1) * d + (d + 1) * 2 * d + gate + layer_norm
    return encoder + words * d + (3 * d + 1) * 4 * d + attention + (d + 1) * words


def size_of_m2(d, inner, words):
    norm, projection = 2 * d, (d + 1) * d
    feed_forward = (d + 1) * inner + (inner + 1) * d + norm
    encoder_layer = 4 * projection + 2 * 40 * d + norm + feed_forward
    decoder_layer = 8 * projection + 2 * norm + 3 * (2 * d + 1) * d + feed_forward
    return (2048 + 1) * d + norm + 3 * encoder_layer + 3 * decoder_layer + 2 * words * d


def size_of_get(d, inner, words):
    norm, projection = 2 * d, (d + 1) * d
    feed_forward = (d + 1) * inner + (inner + 1) * d + norm
    encoder = (2048 + 1) * d + norm + 3 * (4 * projection + norm + feed_forward)
    fusion = (2 * d + 1) * 4 * d
    decoder = 3 * (8 * projection + 2 * norm + feed_forward)
    return encoder + fusion + decoder + words * d + (d + 1) * words


@pytest.mark.parametrize(
    ("kind", "settings", "feature_width", "vocabulary_size", "expected"),
    [
        (AoaConfig, {}, 2048, 10_369, size_of_aoa(1024, 10_369)),
        (M2Config, {}, 2048, 10_201, size_of_m2(512, 2048, 10_201)),
        (GetConfig, {}, 2048, 10_201, size_of_get(512, 2048, 10_201)),
        (UpDownConfig, {}, 2048, 10_010, 57_983_098),
        (SpatialConfig, {}, 512, 10_000, 27_052_816),
        # with the image as input of the GRU
        (GruConfig, {"attention": "none"}, 2048, 10_000, 9_921_808 + 3 * 512 * 512),
        (GruConfig, {"attention": "dot"}, 2048, 10_000, 15_041_808),
        (GruConfig, {"attention": "general"}, 2048, 10_000, 15_303_952),
        (GruConfig, {"attention": "additive"}, 2048, 10_000, 15_566_608),
        # the authors' attention has one more bias, which the softmax over regions undoes
        (ShowAttendTellConfig, {"width": 1800}, 512, 10_000, 35_333_450 - 1),
        (ShowAttendTellConfig, {"width": 1300}, 512, 10_000, 26_057_950 - 1),
        (ShowAttendTellConfig, {"width": 1000}, 512, 10_000, 21_452_650 - 1),
    ],
)
def test_the_size_of_a_captioner(kind, settings, feature_width, vocabulary_size, expected):
    config = kind(alignment=AlignmentConfig(fusion="none"), **settings)
    with torch.device("meta"):
        captioner = make_captioner(
            config, feature_width=feature_width, vocabulary_size=vocabulary_size
        )
    assert sum(parameter.numel() for parameter in captioner.parameters()) == expected
