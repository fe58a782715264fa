"""Visual encoder: region features to states that have seen each other (A2, "Visual Encoder").

Linear, ReLU, dropout and LayerNorm on each region, then post-LN self-attention layers. The region
mask is honoured in every layer; in M2 (github.com/aimagelab/meshed-memory-transformer) it is
computed after a projection whose bias hides the padding, and never fires.
"""

from torch import Tensor, nn

from a2cap.model.attention.multi_head import SelfAttention, projection
from a2cap.model.config import ModelConfig
from a2cap.model.layers.dropout import Dropout
from a2cap.model.layers.feed_forward import FeedForward

BOX_VALUES = 5
"""x1, y1, x2, y2 in [0, 1] of the image's width and height, and the box's share of its area."""


class RegionEmbedding(nn.Module):
    """One state per region from its feature and, with `box_geometry: linear`, its box."""

    def __init__(self, config: ModelConfig, *, feature_width: int):
        super().__init__()
        self.blind = config.blind
        self.feature = projection(feature_width, config.width)
        has_boxes = config.box_geometry == "linear"
        self.box = projection(BOX_VALUES, config.width) if has_boxes else None
        self.dropout = Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """features: (B, R, F); boxes: (B, R, 5); region_mask: (B, R) bool. Returns (B, R, D)."""
        is_padding = ~region_mask[..., None]
        # Zeroed, not only masked later: 0 * NaN in a padded row would reach every sum.
        features = features.to(self.feature.weight.dtype).masked_fill(is_padding | self.blind, 0)
        states: Tensor = self.dropout(self.feature(features).relu())
        if self.box is not None:
            boxes = boxes.to(self.box.weight.dtype).masked_fill(is_padding, 0)
            states = states + self.box(boxes)
        embedded: Tensor = self.norm(states)
        return embedded


class EncoderLayer(nn.Module):
    """Self-attention among the regions of an image, then a feed-forward block."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads)
        self.attention_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width, config.feed_forward)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, states: Tensor, region_mask: Tensor) -> Tensor:
        """states: (B, R, D); region_mask: (B, R) bool."""
        attended = self.attention(states, region_mask=region_mask)
        states = self.attention_norm(states + self.dropout(attended))
        transformed = self.feed_forward(states)
        encoded: Tensor = self.feed_forward_norm(states + self.dropout(transformed))
        return encoded


class RegionEncoder(nn.Module):
    """Embedding and encoder layers."""

    def __init__(self, config: ModelConfig, *, feature_width: int):
        super().__init__()
        self.embedding = RegionEmbedding(config, feature_width=feature_width)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """features: (B, R, F); boxes: (B, R, 5); region_mask: (B, R) bool. Returns (B, R, D)."""
        states: Tensor = self.embedding(features, boxes, region_mask)
        for layer in self.layers:
            states = layer(states, region_mask)
        return states
