"""Self-attention of regions that sees how each pair of boxes lies, and can count.

After Herdade et al. 2019 (arXiv:1906.05963, section 3.2), whose geometric weights take the
logarithm of the distance, and so cannot tell left from right: here signed differences pass a layer
and add to the scores and, as in Shaw et al. 2018 (arXiv:1803.02155, Eq. 3 and 4), to the values.
Each region also attends to a key and value of zeros: the average over n equal regions alone is the
same for every n.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import padding_bias, scaled_product, softmax_of_rows
from a2cap.model.layers import merge_heads, split_heads, xavier_linear

PAIR_VALUES = 8
"""Values that `pair_geometry` returns for each pair of boxes."""
PAIR_WIDTH = 64
"""Width of an embedded pair, G."""


class PairEmbedding(nn.Module):
    """A layer over the geometry of each pair of boxes, which all attention layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = xavier_linear(PAIR_VALUES, PAIR_WIDTH)

    def forward(self, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Embed pairs; boxes: (B, R, 5); region_mask: (B, R) bool -> (B, R, R, G)."""
        # 0 * NaN of padding would spread to the gradient
        boxes = boxes.to(self.inner.weight.dtype).masked_fill(~region_mask[..., None], 0)
        embedded: Tensor = self.inner(pair_geometry(boxes)).relu()
        return embedded


def pair_geometry(boxes: Tensor) -> Tensor:
    """Return how the second box of each pair lies to the first; (B, R, 5) -> (B, R, R, 8).

    The eight are differences of the centres in quarters of the image, x and y, and their signs; the
    logarithms of the ratios of widths and heights; the IoU; and the share of the first box that the
    second one covers.
    """
    low, high = boxes[..., :2], boxes[..., 2:4]
    centres, sides = (low + high) / 2, (high - low).clamp(min=1e-3)
    moved = centres[:, None] - centres[:, :, None]  # (B, R, 2) -> (B, R, R, 2)
    ratios = (sides[:, None] / sides[:, :, None]).log()
    overlap = torch.minimum(high[:, None], high[:, :, None])
    overlap = overlap - torch.maximum(low[:, None], low[:, :, None])
    shared, areas = overlap.clamp(min=0).prod(dim=-1), sides.prod(dim=-1)
    first, second = areas[:, :, None], areas[:, None]
    shares = torch.stack((shared / (first + second - shared), shared / first), dim=-1)
    return torch.cat((4 * moved, moved.sign(), ratios, shares), dim=-1)


class RelationalAttention(nn.Module):
    """Attention of regions to each other and to a key and value of zeros."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.query_key_value = xavier_linear(width, width, parts=3)
        self.output = xavier_linear(width, width)
        self.pair_score = xavier_linear(PAIR_WIDTH, heads)
        self.pair_value = nn.Parameter(torch.empty(heads, PAIR_WIDTH, width // heads))
        for head in self.pair_value.detach():
            nn.init.xavier_uniform_(head)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, pairs: Tensor, region_mask: Tensor) -> Tensor:
        """Attend to the existing regions; (B, R, D), (B, R, R, G), (B, R) bool -> (B, R, D)."""
        parts = self.query_key_value(states).chunk(3, dim=-1)
        queries, keys, values = (split_heads(part, self.heads) for part in parts)
        # (B, R, R, G) -> (B, H, R, R)
        bias = self.pair_score(pairs).permute(0, 3, 1, 2) + padding_bias(region_mask)
        scores = scaled_product(queries, keys, scale=1 / math.sqrt(queries.shape[-1]), bias=bias)
        # the score of the zeros is 0, as with add_zero_attn of torch.nn.MultiheadAttention; their
        # column, (B, H, R, R + 1), is dropped again: a value of 0 adds nothing
        weights = softmax_of_rows(functional.pad(scores, (0, 1)))[..., :-1]
        weights = self.dropout(weights).to(values.dtype)
        # sum the pairs before they are projected, in G and not in D numbers for each of them
        read = torch.einsum("bhij,bijg->bhig", weights, pairs.to(values.dtype))
        # `@` would copy the projection of the pairs for each image
        projected = torch.einsum("bhig,hgd->bhid", read, self.pair_value)
        added: Tensor = self.output(merge_heads(weights @ values + projected))
        return added
