"""Visual encoder: self-attention over the region features (A2, section "Visual Encoder").

Linear, ReLU, dropout and LayerNorm on each region, then post-LN self-attention layers, which may
depend on the geometry of each pair of boxes. Every layer applies the region mask. M2
(github.com/aimagelab/meshed-memory-transformer) computes its mask from projected features, whose
bias makes padding non-zero, so it masks nothing.
"""

from torch import Tensor, nn

from a2cap.model.attention.multi_head import SelfAttention
from a2cap.model.attention.relational import PairEmbedding, RelationalAttention
from a2cap.model.captioners.encoder_decoder import BOX_VALUES
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.layers import FeedForward, add_block, layer_norm, xavier_linear


class RegionEmbedding(nn.Module):
    """Embedding of each region's feature and, with a `box_geometry`, of its box."""

    def __init__(self, config: TransformerConfig, *, feature_width: int):
        super().__init__()
        self.blind = config.blind
        self.feature = xavier_linear(feature_width, config.width)
        self.box: nn.Module | None = None
        if config.box_geometry == "linear":
            self.box = xavier_linear(BOX_VALUES, config.width)
        elif config.box_geometry == "relative":
            first, second = (xavier_linear(w, config.width) for w in (BOX_VALUES, config.width))
            self.box = nn.Sequential(first, nn.ReLU(), second)
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))
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


class EncoderLayer(nn.Module):
    """Self-attention over the regions of an image, then a feed-forward block."""

    def __init__(
        self,
        attention: SelfAttention | RelationalAttention,
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
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, region_mask: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Attend over the existing regions; (B, R, D) -> (B, R, D).

        region_mask: (B, R); pairs: embedded, (B, R, R, G), of relational attention.
        """
        pre, norm = self.pre, self.attention_norm
        read = norm(states) if pre else states
        if pairs is None:
            attended = self.attention(read, region_mask=region_mask)
        else:
            attended = self.attention(read, pairs, region_mask)
        states = add_block(states, self.dropout(attended), norm, pre=pre)
        norm = self.feed_forward_norm
        transformed = self.feed_forward(norm(states) if pre else states)
        return add_block(states, self.dropout(transformed), norm, pre=pre)


class RegionEncoder(nn.Module):
    """Region embedding and encoder layers."""

    def __init__(self, config: TransformerConfig, *, feature_width: int):
        super().__init__()
        self.embedding = RegionEmbedding(config, feature_width=feature_width)
        width, inner = config.width, config.feed_forward
        is_relational = config.box_geometry == "relative"
        attention = RelationalAttention if is_relational else SelfAttention
        self.layers = nn.ModuleList(
            EncoderLayer(
                attention(width, config.heads, dropout=config.attention_dropout),
                width=width,
                feed_forward=inner,
                dropout=config.dropout,
                pre=config.norm == "pre",
            )
            for _ in range(config.encoder_layers)
        )
        self.norm = layer_norm(width, pre=True) if config.norm == "pre" else nn.Identity()
        self.pairs = PairEmbedding() if is_relational and config.encoder_layers else None

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Encode (B, R, F) features and (B, R, 5) boxes; region_mask: (B, R) bool -> (B, R, D)."""
        states: Tensor = self.embedding(features, boxes, region_mask)
        pairs = None if self.pairs is None else self.pairs(boxes, region_mask)
        for layer in self.layers:
            states = layer(states, region_mask, pairs)
        encoded: Tensor = self.norm(states)
        return encoded
