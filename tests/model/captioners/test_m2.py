"""M2 (Cornia et al. 2020) against its equations in numpy and float64."""

import numpy as np
import pytest
import torch

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.m2 import M2Captioner
from a2cap.model.captioners.m2_config import M2Config
from tests.model.kinds import FUSIONS, make
from tests.model.recurrent_equations import (
    Weights,
    assert_equal_to_transcription,
    sigmoid,
    softmax,
)


class Network:
    """Transcription for one image; names without the prefix of the box they are in."""

    def __init__(self, captioner, box):
        self.arrays, self.box = Weights(captioner).arrays, box
        self.config = captioner.config
        self.heads = np.split(np.arange(self.config.width), self.config.heads)

    def __getitem__(self, name):
        return self.arrays[f"{self.box}.{name}"]

    def linear(self, states, name):
        return states @ self[f"{name}.weight"].T + self.arrays.get(f"{self.box}.{name}.bias", 0)

    def norm(self, states, name):
        centred = states - states.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * self[f"{name}.weight"] + self[f"{name}.bias"]

    def feed_forward(self, states, name):
        inner = np.maximum(self.linear(states, f"{name}.feed_forward.inner"), 0)
        outer = self.linear(inner, f"{name}.feed_forward.outer")
        return self.norm(states + outer, f"{name}.feed_forward_norm")

    def attend(self, queries, keys, values, weigh):
        """Attend head by head; weigh: from scores (Q, R) and the head's number to weights."""
        found = np.zeros_like(queries)
        for number, head in enumerate(self.heads):
            scores = queries[:, head] @ keys[:, head].T / np.sqrt(len(head))
            found[:, head] = weigh(scores, number) @ values[:, head]
        return found


def encode(captioner, features):
    """Return the output of each encoder layer, (R, D)."""
    network, config = Network(captioner, "encoder"), captioner.config
    states = network.norm(np.maximum(network.linear(features, "embedding"), 0), "norm")
    outputs = []
    for number in range(config.encoder_layers):
        layer = f"layers.{number}"
        parts = network.linear(states, f"{layer}.query_key_value")
        queries, keys, values = np.split(parts, 3, axis=1)
        head_width = config.width // config.heads
        keys = np.concatenate([keys, np.sqrt(head_width) * network[f"{layer}.memory_keys"]])
        slots = np.sqrt(config.memory_slots) * network[f"{layer}.memory_values"]
        values = np.concatenate([values, slots])
        attended = network.attend(queries, keys, values, lambda scores, head: softmax(scores))
        added = network.linear(attended, f"{layer}.output")
        states = network.norm(states + added, f"{layer}.attention_norm")
        states = network.feed_forward(states, layer)
        outputs.append(states)
    return outputs


def position(number, width):
    rates = 10_000 ** (-2 * np.arange(width // 2) / width)
    return np.stack([np.sin(number * rates), np.cos(number * rates)], 1).flatten().astype("f")


def log_probs(captioner, align, features, fed):
    network, config = Network(captioner, "decoder"), captioner.config
    levels = encode(captioner, features)
    states = network["embedding.weight"][fed]
    states = states + [position(1 + number, config.width) for number in range(len(fed))]

    def causal(scores, head):
        return softmax(np.where(np.tri(len(fed), dtype=bool), scores, -np.inf))

    for number in range(config.decoder_layers):
        layer = f"layers.{number}"
        parts = network.linear(states, f"{layer}.self_attention.query_key_value")
        attended = network.attend(*np.split(parts, 3, axis=1), causal)
        added = network.linear(attended, f"{layer}.self_attention.output")
        states = network.norm(states + added, f"{layer}.self_attention_norm")
        meshed = np.zeros_like(states)
        for level, regions in enumerate(levels):
            queries = network.linear(states, f"{layer}.query")
            keys, values = np.split(network.linear(regions, f"{layer}.key_value"), 2, axis=1)
            own = align.named(f"{layer}.alignments.{level}")

            def weigh(scores, head, queries=queries, regions=regions, own=own, states=states):
                rows = zip(softmax(scores), queries[:, network.heads[head]], states, strict=True)
                places = {"head": head, "heads": config.heads}
                return np.array([own(*row, regions, **places) for row in rows])

            added = network.linear(network.attend(queries, keys, values, weigh), f"{layer}.output")
            context = network.norm(states + added, f"{layer}.cross_attention_norm")
            both = np.concatenate([states, context], axis=1)
            share = sigmoid(network.linear(both, f"{layer}.gates.{level}"))
            meshed = meshed + share * context / np.sqrt(config.encoder_layers)
        states = network.feed_forward(meshed, layer)
    return np.log(softmax(network.linear(states, "output")))


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


def test_the_size_follows_from_the_equations():
    with torch.device("meta"):
        captioner = M2Captioner(
            M2Config(alignment=AlignmentConfig(fusion="none")),
            feature_width=2048,
            vocabulary_size=10_201,
        )
    d, inner, words = 512, 2048, 10_201
    norm, projection = 2 * d, (d + 1) * d
    feed_forward = (d + 1) * inner + (inner + 1) * d + norm
    encoder_layer = 4 * projection + 2 * 40 * d + norm + feed_forward
    decoder_layer = 8 * projection + 2 * norm + 3 * (2 * d + 1) * d + feed_forward
    encoder = (2048 + 1) * d + norm + 3 * encoder_layer
    expected = encoder + 3 * decoder_layer + 2 * words * d
    assert sum(parameter.numel() for parameter in captioner.parameters()) == expected
