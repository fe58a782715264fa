"""NIC, "Show and Tell" (Vinyals et al. 2015, section 3, arXiv:1411.4555): no attention.

The LSTM reads the image as a first token, x_-1 = CNN(I), and then the tokens. The cell's tanh and
the initial values, uniform within 0.08 and a forget gate that starts open, are those of the
authors' code, tensorflow/models im2txt; Eq. 8 is printed without the tanh. CNN(I) is the mean of
the image's regions or cells, which for the cells of a last convolution is its average pooling.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import DecoderPass
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, EncoderDecoder, Sizes
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    RecurrentDecoder,
    RegionFeatures,
    lstm,
    mean_region,
)


class NicDecoder(RecurrentDecoder):
    """LSTM and output layer."""

    def __init__(self, config: NicConfig, *, feature_width: int, vocabulary_size: int):
        super().__init__()
        self.width, self.attention = config.width, None
        self.image = nn.Linear(feature_width, config.embedding, bias=False)
        self.embedding = nn.Embedding(vocabulary_size, config.embedding)
        self.gates = nn.Linear(config.embedding + config.width, 4 * config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, vocabulary_size)
        for name, parameter in self.named_parameters():
            bound = 0.0 if name.endswith("bias") else 0.08
            nn.init.uniform_(parameter, -bound, bound)
        self.gates.bias.data[config.width : 2 * config.width] = 1  # an open forget gate

    def start(self, memory: Memory) -> Tensors:
        """Return state and cell after the image."""
        zeros = memory.states.new_zeros(len(memory), self.width)
        return self._read(self.image(mean_region(memory)), zeros, zeros)

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        state, cell = self._read(embedded, *tensors)
        return DecoderOutput(self.dropout(state), ()), (state, cell)

    def _read(self, inputs: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return lstm(self.gates(torch.cat((self.dropout(inputs), state), dim=-1)), cell)


class NicCaptioner(EncoderDecoder):
    """Region features and the LSTM."""

    decoder: NicDecoder

    def __init__(self, config: NicConfig, **sizes: Unpack[Sizes]):
        encoder = RegionFeatures(blind=config.blind, dropout=config.region_dropout())
        decoder = NicDecoder(
            config, feature_width=sizes["feature_width"], vocabulary_size=sizes["vocabulary_size"]
        )
        super().__init__(config, encoder, decoder, **sizes)
