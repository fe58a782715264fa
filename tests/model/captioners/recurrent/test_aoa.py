"""AoANet (Huang et al. 2019) against its equations in numpy and float64."""

import numpy as np
import pytest
import torch

from a2cap.model.captioners.recurrent.aoa import AoaCaptioner
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from tests.model.kinds import FUSIONS, make
from tests.model.transcription import (
    Weights,
    assert_equal_to_transcription,
    attend,
    lstm,
    sigmoid,
    softmax,
)


def attention_on_attention(weights, attended, query, name):
    both = weights.linear(np.concatenate([attended, query], axis=-1), f"{name}.linear")
    values, gate = np.split(both, 2, axis=-1)
    return values * sigmoid(gate)


def refine(captioner, features):
    """Return the refined regions (R, D)."""
    weights, config = Weights(captioner, "encoder"), captioner.config
    states = np.maximum(weights.linear(features, "embedding"), 0)
    for number in range(config.refiner_layers):
        layer = f"layers.{number}"
        normed = weights.norm(states, f"{layer}.norm")
        parts = np.split(weights.linear(normed, f"{layer}.query_key_value"), 3, axis=1)
        attended = attend(*parts, config.heads)
        states = states + attention_on_attention(weights, attended, normed, f"{layer}.gate")
    return weights.norm(states, "norm")


def log_probs(captioner, align, features, fed):
    config, weights = captioner.config, Weights(captioner)
    regions = refine(captioner, features)
    keys, values = np.split(weights.linear(regions, "key_value"), 2, axis=1)
    state, cell, context = np.zeros((3, config.width))
    rows = []
    for token in fed:
        embedded = np.maximum(weights["embedding.weight"][token], 0)
        inputs = np.concatenate([embedded, regions.mean(0) + context, state])
        state, cell = lstm(weights.linear(inputs, "gates"), cell)
        hidden = weights.norm(state[None], "norm")
        weigh = align.over(hidden, regions, config.heads)
        query = weights.linear(hidden, "query")
        [attended] = attend(query, keys, values, config.heads, weigh)
        context = attention_on_attention(weights, attended, state, "gate")
        rows.append(np.log(softmax(weights.linear(context, "output"))))
    return np.array(rows)


@pytest.mark.slow
@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    captioner = make("aoa", alignment={"fusion": fusion})
    assert_equal_to_transcription(captioner, images, log_probs, name="alignment")


def test_initial_values_are_those_of_the_authors():
    torch.manual_seed(0)
    config = AoaConfig(width=64, heads=2, refiner_layers=3)
    captioner = AoaCaptioner(config, feature_width=8, vocabulary_size=9)
    first, *others = captioner.encoder.layers
    for other in others:
        for mine, same in zip(first.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, same)
            assert mine is not same
    for parameter in captioner.decoder.gates.parameters():  # as torch.nn.LSTMCell
        assert parameter.abs().max().item() == pytest.approx(64**-0.5, rel=0.02)
