"""Eq. 2-11 in the whole A2 Transformer, compared with a numpy transcription of the paper."""

from itertools import product

import numpy as np
import pytest

from tests.model.kinds import FUSIONS
from tests.model.transcription import (
    Weights,
    assert_equal_to_transcription,
    attend,
    causal,
    sinusoids,
    softmax,
    transcribe,
)
from tests.quick import crossed

READINGS = [
    {"average": "heads", "renormalise_perturbed": True},
    {"average": "heads"},
    {"renormalise_perturbed": True},
    {"aligned_layers": (2,)},
    {"encoder_layers": 0},
    {"box_geometry": "linear", "penalty_weight": 0.3},
    {"box_geometry": "relative"},
    {"fusion": "moving", "moving_rate": 0.4},
    {"fusion": "decay", "decay_steps": 2e4},
]


def relate(weights, states, pairs, name, heads):
    """Attend to each pair, (R, R, G), and to a key and a value of zeros, which come last."""
    parts = np.split(weights.linear(states, f"{name}.query_key_value"), 3, axis=1)
    geometry, outputs = weights.linear(pairs, f"{name}.pair_score"), []
    for head, (query, key, value) in enumerate(
        zip(*(np.split(part, heads, axis=1) for part in parts), strict=True)
    ):
        scores = query @ key.T / np.sqrt(query.shape[1]) + geometry[..., head]
        attention = softmax(np.concatenate([scores, np.zeros((len(scores), 1))], axis=1))
        values = value + pairs @ weights[f"{name}.pair_value"][head]
        outputs.append((attention[:, :-1, None] * values).sum(1))
    return weights.linear(np.concatenate(outputs, axis=1), f"{name}.output")


def embed_pairs(weights, boxes):
    """Embed how the second box of each pair lies to the first, (R, R, G)."""
    size = len(boxes)
    values = np.empty((size, size, 8))
    for first, second in np.ndindex(size, size):
        x, y, right, bottom = boxes[first, :4]
        other_x, other_y, other_right, other_bottom = boxes[second, :4]
        width, height = max(right - x, 1e-3), max(bottom - y, 1e-3)
        other_width = max(other_right - other_x, 1e-3)
        other_height = max(other_bottom - other_y, 1e-3)
        overlap_x = max(0, min(right, other_right) - max(x, other_x))
        overlap = overlap_x * max(0, min(bottom, other_bottom) - max(y, other_y))
        union = width * height + other_width * other_height - overlap
        moved_x = (other_x + other_right) / 2 - (x + right) / 2
        moved_y = (other_y + other_bottom) / 2 - (y + bottom) / 2
        values[first, second] = [
            *(4 * moved_x, 4 * moved_y, np.sign(moved_x), np.sign(moved_y)),
            *(np.log(other_width / width), np.log(other_height / height)),
            *(overlap / union, overlap / (width * height)),
        ]
    return np.maximum(weights.linear(values, "pairs.inner"), 0)


def encode(captioner, features, boxes):
    weights, config = Weights(captioner, "encoder"), captioner.config
    states, pairs = np.maximum(weights.linear(features, "embedding.feature"), 0), None
    if config.box_geometry == "linear":
        states = states + weights.linear(boxes, "embedding.box")
    if config.box_geometry == "relative":
        inner = np.maximum(weights.linear(boxes, "embedding.box.0"), 0)
        states = states + weights.linear(inner, "embedding.box.2")
        pairs = embed_pairs(weights, boxes)
    states = weights.norm(states, "embedding.norm")
    for number in range(config.encoder_layers):
        layer = f"layers.{number}"
        if pairs is None:
            states = weights.self_attend(states, f"{layer}.attention", config.heads)
        else:
            added = relate(weights, states, pairs, f"{layer}.attention", config.heads)
            states = weights.norm(states + added, f"{layer}.attention_norm")
        states = weights.feed_forward(states, layer)
    return states


def log_probs(captioner, align, features, fed):
    weights, config = Weights(captioner), captioner.config
    regions = encode(captioner, features, align.boxes)
    states = weights["embedding.words.weight"][fed] * np.sqrt(config.width)
    states = states + sinusoids(len(fed), config.width)
    for number in range(config.decoder_layers):
        layer = f"layers.{number}"
        states = weights.self_attend(states, f"{layer}.self_attention", config.heads, causal)
        cross = f"{layer}.cross_attention"
        keys, values = np.split(weights.linear(regions, f"{cross}.key_value"), 2, axis=1)
        parts, maps = (weights.linear(states, f"{cross}.query"), keys, values, config.heads), []

        def original(scores, queries, head, maps=maps):
            maps.append(softmax(scores))
            return maps[-1]

        attended = attend(*parts, original)
        if config.alignment.includes(number + 1):
            aligned = align.named(f"{cross}.alignment")
            means = np.mean(maps, axis=0)
            attended = attend(*parts, aligned.over(states, regions, config.heads, means))
        states = weights.norm(states + weights.linear(attended, f"{cross}.output"), f"{cross}_norm")
        states = weights.feed_forward(states, layer)
    return np.log(softmax(weights.linear(states, "output")))


@pytest.mark.parametrize(
    ("fusion", "masks"), crossed(FUSIONS, product(("bilinear", "linear"), (False, True)))
)
def test_both_losses_equal_an_independent_transcription_of_the_paper(tiny, images, fusion, masks):
    network, renormalised = masks
    options = {"mask_network": network, "mask_slots": 5, "renormalise_aligned": renormalised}
    assert_equal_to_transcription(tiny(fusion=fusion, **options), images, log_probs)


@pytest.mark.parametrize("reading", READINGS, ids="-".join)
def test_every_reading_of_open_points_equals_its_transcription(tiny, images, reading):
    assert_equal_to_transcription(tiny(**reading), images, log_probs)


def test_the_passes_of_the_transcription_differ(tiny, images):
    """Check that agreement with the transcription distinguishes the equations."""
    losses = {
        fusion: transcribe(tiny(fusion=fusion), images, log_probs, perturbed=False).loss
        for fusion in FUSIONS
    }
    losses["perturbed"] = transcribe(tiny(), images, log_probs, perturbed=True).loss
    assert min(np.diff(sorted(losses.values()))) > 1e-6
