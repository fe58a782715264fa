"""The Global Enhanced Transformer, GET (Ji et al. 2021, arXiv:2012.07061).

A global vector is a state beside the regions in every encoder layer, and an LSTM over the layers
fuses its values. The decoder reads it through one of two controllers. The paper's text was not at
hand: equations are those of the authors' code, github.com/luo3300612/image-captioning-DLCT at
575b4dd, folder models/GET, and, for the gate controller, which it lacks, of a reimplementation from
the paper. docs/captioners.md lists what they leave open and where a2 differs.

Alignment acts on the attention over the regions. The weight of the global vector, and with it the
regions' share of the head, stay as they are.
"""

from dataclasses import replace
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import (
    AlignedAttention,
    DecoderPass,
    RegionProjection,
    at_least_float32,
    scaled_product,
)
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.attention.multi_head import AttentionForm, CrossAttention, SelfAttention
from a2cap.model.attention.region_attention import attend
from a2cap.model.captioner import Memory
from a2cap.model.captioners.encoder_decoder import EncoderDecoder, Sizes
from a2cap.model.captioners.get_config import GetConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import RegionFeatures, lstm, mean_region
from a2cap.model.captioners.transformer.transformer import (
    CaptionDecoder,
    EncoderLayer,
    TokenEmbedding,
    decoder_layers,
)
from a2cap.model.layers import merge_heads, split_heads, xavier_linear


class GlobalEncoder(nn.Module):
    """Regions and a global vector, encoded together; boxes are unused."""

    def __init__(self, config: GetConfig, *, feature_width: int):
        super().__init__()
        width = config.width
        self.features = RegionFeatures(blind=config.blind)
        self.embedding = xavier_linear(feature_width, width)
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            EncoderLayer(
                SelfAttention(
                    width,
                    config.heads,
                    dropout=config.attention_dropout,
                    form=AttentionForm(gated_output=config.gated_output),
                ),
                width=width,
                feed_forward=config.feed_forward,
                dropout=config.dropout,
            )
            for _ in range(config.encoder_layers)
        )
        self.fusion = xavier_linear(2 * width, width, parts=4)

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Encode (B, R, F) features; return each region beside the global vector, (B, R, 2 D)."""
        features = self.features(features, boxes, region_mask)
        # the global vector starts as the mean region and is always visible: (B, 1 + R, F)
        joined = torch.cat(
            (mean_region(Memory(features, region_mask, ()))[:, None], features), dim=1
        )
        is_visible = functional.pad(region_mask, (1, 0), value=True)
        states: Tensor = self.norm(self.dropout(self.embedding(joined).relu()))
        fused = cell = torch.zeros_like(states[:, 0])
        for layer in self.layers:
            states = layer(states, is_visible)
            fused, cell = lstm(self.fusion(torch.cat((states[:, 0], fused), dim=-1)), cell)
        regions = states[:, 1:]
        return torch.cat((regions, fused[:, None].expand_as(regions)), dim=-1)


class GlobalCrossAttention(CrossAttention):
    """Attention over the regions, and the controller that adds the global vector.

    The last row of the projected keys and values is that of the global vector.
    """

    def __init__(self, config: GetConfig, *, alignment: AlignmentConfig | None):
        form = AttentionForm(gated_output=config.gated_output)
        super().__init__(config.width, config.heads, alignment=alignment, form=form)
        self.is_gate = config.controller == "gate"

    def project(self, regions: Tensor, region_mask: Tensor) -> RegionProjection:
        """Project the encoder's output, (B, R, 2 D), to keys and values (B, H, R + 1, d)."""
        states, summary = regions.chunk(2, dim=-1)
        # equal in every row; the mean shares its gradient among the existing regions
        summary = mean_region(Memory(summary, region_mask, ()))[:, None]
        if self.is_gate:  # it is read as it is
            projected = self.key_value(states).chunk(2, dim=-1)
            parts = [torch.cat((part, summary.to(part.dtype)), dim=1) for part in projected]
        else:
            parts = list(self.key_value(torch.cat((states, summary), dim=1)).chunk(2, dim=-1))
        keys, values = (split_heads(part, self.heads).contiguous() for part in parts)
        return RegionProjection(keys, values, region_mask, self.project_mask_keys(regions))

    def project_mask_keys(self, regions: Tensor) -> Tensor | None:
        """Project the regions alone for the mask network; None without one."""
        return super().project_mask_keys(regions.chunk(2, dim=-1)[0])

    def forward(
        self, hidden: Tensor, regions: RegionProjection, decoder_pass: DecoderPass
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend over the regions, then add the global vector; hidden: (B or 1, Q, D)."""
        queries = split_heads(self.query(hidden), self.heads)  # (B, Q, D) -> (B, H, Q, d)
        scale = queries.shape[-1] ** -0.5
        keys, values = regions.keys[:, :, :-1], regions.values[:, :, :-1]
        padding = decoder_pass.padding(regions.region_mask)
        scores = scaled_product(queries, keys, scale=scale, bias=padding)
        attended, attention = attend(
            scores,
            replace(regions, keys=keys, values=values),
            self.alignment,
            queries=queries,
            hidden=hidden,
            decoder_pass=decoder_pass,
        )
        global_key, global_value = regions.keys[:, :, -1:], regions.values[:, :, -1:]
        if self.is_gate:
            summary = merge_heads(global_value)  # -> (B, 1, D)
            gate = (hidden * summary).sum(dim=-1, keepdim=True).sigmoid()  # -> (B, Q, 1)
            return self.output(merge_heads(attended)) + gate * summary, attention
        # the softmax over regions and global vector, as the share of the latter: (B, H, Q, 1)
        score = at_least_float32(scale * queries @ global_key.transpose(-1, -2))
        rest = at_least_float32(scores).logsumexp(dim=-1, keepdim=True)
        share = (score - rest).sigmoid().to(attended.dtype)
        joined = (1 - share) * attended + share * global_value
        return self.output(merge_heads(joined)), attention


class GetCaptioner(EncoderDecoder):
    """Global enhanced encoder and global adaptive decoder."""

    encoder: GlobalEncoder
    decoder: CaptionDecoder

    def __init__(self, config: GetConfig, **sizes: Unpack[Sizes]):
        encoder = GlobalEncoder(config, feature_width=sizes["feature_width"])
        embedding = TokenEmbedding(vocabulary_size=sizes["vocabulary_size"], width=config.width)
        attention = partial(GlobalCrossAttention, config)
        layers = decoder_layers(config, attention, dropout=config.dropout)
        super().__init__(config, encoder, CaptionDecoder(embedding, layers), **sizes)

    @property
    def state_width(self) -> int:
        """Width of a region beside the global vector."""
        return 2 * self.config.width
