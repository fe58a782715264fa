import math
from itertools import combinations

import numpy as np
import pytest
import torch

from a2cap.model.alignment_config import FUSIONS as ALIGNMENT_FUSIONS
from a2cap.model.captioner import decoder_input, trace_attention
from a2cap.model.faithfulness import (
    FaithfulnessMeter,
    differentiable_masks,
    divergence_by_layer,
    jensen_shannon,
    kendall_tau,
    region_gradients,
)
from tests.model.kinds import FUSIONS


def tau_b(first, second):
    """Compute (C - D) / sqrt((n0 - ties of one) (n0 - ties of the other)) (Kendall 1945)."""
    pairs = list(combinations(range(len(first)), 2))
    signs = [(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in pairs]
    agreement = sum(a * b for a, b in signs)
    untied = [sum(sign[side] != 0 for sign in signs) for side in (0, 1)]
    return agreement / math.sqrt(untied[0] * untied[1])


def test_kendall_tau_equals_counting_pairs_with_ties_and_padding():
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 4, (40, 9), generator=generator).double()
    second = torch.randn(40, 9, generator=generator, dtype=torch.float64).round(decimals=1)
    valid = torch.rand(40, 9, generator=generator) < 0.8
    taus = kendall_tau(first, second, valid)
    for row in range(40):
        expected = tau_b(first[row][valid[row]].tolist(), second[row][valid[row]].tolist())
        assert taus[row].item() == pytest.approx(expected, abs=1e-12)


def test_a_constant_ranking_has_no_tau():
    values = torch.tensor([[1.0, 1, 1], [1, 2, 3], [1, 2, 3]])
    other = torch.tensor([[1.0, 2, 3]] * 3)
    valid = torch.tensor([[True] * 3, [True] * 3, [True, False, False]])
    assert kendall_tau(values, other, valid).isnan().tolist() == [True, False, True]


def test_divergence_equals_the_formula_in_nats():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5])
    mean = (p + q) / 2
    expected = 0.0
    for row in (p, q):
        expected += sum(
            a * math.log(a / b) / 2 for a, b in zip(row.tolist(), mean.tolist(), strict=True) if a
        )
    assert jensen_shannon(p, q).item() == pytest.approx(expected, rel=1e-7)
    assert jensen_shannon(p, p).item() == 0
    divergence = jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert divergence.item() == pytest.approx(math.log(2))
    assert jensen_shannon(p.expand(2, 4, 3), q.expand(2, 4, 3)).shape == (2, 4)


def test_a_small_divergence_keeps_its_precision():
    p, change = torch.full((4,), 0.25, dtype=torch.float64), 1e-6
    q = p + change * torch.tensor([1.0, -1.0, 1.0, -1.0])
    # to second order JSD is the chi-square distance over 8
    assert jensen_shannon(p, q).item() == pytest.approx(4 * change**2 / 0.25 / 8, rel=1e-3)


def _importance(captioner, images):
    return region_gradients(
        captioner, images.features, images.boxes, images.region_mask, images.captions[:, 0]
    ).importance


def _from_states(captioner, memory, states, captions):
    """Return p(y_t | y_<t, x), (B, L), as a function of the encoder's output."""
    projections = captioner.decoder.project(states, memory.region_mask)
    changed = type(memory)(states, memory.region_mask, projections)
    log_probs = captioner(changed, decoder_input(captions, bos=1)[:, None])[:, 0]
    return log_probs.gather(-1, captions[..., None])[..., 0].exp()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fusion", "network"), [*((fusion, "bilinear") for fusion in FUSIONS), ("gate", "linear")]
)
def test_importance_equals_the_norm_of_finite_differences(tiny, images, fusion, network):
    captioner = tiny(fusion=fusion, mask_network=network)
    captioner.schedule_step.fill_(50_000)
    captions = images.captions[:, 0]
    importance = _importance(captioner, images)
    assert importance.shape == (3, 6, 4)
    with torch.no_grad():
        memory = images.encoded(captioner)
        squares = torch.zeros_like(importance)
        for region in range(4):
            for unit in range(16):
                change = torch.zeros_like(memory.states)
                change[:, region, unit] = 1e-5
                up, down = (
                    _from_states(captioner, memory, memory.states + sign * change, captions)
                    for sign in (1, -1)
                )
                squares[:, :, region] += ((up - down) / 2e-5).square()
    torch.testing.assert_close(importance, squares.sqrt(), rtol=1e-6, atol=1e-9)


