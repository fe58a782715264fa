"""M2 (Cornia et al. 2020) against its equations in numpy and float64."""

import numpy as np
import pytest

from tests.model.kinds import FUSIONS, make
from tests.model.transcription import (
    Weights,
    assert_equal_to_transcription,
    attend,
    causal,
    sigmoid,
    sinusoids,
    softmax,
)


def encode(captioner, features):
    """Return the output of each encoder layer, (R, D)."""
    weights, config = Weights(captioner, "encoder"), captioner.config
    states = weights.norm(np.maximum(weights.linear(features, "embedding"), 0), "norm")
    outputs = []
    for number in range(config.encoder_layers):
        layer = f"layers.{number}"
        parts = weights.linear(states, f"{layer}.query_key_value")
        queries, keys, values = np.split(parts, 3, axis=1)
        head_width = config.width // config.heads
        keys = np.concatenate([keys, np.sqrt(head_width) * weights[f"{layer}.memory_keys"]])
        slots = np.sqrt(config.memory_slots) * weights[f"{layer}.memory_values"]
        values = np.concatenate([values, slots])
        added = weights.linear(attend(queries, keys, values, config.heads), f"{layer}.output")
        states = weights.norm(states + added, f"{layer}.attention_norm")
        states = weights.feed_forward(states, layer)
        outputs.append(states)
    return outputs


def log_probs(captioner, align, features, fed):
    weights, config = Weights(captioner), captioner.config
    levels = encode(captioner, features)
    states = weights["embedding.weight"][fed] + sinusoids(len(fed), config.width, first=1)
    for number in range(config.decoder_layers):
        layer = f"layers.{number}"
        states = weights.self_attend(states, f"{layer}.self_attention", config.heads, causal)
        meshed = np.zeros_like(states)
        for level, regions in enumerate(levels):
            queries = weights.linear(states, f"{layer}.query")
            keys, values = np.split(weights.linear(regions, f"{layer}.key_value"), 2, axis=1)
            own = align.named(f"{layer}.alignments.{level}")
            weigh = own.over(states, regions, config.heads)
            attended = attend(queries, keys, values, config.heads, weigh)
            added = weights.linear(attended, f"{layer}.output")
            context = weights.norm(states + added, f"{layer}.cross_attention_norm")
            both = np.concatenate([states, context], axis=1)
            share = sigmoid(weights.linear(both, f"{layer}.gates.{level}"))
            meshed = meshed + share * context / np.sqrt(config.encoder_layers)
        states = weights.feed_forward(meshed, layer)
    return np.log(softmax(weights.linear(states, "output")))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    captioner = make("m2", alignment={"fusion": fusion})
    assert_equal_to_transcription(captioner, images, log_probs)


def test_each_level_of_an_aligned_layer_has_its_own_mask(images):
    captioner = make("m2", alignment={"aligned_layers": (2,)})
    names = {name for name, _ in captioner.named_parameters() if "mask_network.bias" in name}
    assert names == {f"decoder.layers.1.alignments.{n}.mask_network.bias" for n in (0, 1)}
    scored = captioner.score(images.encoded(captioner), images.captions)
    assert [layer.keep is None for layer in scored.attention] == [True, True, False, False]
