"""The captioner class of every kind of settings."""

from collections.abc import Callable

from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.m2 import M2Captioner
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.model.captioners.recurrent.aoa import AoaCaptioner
from a2cap.model.captioners.recurrent.gru import GruCaptioner
from a2cap.model.captioners.recurrent.nic import NicCaptioner
from a2cap.model.captioners.recurrent.show_attend_tell import ShowAttendTellCaptioner
from a2cap.model.captioners.recurrent.up_down import UpDownCaptioner
from a2cap.model.captioners.spatial import SpatialCaptioner
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner

CLASSES: dict[str, Callable[..., EncoderDecoder]] = {
    "transformer": TransformerCaptioner,
    "aoa": AoaCaptioner,
    "gru": GruCaptioner,
    "m2": M2Captioner,
    "nic": NicCaptioner,
    "show-attend-tell": ShowAttendTellCaptioner,
    "spatial": SpatialCaptioner,
    "up-down": UpDownCaptioner,
}
"""Kind -> class, called with the settings of that kind."""


def make_captioner(
    config: ModelConfig, *, feature_width: int, vocabulary_size: int
) -> EncoderDecoder:
    """Create an untrained captioner."""
    return CLASSES[config.kind](
        config, feature_width=feature_width, vocabulary_size=vocabulary_size
    )
