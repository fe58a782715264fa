"""Visual encoder: self-attention over the region features (A2, section "Visual Encoder").

Linear, ReLU, dropout and LayerNorm on each region, then post-LN self-attention layers, whose scores
the geometry of the boxes may bias. Every layer applies the region mask. M2
(github.com/aimagelab/meshed-memory-transformer) computes its mask after a projection whose bias
hides the padding, so that it masks nothing.
"""

import torch
from torch import Tensor, nn

from a2cap.model.attention.multi_head import SelfAttention
from a2cap.model.captioners.encoder_decoder import BOX_VALUES
from a2cap.model.config import TransformerConfig
from a2cap.model.layers.dropout import Dropout
from a2cap.model.layers.feed_forward import FeedForward
from a2cap.model.layers.linear import xavier_linear
from a2cap.model.layers.residual import add_block, block_input, layer_norm


class RegionEmbedding(nn.Module):
    """Embedding of each region's feature and, with a `box_geometry`, of its box."""

    def __init__(self, config: TransformerConfig, *, feature_width: int):
        super().__init__()
        self.blind = config.blind
        self.feature = xavier_linear(feature_width, config.width)
        self.box = _box_embedding(config)
        self.dropout = Dropout(config.region_dropout(config.dropout))
        self.norm = nn.LayerNorm(config.width) if config.norm == "post" else nn.Identity()

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Project (B, R, F) features and (B, R, 5) boxes; region_mask: (B, R) -> (B, R, D)."""
        is_padding = ~region_mask[..., None]
        # Zero the padding now and do not only mask it later: 0 * NaN would spread to every sum.
        features = features.to(self.feature.weight.dtype).masked_fill(is_padding | self.blind, 0)
        states: Tensor = self.dropout(self.feature(features).relu())
        if self.box is not None:
            boxes = boxes.to(self.feature.weight.dtype).masked_fill(is_padding, 0)
            states = states + self.box(boxes)
        embedded: Tensor = self.norm(states)
        return embedded


def _box_embedding(config: TransformerConfig) -> nn.Module | None:
    match config.box_geometry:
        case "none":
            return None
        case "linear":
            return xavier_linear(BOX_VALUES, config.width)
        case "relative":
            layers = (BOX_VALUES, config.width), (config.width, config.width)
            first, second = (xavier_linear(*widths) for widths in layers)
            return nn.Sequential(first, nn.ReLU(), second)


class RelativeGeometry(nn.Module):
    """Bias of the encoder's attention by the geometry of each pair of boxes.

    After Herdade et al. 2019 (arXiv:1906.05963, section 3.2), whose geometry weights take the
    logarithm of the distance and so cannot tell left from right; here two layers of signed
    differences add to the scores.
    """

    VALUES = 8
    INNER = 64

    def __init__(self, *, heads: int, layers: int):
        super().__init__()
        self.layers = layers
        self.inner = xavier_linear(self.VALUES, self.INNER)
        self.outer = xavier_linear(self.INNER, heads * layers)

    def forward(self, boxes: Tensor, region_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the bias (B, H, R, R) of each layer; boxes: (B, R, 5); region_mask: (B, R)."""
        # 0 * NaN of padding would spread to the gradient
        boxes = boxes.to(self.inner.weight.dtype).masked_fill(~region_mask[..., None], 0)
        bias: Tensor = self.outer(self.inner(pair_geometry(boxes)).relu())
        return bias.permute(0, 3, 1, 2).chunk(self.layers, dim=1)


def pair_geometry(boxes: Tensor) -> Tensor:
    """Return how the second box of each pair lies to the first; (B, R, 5) -> (B, R, R, 8).

    The eight are differences of the centres in quarters of the image, x and y, and their signs; the
    logarithms of the ratios of widths and heights; the IoU; and the share of the first box that the
    second one covers.
    """
    low, high = boxes[..., :2], boxes[..., 2:4]
    centres, sides = (low + high) / 2, (high - low).clamp(min=1e-3)
    moved = centres[:, None] - centres[:, :, None]
    ratios = (sides[:, None] / sides[:, :, None]).log()
    overlap = torch.minimum(high[:, None], high[:, :, None])
    overlap = overlap - torch.maximum(low[:, None], low[:, :, None])
    shared, areas = overlap.clamp(min=0).prod(dim=-1), sides.prod(dim=-1)
    first, second = areas[:, :, None], areas[:, None]
    shares = torch.stack((shared / (first + second - shared), shared / first), dim=-1)
    return torch.cat((4 * moved, moved.sign(), ratios, shares), dim=-1)


class EncoderLayer(nn.Module):
    """Self-attention over the regions of an image, then a feed-forward block."""

    def __init__(
        self,
        attention: SelfAttention,
        *,
        width: int,
        feed_forward: int,
        dropout: float = 0.0,
        pre: bool = False,
    ):
        super().__init__()
        self.pre = pre
        self.attention = attention
        self.attention_norm = layer_norm(width, pre=pre)
        self.feed_forward = FeedForward(width, feed_forward)
        self.feed_forward_norm = layer_norm(width, pre=pre)
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor, region_mask: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend over the existing regions; (B, R, D) -> (B, R, D).

        region_mask: (B, R); bias: added to the scores of attention, (B, H, R, R).
        """
        pre, norm = self.pre, self.attention_norm
        read = block_input(states, norm, pre=pre)
        attended = self.attention(read, region_mask=region_mask, bias=bias)
        states = add_block(states, self.dropout(attended), norm, pre=pre)
        norm = self.feed_forward_norm
        transformed = self.feed_forward(block_input(states, norm, pre=pre))
        return add_block(states, self.dropout(transformed), norm, pre=pre)


class RegionEncoder(nn.Module):
    """Region embedding and encoder layers."""

    def __init__(self, config: TransformerConfig, *, feature_width: int):
        super().__init__()
        self.embedding = RegionEmbedding(config, feature_width=feature_width)
        width, inner = config.width, config.feed_forward
        self.layers = nn.ModuleList(
            EncoderLayer(
                SelfAttention(
                    width,
                    config.heads,
                    dropout=config.attention_dropout,
                    sink=config.attention_sink,
                ),
                width=width,
                feed_forward=inner,
                dropout=config.dropout,
                pre=config.norm == "pre",
            )
            for _ in range(config.encoder_layers)
        )
        self.norm = layer_norm(width, pre=True) if config.norm == "pre" else nn.Identity()
        self.geometry: RelativeGeometry | None = None
        if config.box_geometry == "relative" and config.encoder_layers:
            self.geometry = RelativeGeometry(heads=config.heads, layers=config.encoder_layers)

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Encode (B, R, F) features and (B, R, 5) boxes; region_mask: (B, R) bool -> (B, R, D)."""
        states: Tensor = self.embedding(features, boxes, region_mask)
        biases = self.geometry(boxes, region_mask) if self.geometry else (None,) * len(self.layers)
        for layer, bias in zip(self.layers, biases, strict=True):
            states = layer(states, region_mask, bias)
        encoded: Tensor = self.norm(states)
        return encoded
