"""Spatial self-attention (Springenberg et al. 2018) against its equations in numpy and float64."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.spatial import SpatialCaptioner
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers import sinusoidal_positions
from tests.model.kinds import FUSIONS, make
from tests.model.recurrent_equations import assert_equal_to_transcription, softmax


def attend(queries, keys, contents, length, weigh, *, heads):
    """Attend by every head; weigh: from scores, queries and the head's number to weights."""
    found = []
    parts = (np.split(part, heads, axis=1) for part in (queries, keys, contents))
    for head, (q, k, v) in enumerate(zip(*parts, strict=True)):
        found.append(weigh(q @ k.T / np.sqrt(length + q.shape[1]), q, head) @ v)
    return np.concatenate(found, axis=1)


def log_probs(captioner, align, regions, fed):
    config, width = captioner.config, captioner.config.width
    attend_by_heads = partial(attend, heads=config.heads)
    values = {name: p.detach().numpy() for name, p in captioner.named_parameters()}

    def linear(states, name):
        return states @ values[f"{name}.weight"].T + values.get(f"{name}.bias", 0)

    def norm(states, name=None):
        centred = states - states.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * values[f"{name}.weight"] + values[f"{name}.bias"] if name else scaled

    def feed_forward(states, name):
        inner = np.maximum(linear(states, f"{name}.feed_forward.inner"), 0)
        added = states + linear(inner, f"{name}.feed_forward.outer")
        return norm(added, f"{name}.feed_forward_norm")

    def self_attend(states, name, part, length, weigh):
        parts = np.split(linear(states, f"{name}.{part}.query_key_value"), 3, axis=1)
        output = linear(attend_by_heads(*parts, length, weigh), f"{name}.{part}.output")
        return norm(states + output, f"{name}.{part}_norm")

    cells = linear(regions, "encoder.projection")
    cells = norm(cells) if config.feature_norm == "layer" else cells
    cells = cells + sinusoidal_positions(len(cells), width).numpy()
    for number in range(config.encoder_layers):
        name = f"encoder.layers.{number}"
        cells = self_attend(cells, name, "attention", config.cells, lambda s, q, h: softmax(s))
        cells = feed_forward(cells, name)

    words = values["decoder.embedding.words.weight"][fed] * math.sqrt(width)
    words = words + sinusoidal_positions(len(fed), width).numpy()
    hidden = np.tril(np.ones((len(fed), len(fed)))) == 0
    for number in range(config.decoder_layers):
        name = f"decoder.layers.{number}"

        def causal(scores, queries, head):
            return softmax(np.where(hidden, -np.inf, scores))

        words = self_attend(words, name, "self_attention", config.words, causal)
        cross = f"{name}.cross_attention"
        aligned = align.named(f"layers.{number}.cross_attention.alignment")

        def over_cells(scores, queries, head, aligned=aligned, words=words):
            rows = zip(softmax(scores), queries, words, strict=True)
            return np.array(
                [aligned(a, q, w, cells, head=head, heads=config.heads) for a, q, w in rows]
            )

        keys, contents = np.split(linear(cells, f"{cross}.key_value"), 2, axis=1)
        queries = linear(words, f"{cross}.query")
        attended = attend_by_heads(queries, keys, contents, config.cells, over_cells)
        words = norm(words + linear(attended, f"{cross}.output"), f"{cross}_norm")
        words = feed_forward(words, name)
    return np.log(softmax(linear(words, "decoder.output")))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    assert_equal_to_transcription(make("spatial", alignment={"fusion": fusion}), images, log_probs)


def test_cells_that_are_not_normalised_follow_the_equations(images):
    captioner = make("spatial", alignment={"fusion": "none"}, feature_norm="none")
    assert_equal_to_transcription(captioner, images, log_probs)


def test_the_published_size_and_temperatures():
    config = SpatialConfig(alignment=AlignmentConfig(fusion="none"))
    with torch.device("meta"):
        captioner = SpatialCaptioner(config, feature_width=512, vocabulary_size=10_000)
    assert sum(parameter.numel() for parameter in captioner.parameters()) == 27_052_816
    assert sum(p.numel() for p in captioner.encoder.parameters()) == 4_201_472
    layer = captioner.decoder.layers[0]
    assert layer.self_attention.form.tau(64) == pytest.approx(8.831760866)
    for attention in (layer.cross_attention, captioner.encoder.layers[0].attention):
        assert attention.form.tau(64) == pytest.approx(16.124515497)


def test_cells_moved_with_their_positions_change_nothing_and_without_them_something(images):
    captioner, order = make("spatial"), torch.tensor([2, 0, 3, 1])
    features, boxes = images.features[:1], images.boxes[:1]
    region_mask, captions = torch.ones(1, 4, dtype=torch.bool), images.captions[:1]

    def scored(features):
        return captioner.score(captioner.encode(features, boxes, region_mask), captions).log_probs

    expected, moved = scored(features), scored(features[:, order])
    captioner.encoder.positions = captioner.encoder.positions[order]
    torch.testing.assert_close(scored(features[:, order]), expected, rtol=0, atol=1e-10)
    assert not torch.allclose(moved, expected)


def test_more_regions_than_cells_are_an_error(images):
    captioner = make("spatial", cells=3)
    with pytest.raises(ModelError) as error:
        images.encoded(captioner)
    assert str(error.value) == (
        "an image has 4 regions, the captioner has positions for 3 cells; set model.cells to the "
        "number of cells and retrain"
    )
