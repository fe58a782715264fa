"""Tiny float64 captioners of every kind, in eval mode."""

from functools import partial

import torch

from a2cap.model.alignment_config import FUSIONS as ALIGNMENT_FUSIONS
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.attributes.lstm_a_config import LstmAConfig
from a2cap.model.captioners.gcn_lstm_config import GcnLstmConfig
from a2cap.model.captioners.get_config import GetConfig
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.log_bilinear_config import LogBilinearConfig
from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.errors import ModelError
from tests.data.messages import message_of

refusal = partial(message_of, error=ModelError)

VOCABULARY_SIZE, FEATURE_WIDTH = 11, 6
FUSIONS = list(ALIGNMENT_FUSIONS)
_PLAIN = AlignmentConfig(fusion="none")
KINDS = {
    "transformer": lambda **fields: TransformerConfig(
        **{
            **{"width": 16, "heads": 2, "feed_forward": 24, "dropout": 0},
            **{"encoder_layers": 1, "decoder_layers": 2, "box_geometry": "linear", **fields},
        }
    ),
    "aoa": lambda **fields: AoaConfig(
        **{
            **{"width": 12, "heads": 2, "refiner_layers": 2},
            **dict.fromkeys(("dropout", "attention_dropout", "gate_dropout"), 0),
            **fields,
        }
    ),
    "gcn-lstm": lambda **fields: GcnLstmConfig(
        **{"width": 12, "embedding": 7, "attention_width": 5, "dropout": 0, **fields}
    ),
    "get": lambda **fields: GetConfig(
        **{
            **{"width": 12, "heads": 2, "feed_forward": 10, "dropout": 0, "attention_dropout": 0},
            **{"encoder_layers": 2, "decoder_layers": 2, **fields},
        }
    ),
    "gru": lambda **fields: GruConfig(**{"width": 12, "embedding": 7, **fields}),
    "lstm-a": lambda **fields: LstmAConfig(
        **{"width": 12, "embedding": 7, "attributes": 4, "dropout": 0, **fields}
    ),
    "log-bilinear": lambda **fields: LogBilinearConfig(**{"width": 12, "dropout": 0, **fields}),
    "m2": lambda **fields: M2Config(
        **{
            **{"width": 12, "heads": 2, "feed_forward": 10, "dropout": 0, "memory_slots": 3},
            **{"encoder_layers": 2, "decoder_layers": 2, **fields},
        }
    ),
    "nic": lambda **fields: NicConfig(**{"width": 12, "embedding": 7, "dropout": 0, **fields}),
    "show-attend-tell": lambda **fields: ShowAttendTellConfig(
        **{"width": 12, "embedding": 7, "attention_width": 6, "dropout": 0, **fields}
    ),
    "spatial": lambda **fields: SpatialConfig(
        **{
            **{"width": 12, "heads": 2, "feed_forward": 10, "cells": 4, "encoder_layers": 1},
            **{"decoder_layers": 2, "dropout": 0, "attention_dropout": 0, **fields},
        }
    ),
    "up-down": lambda **fields: UpDownConfig(width=12, embedding=7, attention_width=5, **fields),
}
"""Kind -> its settings at a tiny size, with the given fields."""


def _hard(*, alignment, **fields):
    normalised = alignment.model_copy(update={"renormalise_aligned": True})
    return KINDS["show-attend-tell"](attention="hard", alignment=normalised, **fields)


VARIANTS = {
    "attributes of each token": lambda **fields: KINDS["lstm-a"](variant="a4", **fields),
    "RNN": lambda **fields: KINDS["nic"](cell="rnn", **fields),
    "hard attention": _hard,
    "gate controller": lambda **fields: KINDS["get"](
        controller="gate", gated_output=True, **fields
    ),
}
"""Option that changes the network -> settings of its kind with it."""


def has_attention(kind):
    """Return True if a kind at its tiny size attends to regions."""
    return {**KINDS, **VARIANTS}[kind](alignment=_PLAIN).has_attention


def make(kind, *, alignment=None, **fields):
    """Make a captioner whose predictions differ clearly between tokens and regions."""
    torch.manual_seed(0)
    aligned = alignment or {}
    if not has_attention(kind):
        aligned = {**aligned, "fusion": "none"}
    captioner = make_captioner(
        {**KINDS, **VARIANTS}[kind](alignment=AlignmentConfig(**aligned), **fields),
        feature_width=FEATURE_WIDTH,
        vocabulary_size=VOCABULARY_SIZE,
    ).double()
    with torch.no_grad():
        for parameter in captioner.parameters():
            # authors' initial values are too small to tell a wrong input from a right one
            spread = 0.3 if parameter.ndim == 1 else 0.5
            parameter.add_(torch.randn_like(parameter) * spread)
        captioner.decoder.output.weight.mul_(2)
    return captioner.eval()
