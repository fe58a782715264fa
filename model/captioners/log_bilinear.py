"""Log-bilinear captioner (Kiros et al. 2014, "Multimodal Neural Language Models"): no attention.

The modality-biased model, MLBL-B. With word representations r, n - 1 previous words, matrices C of
each of their positions, and x the image, here the mean region:

    r' = sum_i C_i r_(w_i) + C_m x
    P(w_n = w | w_1..w_(n-1), x) = exp(r' r_w + b_w) / sum_v exp(r' r_v + b_v)

The text was not at hand: open are positions before <bos>, which add nothing here, and biases.
"""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import DecoderPass
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, Sizes
from a2cap.model.captioners.log_bilinear_config import LogBilinearConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    FeatureCaptioner,
    RecurrentDecoder,
    mean_region,
)


class LogBilinearDecoder(RecurrentDecoder):
    """Matrices of the previous words and of the image; words are embedded by the output layer."""

    def __init__(self, config: LogBilinearConfig, *, feature_width: int, vocabulary_size: int):
        super().__init__()
        self.attention, self.width, self.context = None, config.width, config.context
        self.words = nn.Linear(config.context * config.width, config.width, bias=False)
        self.image = nn.Linear(feature_width, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, vocabulary_size)
        nn.init.zeros_(self.output.bias)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the representations of tokens of any shape."""
        return functional.embedding(tokens, self.output.weight)

    def start(self, memory: Memory) -> Tensors:
        """Return an empty context, the oldest word first, and what the image adds."""
        empty = memory.states.new_zeros(len(memory), self.context * self.width)
        return empty, self.image(mean_region(memory))

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Predict the representation of the next token of each row."""
        context, image = tensors
        context = torch.cat((context[:, self.width :], self.dropout(embedded)), dim=-1)
        return DecoderOutput(self.dropout(self.words(context) + image), ()), (context, image)


class LogBilinearCaptioner(FeatureCaptioner):
    """Region features and the log-bilinear decoder."""

    decoder: LogBilinearDecoder

    def __init__(self, config: LogBilinearConfig, **sizes: Unpack[Sizes]):
        super().__init__(config, LogBilinearDecoder, **sizes)
