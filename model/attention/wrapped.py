"""Alignment of a `torch.nn.MultiheadAttention` of an external captioner."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import AlignedAttention, Alignment, DecoderPass
from a2cap.model.attention.multi_head import merge_heads, split_heads
from a2cap.model.config import AlignmentConfig
from a2cap.model.errors import ModelError


class AlignedMultiheadAttention(nn.Module):
    """A multi-head attention over regions with A2's mask network and fusion (Eq. 2-10).

    With the fusion `none` its outputs are those of the wrapped attention, bit for bit. The wrapped
    module keeps its parameters and is trained with them; the masks are trained by a perturbed pass.
    Raises ModelError for an attention that alignment cannot follow.
    """

    def __init__(self, attention: nn.MultiheadAttention, config: AlignmentConfig):
        super().__init__()
        _check(attention)
        self.attention = attention
        self.alignment: Alignment | None = None
        if config.fusion != "none":
            width, heads = attention.embed_dim, attention.num_heads
            widths = {"hidden_width": width, "region_width": width, "head_width": width // heads}
            self.alignment = Alignment(config, heads=heads, **widths)

    def forward(
        self,
        hidden: Tensor,
        regions: Tensor,
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass | None = None,
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend over the regions.

        hidden: (B, Q, D); regions: (B, R, D), keys and values; region_mask: (B, R) bool, True where
        a region exists; decoder_pass: the aligned pass at step 0 by default. Returns the states
        (B, Q, D) and the attention before and after alignment.
        """
        states, original = self.attention(
            hidden,
            regions,
            regions,
            key_padding_mask=~region_mask,
            need_weights=True,
            average_attn_weights=False,
        )
        if self.alignment is None:
            return states, AlignedAttention(original, original)
        aligned: AlignedAttention = self.alignment(
            original,
            queries=self._project(hidden, part=0),
            hidden=hidden,
            mask_keys=self.alignment.mask_network.project(regions),
            region_mask=region_mask,
            decoder_pass=decoder_pass or DecoderPass(torch.zeros((), dtype=torch.int64)),
        )
        attended = aligned.used @ self._project(regions, part=2)
        return self.attention.out_proj(merge_heads(attended)), aligned

    def _project(self, states: Tensor, *, part: int) -> Tensor:
        """Return queries (part 0), keys (1) or values (2), (B, H, L, d)."""
        weight = self.attention.in_proj_weight.chunk(3)[part]
        bias = self.attention.in_proj_bias
        chosen = None if bias is None else bias.chunk(3)[part]
        return split_heads(functional.linear(states, weight, chosen), self.attention.num_heads)


def _check(attention: nn.MultiheadAttention) -> None:
    obstacles = {
        "batch_first is False": not attention.batch_first,
        "kdim or vdim differs from embed_dim": attention.in_proj_weight is None,
        # torch returns the weights after dropout, which would be aligned in place of attention
        "dropout is not 0": attention.dropout != 0,
        "add_bias_kv is True": attention.bias_k is not None,
        "add_zero_attn is True": attention.add_zero_attn,
    }
    found = [name for name, is_so in obstacles.items() if is_so]
    if found:
        raise ModelError(
            f"cannot align this attention: {', '.join(found)}; build it with batch_first=True and "
            "otherwise default arguments"
        )
