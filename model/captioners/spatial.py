"""Spatial self-attention Transformer (Springenberg et al. 2018, Image-to-Text Transduction).

Cells of a grid are a sequence as words are: they get positions, row by row, and attend to each
other. Scores are divided by tau = sqrt(d_len + d_attn), with the length of the keys; d_len is fixed
here, so that a caption has the same probability in training and token by token. What the paper
leaves open: inter-attention adds its query to its output (the printed sum has two shapes); cells
are normalised before they get positions, beside which raw features are large; features of
another width than the model's are projected. Embeddings are scaled as Vaswani's, where the paper
prints no factor: their initial values are the same.
"""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.attention.multi_head import AttentionForm, CrossAttention, SelfAttention
from a2cap.model.captioners.encoder_decoder import EncoderDecoder, Sizes
from a2cap.model.captioners.recurrent.recurrent_decoder import RegionFeatures
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer import (
    CaptionDecoder,
    EncoderLayer,
    TokenEmbedding,
    decoder_layers,
)
from a2cap.model.errors import ModelError
from a2cap.model.layers import sinusoidal_positions, xavier_linear


class CellEncoder(nn.Module):
    """Cells with positions, and self-attention layers over them; boxes are unused."""

    def __init__(self, config: SpatialConfig, *, feature_width: int):
        super().__init__()
        width = config.width
        self.cells = config.cells
        self.features = RegionFeatures(blind=config.blind)
        is_equal = feature_width == width
        self.projection = nn.Identity() if is_equal else xavier_linear(feature_width, width)
        # without weights, which the paper does not have
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.has_norm = config.feature_norm == "layer"
        self.positions: Tensor
        self.register_buffer(
            "positions", sinusoidal_positions(config.cells, width), persistent=False
        )
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))
        form = AttentionForm(bias=False, length=config.cells)
        self.layers = nn.ModuleList(
            EncoderLayer(
                SelfAttention(width, config.heads, form=form, dropout=config.attention_dropout),
                width=width,
                feed_forward=config.feed_forward,
            )
            for _ in range(config.encoder_layers)
        )

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Encode (B, R, F) features of R cells -> (B, R, D)."""
        # fewer columns cannot have too many cells, and to count them waits for a GPU
        if region_mask.shape[1] > self.cells:
            cells = int(region_mask.sum(dim=1).max())
            if cells > self.cells:
                raise ModelError(
                    f"an image has {cells} regions, the captioner has positions for {self.cells} "
                    "cells; set model.cells to the number of cells and retrain"
                )
        states: Tensor = self.projection(self.features(features, boxes, region_mask))
        states = self.norm(states) if self.has_norm else states
        # only padding can be beyond the last position
        padding = states.new_zeros(max(0, states.shape[1] - self.cells), states.shape[2])
        positions = torch.cat((self.positions.to(states.dtype), padding))[: states.shape[1]]
        states = self.dropout(states + positions)
        for layer in self.layers:
            states = layer(states, region_mask)
        return states


class SpatialCaptioner(EncoderDecoder):
    """Encoder of cells and a caption decoder."""

    encoder: CellEncoder
    decoder: CaptionDecoder

    def __init__(self, config: SpatialConfig, **sizes: Unpack[Sizes]):
        encoder = CellEncoder(config, feature_width=sizes["feature_width"])
        words, cells = (AttentionForm(bias=False, length=n) for n in (config.words, config.cells))
        embedding = TokenEmbedding(
            vocabulary_size=sizes["vocabulary_size"], width=config.width, dropout=config.dropout
        )
        attention = partial(CrossAttention, config.width, config.heads, form=cells)
        layers = decoder_layers(config, attention, form=words)
        super().__init__(config, encoder, CaptionDecoder(embedding, layers), **sizes)

    @property
    def regions_are_a_set(self) -> bool:
        """Report that cells have positions."""
        return False
