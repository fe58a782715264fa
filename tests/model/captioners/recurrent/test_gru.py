"""The GRU captioner against its equations in numpy and float64."""

from itertools import product

import numpy as np
import pytest

from a2cap.model.captioner import trace_attention
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from tests.model.kinds import FUSIONS, make
from tests.model.transcription import Weights, assert_equal_to_transcription, sigmoid, softmax
from tests.quick import crossed


def gru(weights, inputs, state):
    """Compute r, z, n = tanh(u W + b + r (s U + c)) and (1 - z) n + z s."""
    from_input = np.split(weights["cell.weight_ih"] @ inputs + weights["cell.bias_ih"], 3)
    from_state = np.split(weights["cell.weight_hh"] @ state + weights["cell.bias_hh"], 3)
    reset, update = (sigmoid(from_input[part] + from_state[part]) for part in (0, 1))
    new = np.tanh(from_input[2] + reset * from_state[2])
    return (1 - update) * new + update * state


def log_probs(captioner, align, features, fed):
    config, weights = captioner.config, Weights(captioner)
    regions = Weights(captioner, "encoder").linear(features, "projection")
    state, rows = np.zeros(config.width), []
    if config.initial == "mean":
        state = np.tanh(weights.linear(regions.mean(0), "initial"))

    def attended():
        query, keys = state, regions
        if config.attention == "none":
            return regions.mean(0)
        if config.attention != "dot":
            query = weights["attention.query.weight"] @ state
        if config.attention == "additive":
            keys = regions @ weights["attention.key.weight"].T
            scores = np.tanh(keys + query) @ weights["attention.score.weight"][0]
        else:
            scores = keys @ query / (np.sqrt(config.width) if config.scale == "sqrt" else 1)
        return align(softmax(scores), query, state, regions) @ regions

    for token in fed:
        embedded = weights["embedding.weight"][token]
        if config.attention != "none" and config.order == "text":
            state = gru(weights, embedded, state)
            states = np.concatenate([attended(), state])
        else:
            states = state = gru(weights, np.concatenate([embedded, attended()]), state)
        rows.append(np.log(softmax(weights.linear(states, "output"))))
    return np.array(rows)


@pytest.mark.parametrize(
    ("form", "fusion"),
    crossed(product(("dot", "general", "additive"), ("text", "bahdanau")), FUSIONS),
)
def test_both_passes_equal_the_equations(images, form, fusion):
    attention, order = form
    captioner = make("gru", attention=attention, order=order, alignment={"fusion": fusion})
    assert_equal_to_transcription(captioner, images, log_probs)


@pytest.mark.parametrize(
    "reading",
    [
        {"initial": "mean"},
        {"scale": "sqrt"},
        {"attention": "general", "scale": "sqrt"},
        {"attention": "none"},
        {"attention": "none", "initial": "mean", "order": "bahdanau"},
    ],
    ids=str,
)
def test_every_reading_of_open_points_equals_its_equations(images, reading):
    captioner = make("gru", alignment={"fusion": "none"}, **reading)
    assert_equal_to_transcription(captioner, images, log_probs)


def test_without_attention_there_is_none_to_trace_or_align(images):
    captioner = make("gru", attention="none", alignment={"fusion": "none"})
    assert trace_attention(captioner, images.encoded(captioner), images.captions[:, 0]) == []
    assert GruConfig(attention="none").alignment.fusion == "none"
