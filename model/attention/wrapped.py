"""Alignment of a `torch.nn.MultiheadAttention` of an external captioner.

Each training step runs the captioner twice, in `alignment_pass`: the aligned pass trains the
captioner, the perturbed pass its mask networks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    DecoderPass,
    at_least_float32,
    caption_parameters,
    mask_parameters,
)
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers import merge_heads, split_heads
from a2cap.model.replaced_parameters import frozen


class AlignedMultiheadAttention(nn.Module):
    """A multi-head attention over regions with A2's mask network and fusion (Eq. 2-10).

    With the fusion `none` its outputs are those of the wrapped attention, bit for bit. The wrapped
    module keeps its parameters and is trained with them. Outside an `alignment_pass` it aligns as
    at step 0 and gives the mask network no gradient.
    Raises ModelError for an attention that alignment cannot follow.
    """

    def __init__(self, attention: nn.MultiheadAttention, config: AlignmentConfig):
        super().__init__()
        _check(attention)
        self.attention = attention
        self.decoder_pass = DecoderPass(torch.zeros((), dtype=torch.int64))
        self.alignment: Alignment | None = None
        if config.fusion != "none":
            width, heads = attention.embed_dim, attention.num_heads
            widths = {"hidden_width": width, "region_width": width, "head_width": width // heads}
            self.alignment = Alignment(config, heads=heads, **widths)

    def forward(
        self, hidden: Tensor, regions: Tensor, *, region_mask: Tensor
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend over the regions.

        hidden: (B, Q, D).
        regions: (B, R, D), keys and values.
        region_mask: (B, R) bool, True where a region exists.
        Returns the states (B, Q, D) and the attention before and after alignment.
        """
        is_perturbed = self.decoder_pass.perturbed
        frozen_parameters = caption_parameters(self) if is_perturbed else mask_parameters(self)
        with frozen(self, frozen_parameters):
            # the loss of the perturbed pass must not reach an encoder outside of the pass
            regions = regions.detach() if is_perturbed else regions
            return self._attend(hidden, regions, region_mask)

    def _attend(
        self, hidden: Tensor, regions: Tensor, region_mask: Tensor
    ) -> tuple[Tensor, AlignedAttention]:
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
            at_least_float32(original),
            queries=self._project(hidden, part=0),
            hidden=hidden,
            mask_keys=self.alignment.mask_network.project(regions),
            region_mask=region_mask,
            decoder_pass=self.decoder_pass,
        )
        values = self._project(regions, part=2)
        attended = aligned.used.to(values.dtype) @ values
        return self.attention.out_proj(merge_heads(attended)), aligned

    def _project(self, states: Tensor, *, part: int) -> Tensor:
        """Return queries (part 0), keys (1) or values (2), (B, H, L, d)."""
        weight = self.attention.in_proj_weight.chunk(3)[part]
        bias = self.attention.in_proj_bias
        part_bias = None if bias is None else bias.chunk(3)[part]
        return split_heads(functional.linear(states, weight, part_bias), self.attention.num_heads)


@contextmanager
def alignment_pass(
    captioner: nn.Module, step: int = 0, *, perturbed: bool = False
) -> Iterator[None]:
    """Run a captioner with wrapped or adapted attentions; its graph trains one side alone.

    The aligned pass gives the mask networks no gradient, the perturbed pass gives it to nothing
    else; so `backward()` of the sum of both losses trains each side with its own. step: optimiser
    updates so far, for the exponential decay (Eq. 8).
    """
    # of this module and of model/adapting
    wrapped: list[Any] = [
        attention for attention in captioner.modules() if hasattr(attention, "decoder_pass")
    ]
    before = [attention.decoder_pass for attention in wrapped]
    for attention in wrapped:
        attention.decoder_pass = DecoderPass(torch.tensor(step), perturbed=perturbed)
    frozen_parameters = caption_parameters(captioner) if perturbed else mask_parameters(captioner)
    try:
        with frozen(captioner, frozen_parameters):
            yield
    finally:
        for attention, decoder_pass in zip(wrapped, before, strict=True):
            attention.decoder_pass = decoder_pass


def _check(attention: nn.MultiheadAttention) -> None:
    obstacles = {
        "batch_first is False": not attention.batch_first,
        "kdim or vdim differs from embed_dim": attention.in_proj_weight is None,
        # torch returns the weights after dropout, which would be aligned in place of attention
        "dropout is not 0": attention.dropout != 0,
        "add_bias_kv is True": attention.bias_k is not None,
        "add_zero_attn is True": attention.add_zero_attn,
    }
    names = [name for name, is_so in obstacles.items() if is_so]
    if names:
        raise ModelError(
            f"cannot align this attention: {', '.join(names)}; build it with batch_first=True and "
            "otherwise default arguments"
        )
