"""Settings of a captioner of any kind, a union of those beside the classes."""

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import BaseModel, BeforeValidator, Field

from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig


def _with_kind(settings: object) -> object:
    """Let the kind be a transformer where settings name none."""
    return {"kind": "transformer", **settings} if isinstance(settings, Mapping) else settings


AnyConfig = (
    TransformerConfig
    | UpDownConfig
    | ShowAttendTellConfig
    | SpatialConfig
    | GruConfig
    | AoaConfig
    | M2Config
    | NicConfig
)
"""Union to which a new kind is added."""

ModelConfig = Annotated[AnyConfig, Field(discriminator="kind"), BeforeValidator(_with_kind)]
"""Settings of a captioner of any kind."""

MODEL_KINDS: dict[str, type[BaseModel]] = {
    config.model_fields["kind"].default: config for config in get_args(AnyConfig)
}
"""Kind -> class of its settings."""
