"""Attention over the regions of an image from scores of any form, aligned if asked for.

`SingleHeadAttention` is that of recurrent captioners: additive (Bahdanau et al. 2015, section 3.1,
arXiv:1409.0473) or a dot product (Luong et al. 2015, section 3.1, arXiv:1508.04025).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    DecoderPass,
    RegionProjection,
    softmax_of_rows,
)
from a2cap.model.alignment_config import AlignmentConfig


def attend(
    scores: Tensor,
    regions: RegionProjection,
    alignment: Alignment | None,
    *,
    queries: Tensor,
    hidden: Tensor,
    decoder_pass: DecoderPass,
    choose: Callable[[Tensor], Tensor | None] | None = None,
) -> tuple[Tensor, AlignedAttention]:
    """Turn scores into weights over the regions (Eq. 1), align them and sum the values.

    scores: (B, H, Q, R), -inf on padding.
    queries: (B or 1, H, Q, d).
    hidden: (B or 1, Q, D), for gate and mask network.
    choose: one-hot locations of hard attention.
    Returns (B, H, Q, d) and the attention, before dropout.
    """
    weights = softmax_of_rows(scores)
    if alignment is None or regions.mask_keys is None:
        attention = AlignedAttention(weights, weights)
    else:
        attention = alignment(
            weights,
            queries=queries,
            hidden=hidden,
            mask_keys=regions.mask_keys,
            region_mask=regions.region_mask,
            decoder_pass=decoder_pass,
        )
    if choose is not None and not (decoder_pass.perturbed or decoder_pass.expected):
        attention = replace(attention, locations=choose(attention.used))
    applied = attention.used if attention.locations is None else attention.locations
    if decoder_pass.dropout:
        applied = functional.dropout(applied, decoder_pass.dropout)
    return applied.to(regions.values.dtype) @ regions.values, attention


class SingleHeadAttention(nn.Module):
    """Attention of one head, w' tanh(key + query) or query' key; its values are the regions.

    key: from regions (B, R, F) to (B, R, width), computed once per image.
    query: from states (B, K, hidden_width) to (B, K, width).
    scale: factor of a dot product.
    choose: of hard attention.
    """

    def __init__(
        self,
        key: nn.Module,
        query: nn.Module,
        *,
        additive: bool,
        width: int,
        hidden_width: int,
        region_width: int,
        alignment: AlignmentConfig,
        scale: float = 1.0,
        choose: nn.Module | None = None,
    ):
        super().__init__()
        self.key = key
        self.query = query
        self.scale = scale
        self.choose = choose
        # a bias would shift all scores alike, which the softmax undoes
        self.score = nn.Linear(width, 1, bias=False) if additive else None
        self.alignment: Alignment | None = None
        if alignment.fusion != "none":
            widths = {"hidden_width": hidden_width, "region_width": region_width}
            self.alignment = Alignment(alignment, heads=1, head_width=width, **widths)

    def project(self, regions: Tensor, region_mask: Tensor) -> RegionProjection:
        """Project regions, (B, R, F), once for all captions of an image."""
        keys = self.key(regions)[:, None]
        return RegionProjection(
            keys, regions[:, None], region_mask, self.project_mask_keys(regions)
        )

    def project_mask_keys(self, regions: Tensor) -> Tensor | None:
        """Project the regions for the mask network; None without one."""
        return None if self.alignment is None else self.alignment.mask_network.project(regions)

    def forward(
        self, hidden: Tensor, regions: RegionProjection, decoder_pass: DecoderPass
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend from N rows, (N, D), the K of an image next to each other.

        Returns the weighted sum of the regions, (N, F), and the attention, (B, 1, K, R).
        """
        by_image = hidden.reshape(len(regions.region_mask), -1, hidden.shape[-1])
        queries: Tensor = self.query(by_image)  # -> (B, K, A)
        if self.score is None:
            scores = self.scale * queries @ regions.keys[:, 0].transpose(-1, -2)
        else:
            # broadcast over the rows: the keys of an image are not repeated for its captions
            scores = self.score(torch.tanh(queries[:, :, None] + regions.keys)).squeeze(-1)
        context, attention = attend(
            scores[:, None] + decoder_pass.padding(regions.region_mask),
            regions,
            self.alignment,
            queries=queries[:, None],
            hidden=by_image,
            decoder_pass=decoder_pass,
            choose=self.choose,
        )
        return context.reshape(len(hidden), -1), attention
