"""Multi-head attention (Vaswani et al. 2017, section 3.2): self-attention and cross-attention.

A2 applies dropout after each block; that of attention weights is an option.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    DecoderPass,
    RegionProjection,
    at_least_float32,
    scaled_product,
)
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.attention.region_attention import attend
from a2cap.model.kv_cache import KVCache
from a2cap.model.layers import merge_heads, split_heads, xavier_linear


@dataclass(frozen=True)
class AttentionForm:
    """Readings of Eq. 1 that differ between papers; the default is Vaswani's.

    bias: of the four projections; length: of the keys, added to the head's width under the root
    that divides the scores; gated_output: a gated linear unit after the heads.
    """

    bias: bool = True
    length: int = 0
    gated_output: bool = False

    def output(self, width: int) -> nn.Module:
        """Create the layer after the heads, (..., D) -> (..., D)."""
        if not self.gated_output:
            return xavier_linear(width, width, bias=self.bias)
        gated = xavier_linear(width, width, parts=2, bias=self.bias)
        return nn.Sequential(gated, nn.GLU())


VASWANI = AttentionForm()


class SelfAttention(nn.Module):
    """Attention within a sequence: of regions, or causally of tokens."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        form: AttentionForm = VASWANI,
    ):
        super().__init__()
        self.heads, self.causal, self.dropout, self.form = heads, causal, dropout, form
        self.query_key_value = xavier_linear(width, width, parts=3, bias=form.bias)
        self.output = form.output(width)

    def forward(
        self,
        states: Tensor,
        *,
        region_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to the whole sequence, or causally to the current and earlier positions.

        states: (N, L, D); region_mask: (N, L) bool, True where a state may be attended to. Returns
        (N, L, D).
        """
        parts = self.query_key_value(states).chunk(3, dim=-1)
        queries, keys, values = (split_heads(part, self.heads) for part in parts)
        is_visible = None if region_mask is None else region_mask[:, None, None, :]
        attended = self._attend(queries, keys, values, bias=is_visible, causal=self.causal)
        added: Tensor = self.output(merge_heads(attended))
        return added

    def step(self, states: Tensor, cache: KVCache, layer: int) -> Tensor:
        """Attend from the next token of each row to that row's tokens, itself included.

        states: (N, 1, D) -> (N, 1, D). Fills the slots of these tokens in the pool of this layer.
        """
        pool = cache.pools[layer]
        projected = self.query_key_value(states).to(pool.dtype)
        # (N, 1, 3 D) -> (3, G, H, K, d)
        parts = projected.view(pool.shape[1], -1, 3, *pool.shape[2::2]).permute(2, 0, 3, 1, 4)
        pool.index_copy_(3, cache.slots, parts[1:])
        bias = cache.bias.view(pool.shape[1], 1, -1, pool.shape[3])  # (N, S) -> (G, 1, K, S)
        if pool.device.type == "cpu" and not torch.compiler.is_compiling():
            # slots without tokens cost time; a compiled step needs the same shapes at each token
            pool, bias = pool[:, :, :, : cache.filled], bias[..., : cache.filled]
        attended = merge_heads(self._attend(parts[0], pool[0], pool[1], bias=bias))
        added: Tensor = self.output(attended.view_as(states))  # (G, K, D) -> (N, 1, D)
        return added

    def empty_pool(self, groups: int) -> Tensor:
        """Return the pool of a KV cache without slots, (2, G, H, 0, d)."""
        weight = self.query_key_value.weight
        width = weight.shape[0] // 3 // self.heads
        # the type in which `_attend` computes
        dtype = at_least_float32(weight[:0]).dtype if weight.device.type == "cpu" else weight.dtype
        return torch.empty(2, groups, self.heads, 0, width, dtype=dtype, device=weight.device)

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Compute scaled dot-product attention, (N, H, Q, d) each.

        bias: broadcastable to (N, H, Q, keys), a summand of scores, or True where visible.
        """
        if queries.device.type == "cpu":
            # bfloat16 saves nothing in attention this short, and its backward is slow on a CPU
            queries, keys, values = map(at_least_float32, (queries, keys, values))
        with torch.autocast("cpu", enabled=False):
            return functional.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=bias,
                is_causal=causal,
                scale=1 / math.sqrt(self.form.length + queries.shape[-1]),
                dropout_p=self.dropout if self.training else 0.0,
            )


class CrossAttention(nn.Module):
    """Attention of tokens over regions, aligned if `alignment` is given."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        alignment: AlignmentConfig | None,
        form: AttentionForm = VASWANI,
    ):
        super().__init__()
        self.heads, self.form = heads, form
        self.query = xavier_linear(width, width, bias=form.bias)
        self.key_value = xavier_linear(width, width, parts=2, bias=form.bias)
        self.output = form.output(width)
        self.alignment: Alignment | None = None
        if alignment is not None:
            widths = {"hidden_width": width, "region_width": width, "head_width": width // heads}
            self.alignment = Alignment(alignment, heads=heads, **widths)

    def project(self, regions: Tensor, region_mask: Tensor) -> RegionProjection:
        """Project the encoder's output, (B, R, D), once for all captions of an image."""
        parts = self.key_value(regions).chunk(2, dim=-1)
        # every step and pass would copy them otherwise
        keys, values = (split_heads(part, self.heads).contiguous() for part in parts)
        return RegionProjection(keys, values, region_mask, self.project_mask_keys(regions))

    def project_mask_keys(self, regions: Tensor) -> Tensor | None:
        """Project the encoder's output for the mask network; None without one."""
        if self.alignment is None:
            return None
        return self.alignment.mask_network.project(regions)

    def forward(
        self, hidden: Tensor, regions: RegionProjection, decoder_pass: DecoderPass
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend over the regions; hidden: (B, Q, D), or (1, Q, D) if equal for all images.

        Returns (B, Q, D) and the attention.
        """
        queries = split_heads(self.query(hidden), self.heads)  # (B, Q, D) -> (B, H, Q, d)
        padding = decoder_pass.padding(regions.region_mask)
        scale = 1 / math.sqrt(self.form.length + queries.shape[-1])
        attended, attention = attend(
            scaled_product(queries, regions.keys, scale=scale, bias=padding),
            regions,
            self.alignment,
            queries=queries,
            hidden=hidden,
            decoder_pass=decoder_pass,
        )
        return self.output(merge_heads(attended)), attention
