"""Multi-head attention (Vaswani et al. 2017, section 3.2), within a sequence and over regions.

Neither drops attention weights: A2 drops units after each block and nowhere else. Where nobody
needs the weights, torch's fused attention computes them.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2.model.alignment import AlignedAttention, Alignment, DecoderPass, widened
from a2.model.config import AlignmentConfig


def projection(in_width: int, out_width: int, *, parts: int = 1) -> nn.Linear:
    """A linear layer, Xavier-uniform, bias 0; `parts` projections stacked keep their own range."""
    linear = nn.Linear(in_width, out_width * parts)
    for weight in linear.weight.detach().chunk(parts):
        nn.init.xavier_uniform_(weight)
    nn.init.zeros_(linear.bias)
    return linear


def split_heads(states: Tensor, heads: int) -> Tensor:
    """(B, Q, H * d) -> (B, H, Q, d)."""
    batch, length, _ = states.shape
    return states.reshape(batch, length, heads, -1).transpose(1, 2)


def merge_heads(states: Tensor) -> Tensor:
    """(B, H, Q, d) -> (B, Q, H * d)."""
    return states.transpose(1, 2).flatten(2)


class KeyValues(NamedTuple):
    """Projected keys and values, each (N, H, L, d)."""

    keys: Tensor
    values: Tensor


class Attended(NamedTuple):
    """Output of self-attention (N, L, D), and all keys and values that it has seen."""

    states: Tensor
    key_values: KeyValues


class SelfAttention(nn.Module):
    """Attention within a sequence: of regions, or of words that see only those before them."""

    def __init__(self, width: int, heads: int, *, causal: bool = False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query_key_value = projection(width, width, parts=3)
        self.output = projection(width, width)

    def forward(
        self, states: Tensor, *, region_mask: Tensor | None = None, past: KeyValues | None = None
    ) -> Attended:
        """Attends to the sequence, or, for one new state per row, to the past and itself.

        states: (N, L, D); region_mask: (N, L) bool, True where a state may be attended to;
        past: of the states before, then L is 1.
        """
        queries, keys, values = (
            split_heads(part, self.heads) for part in self.query_key_value(states).chunk(3, dim=-1)
        )
        if past is not None:
            keys = torch.cat((past.keys, keys), dim=2)
            values = torch.cat((past.values, values), dim=2)
        attended = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=None if region_mask is None else region_mask[:, None, None, :],
            is_causal=self.causal and past is None,
        )
        return Attended(self.output(merge_heads(attended)), KeyValues(keys, values))


@dataclass(frozen=True)
class RegionProjection:
    """What one cross-attention keeps of the regions, projected once for all K rows of a picture.

    keys, values: (B, H, R, d); masks: what the mask network keeps, or None without one.
    """

    keys: Tensor
    values: Tensor
    masks: Tensor | None


class CrossAttention(nn.Module):
    """Attention of caption states over regions, aligned where `alignment` is given."""

    def __init__(self, width: int, heads: int, *, alignment: AlignmentConfig | None):
        super().__init__()
        self.heads = heads
        self.query = projection(width, width)
        self.key_value = projection(width, width, parts=2)
        self.output = projection(width, width)
        self.alignment = (
            None
            if alignment is None
            else Alignment(
                alignment,
                hidden_width=width,
                region_width=width,
                heads=heads,
                head_width=width // heads,
            )
        )

    def project(self, regions: Tensor) -> RegionProjection:
        """regions: (B, R, D), the encoder's output."""
        keys, values = self.key_value(regions).chunk(2, dim=-1)
        return RegionProjection(
            split_heads(keys, self.heads),
            split_heads(values, self.heads),
            self.project_masks(regions),
        )

    def project_masks(self, regions: Tensor) -> Tensor | None:
        """The mask network's part of `project`, or None without one."""
        return None if self.alignment is None else self.alignment.mask_network.project(regions)

    def forward(
        self,
        hidden: Tensor,
        regions: RegionProjection,
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> tuple[Tensor, AlignedAttention]:
        """hidden: (B, Q, D); region_mask: (B, R) bool. Returns (B, Q, D) and the attention."""
        queries = split_heads(self.query(hidden), self.heads)
        weights = self._weights(queries, regions.keys, region_mask)
        if self.alignment is None or regions.masks is None:
            attention = AlignedAttention(weights, weights)
        else:
            attention = self.alignment(
                weights,
                queries=queries,
                hidden=hidden,
                projected=regions.masks,
                region_mask=region_mask,
                decoder_pass=decoder_pass,
            )
        attended = attention.used.to(regions.values.dtype) @ regions.values
        return self.output(merge_heads(attended)), attention

    def _weights(self, queries: Tensor, keys: Tensor, region_mask: Tensor) -> Tensor:
        scores = widened((queries / math.sqrt(queries.shape[-1])) @ keys.transpose(-1, -2))
        return scores.masked_fill(~region_mask[:, None, None, :], -math.inf).softmax(dim=-1)