def test_gradient_times_input_is_the_effect_of_scaling_the_state_of_a_region(tiny, images):
    captioner, captions = tiny(fusion="max"), images.captions[:, 0]
    product = region_gradients(
        captioner, images.features, images.boxes, images.region_mask, captions
    ).product
    with torch.no_grad():
        memory = images.encoded(captioner)
        for region in range(4):
            scale = torch.ones(4, 1, dtype=torch.float64)
            scale[region] += 1e-5
            up, down = (
                _from_states(captioner, memory, memory.states * factor, captions)
                for factor in (scale, 2 - scale)
            )
            expected = (up - down) / 2e-5
            torch.testing.assert_close(product[:, :, region], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("detach_mask", [True, False])
def test_importance_leaves_the_captioner_unchanged(tiny, images, detach_mask):
    captioner = tiny(detach_mask=detach_mask)
    with torch.no_grad():
        _importance(captioner, images)
    with pytest.raises(KeyError), differentiable_masks(captioner):
        raise KeyError
    alignments = [layer.cross_attention.alignment for layer in captioner.decoder.layers]
    assert {alignment.config.detach_mask for alignment in alignments} == {detach_mask}
    assert all(parameter.grad is None for parameter in captioner.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("fusion", FUSIONS)
def test_divergence_by_layer_equals_the_meter(tiny, images, fusion):
    captioner = tiny(fusion=fusion)
    memory = captioner.encode(images.features, images.boxes, images.region_mask)
    alone = divergence_by_layer(captioner, memory, images.captions[:, 0])
    measured = [layer.divergence or 0.0 for layer in _measured(captioner, images)]
    assert alone == pytest.approx(measured, rel=1e-9)


def _measured(captioner, images, *parts):
    meter = FaithfulnessMeter()
    for part in parts or (slice(None),):
        meter.add_captions(
            captioner,
            images.features[part],
            images.boxes[part],
            images.region_mask[part],
            images.captions[part, 0],
        )
    return meter.layers()


def _by_hand(captioner, images):
    """Compute mean tau of alpha, alpha^a and 1 - m, and divergence, per layer token by token."""
    importance = _importance(captioner, images)
    steps = trace_attention(captioner, images.encoded(captioner), images.captions[:, 0])
    layers = []
    for number in range(len(steps[0].layers)):
        rows_of_layer = []
        for position, step in enumerate(steps):
            for image in range(3):
                if not images.captions[image, 0, position]:
                    continue
                exists, weights = images.region_mask[image], step.layers[number]
                own = importance[image, position, exists].tolist()
                taus = [
                    tau_b(values[image].mean(0)[exists].tolist(), own)
                    for values in (weights.original, weights.used, 1 - weights.keep)
                ]
                rows = weights.used[image] / weights.used[image].sum(-1, keepdim=True)
                divergence = jensen_shannon(weights.original[image], rows).mean().item()
                rows_of_layer.append([*taus, divergence])
        layers.append(np.mean(rows_of_layer, axis=0))
    return layers


@pytest.mark.slow
@pytest.mark.parametrize("fusion", FUSIONS[1:])
def test_layer_values_are_means_over_tokens_of_head_averages(tiny, images, fusion):
    captioner = tiny(fusion=fusion)
    captioner.schedule_step.fill_(50_000)
    layers = _measured(captioner, images)
    for layer, expected in zip(layers, _by_hand(captioner, images), strict=True):
        assert layer.words == 5 + 6 + 4
        assert layer.constant == 0
        measured = [layer.attention, layer.aligned, layer.evidence, layer.divergence]
        assert measured == pytest.approx(expected.tolist(), abs=1e-12)
        assert (layer.gate is not None) == ALIGNMENT_FUSIONS[fusion].learned
    assert [layer.layer for layer in layers] == [1, 2]


def test_a_plain_transformer_has_only_attention_values(tiny, images):
    for layer in _measured(tiny(fusion="none"), images):
        assert -1 <= layer.attention <= 1
        others = (layer.aligned, layer.evidence, layer.divergence, layer.keep, layer.gate)
        assert others == (None,) * 5


def test_constant_masks_are_counted_and_have_no_tau(tiny, images):
    captioner = tiny()
    for layer in captioner.decoder.layers:
        layer.cross_attention.alignment.mask_network.query.weight.data.zero_()
    for layer in _measured(captioner, images):
        assert layer.evidence is None
        assert layer.constant == layer.words == 15
        assert 0 < layer.keep < 1
