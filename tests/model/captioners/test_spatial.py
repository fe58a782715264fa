"""Spatial self-attention (Springenberg et al. 2018) against its equations in numpy and float64."""

import math

import numpy as np
import pytest
import torch

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.spatial import SpatialCaptioner
from a2cap.model.captioners.spatial_config import SpatialConfig
from tests.model.kinds import FUSIONS, make, refusal
from tests.model.transcription import (
    Weights,
    assert_equal_to_transcription,
    attend,
    causal,
    sinusoids,
    softmax,
)


def log_probs(captioner, align, regions, fed):
    config, encoder, weights = captioner.config, Weights(captioner, "encoder"), Weights(captioner)
    heads, width = config.heads, config.width
    cells = encoder.linear(regions, "projection")
    cells = encoder.norm(cells) if config.feature_norm == "layer" else cells
    cells = cells + sinusoids(len(cells), width)
    for number in range(config.encoder_layers):
        layer = f"layers.{number}"
        cells = encoder.self_attend(cells, f"{layer}.attention", heads, length=config.cells)
        cells = encoder.feed_forward(cells, layer)

    words = weights["embedding.words.weight"][fed] * math.sqrt(width) + sinusoids(len(fed), width)
    for number in range(config.decoder_layers):
        layer = f"layers.{number}"
        within = f"{layer}.self_attention"
        words = weights.self_attend(words, within, heads, causal, length=config.words)
        cross = f"{layer}.cross_attention"
        keys, contents = np.split(weights.linear(cells, f"{cross}.key_value"), 2, axis=1)
        queries = weights.linear(words, f"{cross}.query")
        weigh = align.named(f"{cross}.alignment").over(words, cells, heads)
        attended = attend(queries, keys, contents, heads, weigh, length=config.cells)
        words = weights.norm(words + weights.linear(attended, f"{cross}.output"), f"{cross}_norm")
        words = weights.feed_forward(words, layer)
    return np.log(softmax(weights.linear(words, "output")))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    assert_equal_to_transcription(make("spatial", alignment={"fusion": fusion}), images, log_probs)


def test_cells_that_are_not_normalised_follow_the_equations(images):
    captioner = make("spatial", alignment={"fusion": "none"}, feature_norm="none")
    assert_equal_to_transcription(captioner, images, log_probs)


def test_the_published_temperatures():
    config = SpatialConfig(alignment=AlignmentConfig(fusion="none"))
    with torch.device("meta"):
        captioner = SpatialCaptioner(config, feature_width=512, vocabulary_size=10_000)
    assert sum(p.numel() for p in captioner.encoder.parameters()) == 4_201_472
    layer = captioner.decoder.layers[0]
    assert math.sqrt(layer.self_attention.form.length + 64) == pytest.approx(8.831760866)
    for attention in (layer.cross_attention, captioner.encoder.layers[0].attention):
        assert math.sqrt(attention.form.length + 64) == pytest.approx(16.124515497)


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
    assert refusal(images.encoded, captioner) == (
        "an image has 4 regions, the captioner has positions for 3 cells; set model.cells to the "
        "number of cells and retrain"
    )
