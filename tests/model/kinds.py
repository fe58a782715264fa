"""Tiny float64 captioners of every kind, in eval mode."""

from functools import partial

import torch

from a2cap.model.alignment_config import FUSIONS as ALIGNMENT_FUSIONS
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.kinds import KINDS as ALL_KINDS
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.errors import ModelError
from tests.data.messages import message_of

refusal = partial(message_of, error=ModelError)

VOCABULARY_SIZE, FEATURE_WIDTH = 11, 6
FUSIONS = list(ALIGNMENT_FUSIONS)
_PLAIN = AlignmentConfig(fusion="none")
_LAYERED = {"width": 12, "heads": 2, "feed_forward": 10, "dropout": 0, "decoder_layers": 2}
TINY = {
    "transformer": {
        **{"width": 16, "heads": 2, "feed_forward": 24, "dropout": 0},
        **{"encoder_layers": 1, "decoder_layers": 2, "box_geometry": "linear"},
    },
    "aoa": {
        **{"width": 12, "heads": 2, "refiner_layers": 2},
        **dict.fromkeys(("dropout", "attention_dropout", "gate_dropout"), 0),
    },
    "gcn-lstm": {"width": 12, "embedding": 7, "attention_width": 5, "dropout": 0},
    "get": {**_LAYERED, "encoder_layers": 2, "attention_dropout": 0},
    "gru": {"width": 12, "embedding": 7},
    "lstm-a": {"width": 12, "embedding": 7, "attributes": 4, "dropout": 0},
    "log-bilinear": {"width": 12, "dropout": 0},
    "m2": {**_LAYERED, "encoder_layers": 2, "memory_slots": 3},
    "nic": {"width": 12, "embedding": 7, "dropout": 0},
    "show-attend-tell": {"width": 12, "embedding": 7, "attention_width": 6, "dropout": 0},
    "spatial": {**_LAYERED, "encoder_layers": 1, "cells": 4, "attention_dropout": 0},
    "up-down": {"width": 12, "embedding": 7, "attention_width": 5},
}
"""Kind -> fields of its settings at a tiny size."""


def _settings(kind, **fields):
    return ALL_KINDS[kind].settings(**{**TINY[kind], **fields})


KINDS = {kind: partial(_settings, kind) for kind in ALL_KINDS}
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
