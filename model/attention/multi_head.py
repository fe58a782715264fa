"""Multi-head attention (Vaswani et al. 2017, section 3.2), within a sequence and over regions.

Neither drops attention weights: A2 drops units after each block and nowhere else. Where nobody
needs the weights, torch's fused attention computes them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import AlignedAttention, Alignment, DecoderPass, widened
from a2cap.model.config import AlignmentConfig
from a2cap.model.layers.kv_cache import WordStore


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


def laid_out_by_column(keys: Tensor) -> Tensor:
    """The same values (B, H, R, d), stored as (B, H, d, R): what few queries multiply fastest."""
    return keys.transpose(-1, -2).contiguous().transpose(-1, -2)


class SelfAttention(nn.Module):
    """Attention within a sequence: of regions, or of words that see only those before them."""

    def __init__(self, width: int, heads: int, *, causal: bool = False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query_key_value = projection(width, width, parts=3)
        self.output = projection(width, width)

    def forward(self, states: Tensor, *, region_mask: Tensor | None = None) -> Tensor:
        """Attends to the whole sequence, or causally to what came before.

        states: (N, L, D); region_mask: (N, L) bool, True where a state may be attended to.
        """
        is_visible = None if region_mask is None else region_mask[:, None, None, :]
        attended = _attend(*self._projected(states), is_visible=is_visible, causal=self.causal)
        return self._joined(attended)

    def following(
        self, states: Tensor, store: WordStore | None, *, is_visible: Tensor | None
    ) -> tuple[Tensor, WordStore]:
        """Attends from the next word of each row to the row's own words, itself included.

        states: (B, K, D); store: of the words before, None where there are none; is_visible:
        (B, 1, K, t * K) bool, of `visible_words`. Returns (B, K, D) and the store with the word.
        """
        queries, keys, values = self._projected(states)
        store = WordStore.of(keys, values) if store is None else store.appended(keys, values)
        attended = _attend(queries, store.keys, store.values, is_visible=is_visible)
        return self._joined(attended), store

    def _projected(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (N, H, L, d)."""
        queries, keys, values = self.query_key_value(states).chunk(3, dim=-1)
        return (
            split_heads(queries, self.heads),
            split_heads(keys, self.heads),
            split_heads(values, self.heads),
        )

    def _joined(self, attended: Tensor) -> Tensor:
        states: Tensor = self.output(merge_heads(attended))
        return states


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    is_visible: Tensor | None,
    causal: bool = False,
) -> Tensor:
    """Scaled dot-product attention, (N, H, Q, d) each; is_visible: broadcastable, or None."""
    if queries.device.type != "cpu":
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=is_visible, is_causal=causal
        )
    # bfloat16 saves nothing in attention this short, and its backward is slow on a CPU
    with torch.autocast("cpu", enabled=False):
        return functional.scaled_dot_product_attention(
            widened(queries),
            widened(keys),
            widened(values),
            attn_mask=is_visible,
            is_causal=causal,
        )


@dataclass(frozen=True)
class RegionProjection:
    """What one cross-attention keeps of the regions, projected once for all K rows of an image.

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
        # In the order that products want: every step and pass would otherwise copy them into it.
        keys, values = self.key_value(regions).chunk(2, dim=-1)
        return RegionProjection(
            laid_out_by_column(split_heads(keys, self.heads)),
            split_heads(values, self.heads).contiguous(),
            self.project_masks(regions),
        )

    def project_masks(self, regions: Tensor) -> Tensor | None:
        """The mask network's part of `project`, or None without one."""
        if self.alignment is None:
            return None
        return laid_out_by_column(self.alignment.mask_network.project(regions))

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
