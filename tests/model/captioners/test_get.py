"""GET (Ji et al. 2021, arXiv:2012.07061) against its equations in numpy and float64."""

import numpy as np
import pytest

from tests.model.kinds import FUSIONS, make
from tests.model.transcription import (
    Weights,
    assert_equal_to_transcription,
    attend,
    causal,
    lstm,
    sigmoid,
    sinusoids,
    softmax,
)


def output(weights, config, values, name):
    """Compute the layer after the heads: W o + b, or (W_1 o + b_1) * sigmoid(W_2 o + b_2)."""
    if not config.gated_output:
        return weights.linear(values, name)
    value, gate = np.split(weights.linear(values, f"{name}.0"), 2, axis=1)
    return value * sigmoid(gate)


def encode(captioner, features):
    """Return V^L, (R, D), and g^F, (D,)."""
    weights, config = Weights(captioner, "encoder"), captioner.config
    joined = np.concatenate([[features.mean(0)], features])  # O^0 = (g^0; V^0), g^0 the mean
    states = weights.norm(np.maximum(weights.linear(joined, "embedding"), 0), "norm")
    hidden = cell = np.zeros(config.width)
    for number in range(config.encoder_layers):
        layer = f"layers.{number}"
        # Global Enhanced Attention: O^l = LN(O + MultiHead(O, O, O)), then LN(O + FFN(O))
        parts = np.split(weights.linear(states, f"{layer}.attention.query_key_value"), 3, axis=1)
        added = output(weights, config, attend(*parts, config.heads), f"{layer}.attention.output")
        states = weights.norm(states + added, f"{layer}.attention_norm")
        states = weights.feed_forward(states, layer)
        # layer-wise fusion: h_l, m_l = LSTM(g^l, h_(l-1), m_(l-1)), from zeros
        inputs = np.concatenate([states[0], hidden])
        hidden, cell = lstm(weights.linear(inputs, "fusion"), cell)
    return states[1:], hidden  # g^F = h_L


def control(weights, config, align, states, regions, summary, name):
    """Return what one layer's controller adds to its states (L, D)."""
    key_value = np.split(
        weights.linear(np.concatenate([regions, [summary]]), f"{name}.key_value"), 2, axis=1
    )
    queries = weights.linear(states, f"{name}.query")
    aligned = align.named(f"{name}.alignment").over(states, regions, config.heads)
    if config.controller == "gate":
        # ê = MultiHead(a, V, V); alpha = sigmoid(a' g); e = ê + alpha g
        keys, values = (part[:-1] for part in key_value)
        attended = attend(queries, keys, values, config.heads, aligned)
        alpha = sigmoid(states @ summary)
        return output(weights, config, attended, f"{name}.output") + alpha[:, None] * summary

    def weigh(scores, queries, head):
        # e = MultiHead(a, (V; g), (V; g)); alignment moves weight among the regions alone
        joint = softmax(scores)
        regions_alone = aligned(scores[:, :-1], queries, head)
        share = joint[:, -1:]
        return np.concatenate([(1 - share) * regions_alone, share], axis=1)

    attended = attend(queries, *key_value, config.heads, weigh)
    return output(weights, config, attended, f"{name}.output")


def log_probs(captioner, align, features, fed):
    weights, config = Weights(captioner), captioner.config
    regions, summary = encode(captioner, features)
    states = np.sqrt(config.width) * weights["embedding.words.weight"][fed]
    states = states + sinusoids(len(fed), config.width)
    for number in range(config.decoder_layers):
        layer = f"layers.{number}"
        states = weights.self_attend(states, f"{layer}.self_attention", config.heads, causal)
        name = f"{layer}.cross_attention"
        added = control(weights, config, align, states, regions, summary, name)
        states = weights.norm(states + added, f"{name}_norm")
        states = weights.feed_forward(states, layer)
    return np.log(softmax(weights.linear(states, "output")))


@pytest.mark.parametrize("kind", ["get", "gate controller"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion, kind):
    captioner = make(kind, alignment={"fusion": fusion})
    assert_equal_to_transcription(captioner, images, log_probs)
