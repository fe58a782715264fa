"""Attention over the regions of an image from scores of any form, aligned if asked for.

`AdditiveAttention` scores by a small network (Bahdanau et al. 2015, section 3.1, arXiv:1409.0473).
"""

import math

import torch
from torch import Tensor, nn

from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    DecoderPass,
    RegionProjection,
    at_least_float32,
)
from a2cap.model.config import AlignmentConfig


def attend(
    scores: Tensor,
    regions: RegionProjection,
    alignment: Alignment | None,
    *,
    queries: Tensor,
    hidden: Tensor,
    decoder_pass: DecoderPass,
) -> tuple[Tensor, AlignedAttention]:
    """Turn scores into weights over the regions (Eq. 1), align them and sum the values.

    scores: (B, H, Q, R); queries: (B, H, Q, d) and hidden: (B, Q, D), for gate and mask network.
    Returns (B, H, Q, d) and the attention.
    """
    is_padding = ~regions.region_mask[:, None, None, :]
    weights = at_least_float32(scores).masked_fill(is_padding, -math.inf).softmax(dim=-1)
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
    return attention.used.to(regions.values.dtype) @ regions.values, attention


class AdditiveAttention(nn.Module):
    """Attention w' tanh(key(v) + W h) of one head; its values are the regions themselves.

    key: from regions (B, R, F) to (B, R, width), computed once per image.
    """

    def __init__(
        self,
        key: nn.Module,
        *,
        width: int,
        hidden_width: int,
        region_width: int,
        alignment: AlignmentConfig,
    ):
        super().__init__()
        self.key = key
        self.query = nn.Linear(hidden_width, width, bias=False)
        # a bias would shift all scores alike, which the softmax undoes
        self.score = nn.Linear(width, 1, bias=False)
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
        # broadcast over the rows: the keys of an image are not repeated for its captions
        scores = self.score(torch.tanh(queries[:, :, None] + regions.keys)).squeeze(-1)
        context, attention = attend(
            scores[:, None],
            regions,
            self.alignment,
            queries=queries[:, None],
            hidden=by_image,
            decoder_pass=decoder_pass,
        )
        return context.reshape(len(hidden), -1), attention
