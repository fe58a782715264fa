"""Alignment of torch's own multi-head attention."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import FUSIONS as ALL
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.attention.wrapped import AlignedMultiheadAttention, alignment_pass
from tests.model.kinds import refusal
from tests.test_structure import ROOT

B, Q, R, D, H = 2, 3, 5, 8, 2
FUSIONS = [name for name, fusion in ALL.items() if fusion.fuse is not None]


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    mask = torch.ones(B, R, dtype=torch.bool)
    mask[1, 3:] = False
    return torch.randn(B, Q, D), torch.randn(B, R, D), mask


def attention(**options):
    torch.manual_seed(1)
    return nn.MultiheadAttention(D, H, **{"batch_first": True, **options})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_without_fusion_the_outputs_are_those_of_torch_bit_for_bit(inputs, training, bias):
    hidden, regions, mask = inputs
    plain = attention(bias=bias).train(training)
    wrapped = AlignedMultiheadAttention(plain, AlignmentConfig(fusion="none")).train(training)
    states, aligned = wrapped(hidden, regions, region_mask=mask)
    how = {"key_padding_mask": ~mask, "average_attn_weights": False}
    expected, weights = plain(hidden, regions, regions, **how)
    assert torch.equal(states, expected)
    assert torch.equal(aligned.original, weights)
    assert torch.equal(aligned.used, weights)
    assert aligned.keep is None


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("perturbed", [False, True])
def test_the_states_are_the_used_weights_times_the_values(inputs, fusion, perturbed):
    hidden, regions, mask = inputs
    plain = attention()
    wrapped = AlignedMultiheadAttention(plain, AlignmentConfig(fusion=fusion))
    with alignment_pass(wrapped, 5, perturbed=perturbed):
        states, aligned = wrapped(hidden, regions, region_mask=mask)
    # in float64, from the parameters alone
    weight, bias = (p.detach().double().numpy() for p in (plain.in_proj_weight, plain.in_proj_bias))
    q, k, v = (
        (x.double().numpy() @ weight[i * D : (i + 1) * D].T + bias[i * D : (i + 1) * D])
        .reshape(B, -1, H, D // H)
        .transpose(0, 2, 1, 3)
        for i, x in enumerate((hidden, regions, regions))
    )
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D // H)
    scores[~np.broadcast_to(mask[:, None, None, :].numpy(), scores.shape)] = -np.inf
    alpha = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(aligned.original.detach(), alpha, atol=1e-6)
    keep, used = aligned.keep.detach().numpy(), aligned.used.detach().double().numpy()
    if perturbed:
        average = mask.numpy() / mask.sum(1, keepdim=True).numpy()
        expected = keep * alpha + (1 - keep) * average[:, None, None, :]
        np.testing.assert_allclose(used, expected, atol=1e-6)
    elif fusion == "max":
        np.testing.assert_allclose(used, alpha * np.exp(1 - keep), atol=1e-6)
    merged = (used @ v).transpose(0, 2, 1, 3).reshape(B, Q, D)
    out = plain.out_proj
    expected = merged @ out.weight.detach().double().numpy().T + out.bias.detach().numpy()
    np.testing.assert_allclose(states.detach(), expected, atol=1e-5)


@pytest.mark.parametrize("perturbed", [False, True])
def test_each_pass_trains_one_side_alone(inputs, perturbed):
    hidden, regions, mask = inputs
    wrapped = AlignedMultiheadAttention(attention(), AlignmentConfig(fusion="gate"))
    captioner = nn.ModuleDict({"first": nn.Linear(D, D), "wrapped": wrapped})
    regions.requires_grad_()
    with alignment_pass(captioner, perturbed=perturbed):
        states, _ = wrapped(captioner["first"](hidden), regions, region_mask=mask)
        states.square().sum().backward()
    masks = [parameter.grad for parameter in mask_parameters(captioner)]
    captions = [parameter.grad for parameter in caption_parameters(captioner)]
    trained, frozen = (masks, captions) if perturbed else (captions, masks)
    assert any(gradient is not None and gradient.any() for gradient in trained)
    assert all(gradient is None for gradient in frozen)
    assert (regions.grad is None) == perturbed


def test_without_a_pass_the_mask_network_has_no_gradient(inputs):
    hidden, regions, mask = inputs
    wrapped = AlignedMultiheadAttention(attention(), AlignmentConfig(fusion="gate"))
    wrapped(hidden, regions, region_mask=mask)[0].sum().backward()
    assert all(parameter.grad is None for parameter in mask_parameters(wrapped))


@pytest.mark.parametrize("perturbed", [False, True])
def test_it_runs_in_bfloat16(inputs, perturbed):
    hidden, regions, mask = inputs
    wrapped = AlignedMultiheadAttention(attention(), AlignmentConfig(fusion="gate"))
    with alignment_pass(wrapped, perturbed=perturbed):
        expected, _ = wrapped(hidden, regions, region_mask=mask)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed, aligned = wrapped(hidden, regions, region_mask=mask)
        assert aligned.keep.dtype == aligned.used.dtype == torch.float32
        wrapped.bfloat16()
        states, _ = wrapped(hidden.bfloat16(), regions.bfloat16(), region_mask=mask)
    for rounded in (mixed, states):
        torch.testing.assert_close(rounded.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({"batch_first": False}, "batch_first is False"),
        ({"kdim": 4, "vdim": 4}, "kdim or vdim differs from embed_dim"),
        ({"dropout": 0.1}, "dropout is not 0"),
        ({"add_bias_kv": True}, "add_bias_kv is True"),
        ({"add_zero_attn": True}, "add_zero_attn is True"),
    ],
)
def test_an_attention_that_alignment_cannot_follow_is_refused(options, obstacle):
    config = AlignmentConfig(fusion="gate")
    message = refusal(AlignedMultiheadAttention, attention(**options), config)
    assert message == (
        f"cannot align this attention: {obstacle}; build it with batch_first=True and otherwise "
        "default arguments"
    )


def test_the_example_of_the_guide_trains_both_sides():
    guide = (ROOT / "docs" / "guide" / "aligned-attention.md").read_text(encoding="utf-8")
    [example] = [
        code for code in re.findall(r"```python\n(.*?)```", guide, re.S) if "Aligned" in code
    ]
    torch.manual_seed(0)
    names = {}
    exec(example, names)
    tokens = torch.randint(1, 50, (4, 7))
    batch = tokens, tokens.roll(-1, dims=1), torch.randn(4, 5, 32), torch.ones(4, 5, dtype=bool)
    losses = [
        names["update"](names["captioner"], batch, step, names["optimisers"]) for step in range(50)
    ]
    assert losses[-1][0] < 0.1 * losses[0][0], "the captioner learns"
    assert min(masks for _, masks in losses) > -10, "the mask loss does not run away"
