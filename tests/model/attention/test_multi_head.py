import torch

from a2cap.model.alignment import DecoderPass
from a2cap.model.attention.multi_head import (
    CrossAttention,
    merge_heads,
    split_heads,
)

N, L, D, H = 2, 4, 8, 2


def test_heads_split_and_merge_back():
    states = torch.randn(N, L, D)
    assert split_heads(states, H).shape == (N, H, L, D // H)
    assert torch.equal(merge_heads(split_heads(states, H)), states)


def test_cross_attention_without_alignment_is_a_softmax():
    attention = CrossAttention(D, H, alignment=None).double()
    region_mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    attended, weights = attention(
        torch.randn(N, L, D, dtype=torch.float64),
        attention.project(torch.randn(N, 5, D, dtype=torch.float64), region_mask),
        DecoderPass(torch.tensor(0)),
    )
    assert attended.shape == (N, L, D)
    assert weights.used is weights.original
    assert weights.keep is None
    assert weights.gate is None
    torch.testing.assert_close(weights.used.sum(-1), torch.ones(N, H, L, dtype=torch.float64))
    assert not weights.used[1, :, :, 2:].any()
