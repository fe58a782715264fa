"""The A2 captioner (Fei, "Attention-Aligned Transformer for Image Captioning", AAAI 2022)."""

from a2cap.model.captioner import SpecialTokens
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.transformer.decoder import CaptionDecoder
from a2cap.model.captioners.transformer.encoder import RegionEncoder
from a2cap.model.config import TransformerConfig


class TransformerCaptioner(EncoderDecoder[RegionEncoder, CaptionDecoder]):
    """Visual encoder and caption decoder with aligned cross-attention."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        feature_width: int,
        vocabulary_size: int,
        special: SpecialTokens | None = None,
    ):
        super().__init__(
            config,
            RegionEncoder(config, feature_width=feature_width),
            CaptionDecoder(config, vocabulary_size=vocabulary_size),
            feature_width=feature_width,
            vocabulary_size=vocabulary_size,
            special=special,
        )
