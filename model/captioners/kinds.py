"""Kinds of captioners: those of a2, and classes of other packages.

A kind is a name in KINDS, an entry point of the group `a2cap.captioners`, or `module:Class`, which
`model/plug_ins.py` imports where that is allowed. This module does not import torch; the class of a
kind does.
"""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from a2cap.model.captioners.attributes.lstm_a_config import LstmAConfig
from a2cap.model.captioners.captioner_settings import CaptionerSettings
from a2cap.model.captioners.gcn_lstm_config import GcnLstmConfig
from a2cap.model.captioners.get_config import GetConfig
from a2cap.model.captioners.log_bilinear_config import LogBilinearConfig
from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.errors import PlugInError
from a2cap.model.plug_ins import LONGEST, failed, find_object, is_path

if TYPE_CHECKING:
    from a2cap.model.captioners.encoder_decoder import EncoderDecoder

_HERE = "a2cap.model.captioners"


class Kind(NamedTuple):
    """A kind of captioner.

    settings: their class, which does not import torch and declares the kind's recipes and if it has
    attention; path: of its class, as `module:Class`.
    """

    settings: type[CaptionerSettings]
    path: str


KINDS: dict[str, Kind] = {
    "transformer": Kind(TransformerConfig, f"{_HERE}.transformer.transformer:TransformerCaptioner"),
    "up-down": Kind(UpDownConfig, f"{_HERE}.recurrent.up_down:UpDownCaptioner"),
    "show-attend-tell": Kind(
        ShowAttendTellConfig,
        f"{_HERE}.recurrent.show_attend_tell:ShowAttendTellCaptioner",
    ),
    "spatial": Kind(SpatialConfig, f"{_HERE}.spatial:SpatialCaptioner"),
    "gru": Kind(GruConfig, f"{_HERE}.recurrent.gru:GruCaptioner"),
    "aoa": Kind(AoaConfig, f"{_HERE}.recurrent.aoa:AoaCaptioner"),
    "m2": Kind(M2Config, f"{_HERE}.m2:M2Captioner"),
    "get": Kind(GetConfig, f"{_HERE}.get:GetCaptioner"),
    "lstm-a": Kind(LstmAConfig, f"{_HERE}.attributes.lstm_a:LstmACaptioner"),
    "gcn-lstm": Kind(GcnLstmConfig, f"{_HERE}.gcn_lstm:GcnLstmCaptioner"),
    "nic": Kind(NicConfig, f"{_HERE}.recurrent.nic:NicCaptioner"),
    "log-bilinear": Kind(LogBilinearConfig, f"{_HERE}.log_bilinear:LogBilinearCaptioner"),
}
"""The kinds of a2 by name."""

ENTRY_POINTS = "a2cap.captioners"


def find_settings(kind: str, *, may_import: bool) -> tuple[str, type[CaptionerSettings]]:
    """Return a kind as a key contains it, `module:Class` for a plug-in, and its settings' class.

    may_import: False for a kind that a file of a captioner names. Raises PlugInError.
    """
    if kind in KINDS:
        return kind, KINDS[kind].settings
    path = _path_of(kind)
    settings = getattr(_find_class(path, may_import=may_import), "settings", None)
    if not (isinstance(settings, type) and issubclass(settings, CaptionerSettings)):
        raise PlugInError(
            f"{path!r} has no settings: set its attribute `settings` to a subclass of "
            "a2cap.model.captioners.captioner_settings.CaptionerSettings"
        )
    return path, settings


def make_captioner(
    config: CaptionerSettings, *, feature_width: int, vocabulary_size: int
) -> "EncoderDecoder":
    """Create an untrained captioner; its settings were validated, so that its class may load.

    Raises PlugInError for a class of a user that fails.
    """
    path = KINDS[config.kind].path if config.kind in KINDS else config.kind
    captioner = _find_class(path, may_import=True)
    try:
        return captioner(config, feature_width=feature_width, vocabulary_size=vocabulary_size)
    except (Exception, SystemExit) as error:
        if config.kind in KINDS:
            raise
        raise failed(path, error) from error


def _path_of(kind: str) -> str:
    """Return `module:Class` of a plug-in."""
    if is_path(kind):
        return kind
    declared = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    if kind in declared:
        return declared[kind]
    kinds, kind = [*KINDS, *sorted(declared)], kind[:LONGEST]
    nearest = get_close_matches(kind, kinds, n=1, cutoff=0.3) or kinds
    raise PlugInError(
        f"unknown kind {kind!r}; did you mean {nearest[0]!r}? Kinds: {', '.join(kinds)}, or "
        "module:Class of an installed package"
    )


def _find_class(path: str, *, may_import: bool) -> Callable[..., "EncoderDecoder"]:
    """Return a class by `module:Class`, imported only where that is allowed."""
    captioner = find_object(path, may_import=may_import, group=ENTRY_POINTS)
    base = sys.modules.get(f"{_HERE}.encoder_decoder")  # which its subclasses have imported
    if base is None or not (
        isinstance(captioner, type) and issubclass(captioner, base.EncoderDecoder)
    ):
        raise PlugInError(
            f"{path!r} is not a captioner: it must be a subclass of "
            "a2cap.model.captioners.encoder_decoder.EncoderDecoder"
        )
    return captioner
