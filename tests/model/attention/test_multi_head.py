import math

import torch

from a2cap.model.alignment import DecoderPass
from a2cap.model.attention.multi_head import (
    CrossAttention,
    SelfAttention,
    merge_heads,
    split_heads,
)
from a2cap.model.config import AlignmentConfig

N, L, D, H = 2, 4, 8, 2


def _states(length: int = L, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, length, D, generator=generator, dtype=torch.float64)


def _self_attention(*, causal: bool) -> SelfAttention:
    torch.manual_seed(1)
    return SelfAttention(D, H, causal=causal).double()


def _reference(attention: SelfAttention, states, allowed):
    weight, bias = attention.query_key_value.weight, attention.query_key_value.bias
    parts = (states @ w.T + b for w, b in zip(weight.chunk(3), bias.chunk(3), strict=True))
    outputs = []
    for q, k, v in zip(*(part.split(D // H, dim=-1) for part in parts), strict=True):
        scores = (q @ k.transpose(1, 2) / math.sqrt(D // H)).masked_fill(~allowed, -math.inf)
        outputs.append(scores.softmax(-1) @ v)
    return torch.cat(outputs, dim=-1) @ attention.output.weight.T + attention.output.bias


def test_heads_split_and_merge_back():
    assert split_heads(_states(), H).shape == (N, H, L, D // H)
    assert torch.equal(merge_heads(split_heads(_states(), H)), _states())


def test_causal_attention_ignores_later_positions():
    attention = _self_attention(causal=True)
    allowed = torch.ones(L, L, dtype=torch.bool).tril()
    expected = _reference(attention, _states(), allowed)
    torch.testing.assert_close(attention(_states()), expected)


def test_self_attention_over_regions_ignores_padding():
    attention = _self_attention(causal=False)
    region_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    expected = _reference(attention, _states(), region_mask[:, None, :])
    torch.testing.assert_close(attention(_states(), region_mask=region_mask), expected)


def test_cached_steps_equal_the_whole_sequence():
    attention = _self_attention(causal=True)
    cache, steps = None, []
    for position in range(L):
        states, cache = attention.step(_states()[:, position : position + 1], cache)
        steps.append(states)
    assert cache.keys.shape == cache.values.shape == (N, H, L, D // H)
    torch.testing.assert_close(torch.cat(steps, dim=1), attention(_states()))


def _cross_attend(attention, regions, region_mask):
    return attention(
        _states(seed=2),
        attention.project(regions),
        region_mask=region_mask,
        decoder_pass=DecoderPass(torch.tensor(0)),
    )


def test_cross_attention_without_alignment_is_a_softmax():
    attention = CrossAttention(D, H, alignment=None).double()
    region_mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    attended, weights = _cross_attend(attention, _states(5), region_mask)
    assert attended.shape == (N, L, D)
    assert weights.used is weights.original
    assert weights.keep is None
    assert weights.gate is None
    torch.testing.assert_close(weights.used.sum(-1), torch.ones(N, H, L, dtype=torch.float64))
    assert not weights.used[1, :, :, 2:].any()


def test_cross_attention_weights_the_values_by_the_aligned_attention():
    attention = CrossAttention(D, H, alignment=AlignmentConfig(fusion="max")).double()
    region_mask = torch.ones(N, 5, dtype=torch.bool)
    attended, weights = _cross_attend(attention, _states(5), region_mask)
    values = attention.project(_states(5)).values
    expected = attention.output(merge_heads(weights.used @ values))
    torch.testing.assert_close(attended, expected)
    assert (weights.used.sum(-1) > 1).all()
