"""Show, Attend and Tell (Xu et al. 2015) against its equations in numpy and float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from a2cap.model.alignment import mask_parameters
from a2cap.model.losses import two_losses
from tests.model.kinds import FUSIONS, make
from tests.model.transcription import Weights, assert_equal_to_transcription, lstm, sigmoid, softmax


def log_probs(captioner, align, regions, fed):
    config, weights = captioner.config, Weights(captioner)
    hidden = np.maximum(weights.linear(regions.mean(0), "initial"), 0)
    state = np.tanh(weights.linear(hidden, "initial_state"))
    cell = np.tanh(weights.linear(hidden, "initial_cell"))
    if config.attention_layers == 2:
        inner = weights.linear(regions, "attention.key.0")
        keys = np.tanh(weights.linear(inner, "attention.key.1"))
    else:
        keys = weights.linear(regions, "attention.key")
    rows = []
    for number, token in enumerate(fed):
        embedded = weights["embedding.weight"][token] if number else np.zeros(config.embedding)
        query = weights["attention.query.weight"] @ state
        alpha = softmax(np.tanh(keys + query) @ weights["attention.score.weight"][0])
        context = align(alpha, query, state, regions) @ regions
        if config.gate == "scalar":
            context = sigmoid(weights.linear(state, "gate")) * context
        inputs = np.concatenate([embedded, state, context])
        state, cell = lstm(weights.linear(inputs, "gates"), cell)
        deep = embedded + weights.linear(state, "from_state")
        deep = deep + weights.linear(context, "from_context")
        deep = np.tanh(deep) if config.output == "tanh" else deep
        rows.append(np.log(softmax(weights.linear(deep, "output"))))
    return np.array(rows)


@pytest.mark.slow
@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    captioner = make("show-attend-tell", alignment={"fusion": fusion}, doubly_stochastic=0)
    assert_equal_to_transcription(captioner, images, log_probs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reading", [{"attention_layers": 1}, {"gate": "none"}, {"output": "linear"}]
)
def test_every_reading_of_open_points_equals_its_equations(images, reading):
    captioner = make("show-attend-tell", doubly_stochastic=0, **reading)
    assert_equal_to_transcription(captioner, images, log_probs)


def test_the_first_token_is_a_function_of_the_image_alone(images):
    captioner = make("show-attend-tell")
    memory, bos = images.encoded(captioner), torch.ones(3, 1, 1, dtype=torch.int64)
    before = captioner(memory, bos)
    captioner.decoder.embedding.weight.data[1] += 5
    assert torch.equal(captioner(memory, bos), before)


def penalty(attention, lengths, *, regions=None, weight=1.0):
    """Return the doubly stochastic penalty of (B, K, L, R) attention as a sum over captions."""
    captioner = make("show-attend-tell", doubly_stochastic=weight)
    images, _, longest, width = attention.shape
    is_token = torch.arange(longest) < lengths[..., None]
    region_mask = torch.arange(width) < torch.tensor(regions or [width] * images)[:, None]
    layer = SimpleNamespace(original=attention.flatten(1, 2)[:, None])
    scored, memory = SimpleNamespace(attention=(layer,)), SimpleNamespace(region_mask=region_mask)
    per_token = captioner.penalties(scored, memory, is_token.long())["doubly_stochastic"]
    return (per_token * is_token.sum()).item()


def test_the_doubly_stochastic_penalty_of_known_attention():
    uniform = torch.full((1, 1, 12, 196), 1 / 196, dtype=torch.float64)
    twelve = torch.tensor([[12]])
    assert penalty(uniform, twelve) == pytest.approx(172.7347, abs=1e-4)
    assert penalty(uniform, twelve, weight=0.5) == pytest.approx(172.7347 / 2, abs=1e-4)
    same = torch.zeros(1, 1, 12, 196, dtype=torch.float64)
    same[..., 7] = 1
    assert penalty(same, twelve) == 195 + 121
    assert penalty(torch.full((1, 1, 12, 36), 1 / 36), twelve) == pytest.approx(16)


def test_the_penalty_counts_existing_regions_of_captions_up_to_their_end():
    attention = torch.rand(2, 2, 3, 4, dtype=torch.float64)
    lengths = torch.tensor([[3, 2], [1, 0]])  # the last row is padding alone
    expected = 0.0
    for image, regions in enumerate((4, 2)):
        for caption in range(2):
            length = lengths[image, caption]
            sums = attention[image, caption, :length].sum(0)[:regions]
            expected += ((1 - sums) ** 2).sum().item() if length else 0
    assert penalty(attention, lengths, regions=[4, 2]) == pytest.approx(expected)


def test_the_penalty_is_apart_from_the_caption_loss_and_part_of_the_total(images):
    plain = make("show-attend-tell", doubly_stochastic=0)
    captioner = make("show-attend-tell", doubly_stochastic=2)
    without, losses = (
        two_losses(c, images.encoded(c), images.captions) for c in (plain, captioner)
    )
    assert list(losses.penalties) == list(captioner.penalty_names)
    assert torch.equal(losses.caption, without.caption)
    [penalised] = losses.penalties.values()
    torch.testing.assert_close(losses.total(), losses.caption + losses.mask + penalised)
    penalised.backward()
    assert captioner.decoder.attention.score.weight.grad.any()
    assert all(parameter.grad is None for parameter in mask_parameters(captioner))
