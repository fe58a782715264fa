"""The A2 captioner (Fei, "Attention-Aligned Transformer for Image Captioning", AAAI 2022)."""

from typing import Unpack

from a2cap.model.attention.multi_head import CrossAttention, SelfAttention
from a2cap.model.captioners.encoder_decoder import EncoderDecoder, Sizes
from a2cap.model.captioners.transformer.decoder import CaptionDecoder, DecoderLayer, TokenEmbedding
from a2cap.model.captioners.transformer.encoder import RegionEncoder
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig


class TransformerCaptioner(EncoderDecoder):
    """Visual encoder and caption decoder with aligned cross-attention."""

    encoder: RegionEncoder
    decoder: CaptionDecoder

    def __init__(self, config: TransformerConfig, **sizes: Unpack[Sizes]):
        encoder = RegionEncoder(config, feature_width=sizes["feature_width"])
        width, heads, alignment = config.width, config.heads, config.alignment
        decoder = CaptionDecoder(
            TokenEmbedding(vocabulary_size=sizes["vocabulary_size"], width=width),
            (
                DecoderLayer(
                    SelfAttention(width, heads, causal=True, dropout=config.attention_dropout),
                    CrossAttention(
                        width, heads, alignment=alignment if alignment.includes(number) else None
                    ),
                    width=width,
                    feed_forward=config.feed_forward,
                    dropout=config.dropout,
                    pre=config.norm == "pre",
                )
                for number in range(1, config.decoder_layers + 1)
            ),
        )
        super().__init__(config, encoder, decoder, **sizes)
