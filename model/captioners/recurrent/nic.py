"""NIC, "Show and Tell" (Vinyals et al. 2015, section 3, arXiv:1411.4555): no attention.

The LSTM reads the image as a first token, x_-1 = CNN(I), and then the tokens. The cell's tanh and
the initial values, uniform within 0.08 and a forget gate that starts open, are those of the
authors' code, tensorflow/models im2txt; Eq. 8 is printed without the tanh. CNN(I) is the mean of
the image's regions or cells, which for the cells of a last convolution is its average pooling.

With `cell: rnn` it is the captioner of Karpathy and Fei-Fei 2015 (section 3.2, arXiv:1412.2306),
where the image is a bias of the first step alone; the numbers of the equations are those of the
paper as others quote it, its text was not at hand.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import DecoderPass
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, Sizes
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    FeatureCaptioner,
    RecurrentDecoder,
    lstm,
    mean_region,
)


class LanguageLstm(RecurrentDecoder):
    """LSTM and output layer; a subclass says what the LSTM reads before the tokens.

    gates: of the cell, 4 of an LSTM.
    """

    def __init__(
        self, *, width: int, embedding: int, dropout: float, vocabulary_size: int, gates: int = 4
    ):
        super().__init__()
        self.width, self.attention = width, None
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.gates = nn.Linear(embedding + width, gates * width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary_size)

    def initialise(self) -> None:
        """Set the initial values of all parameters."""
        for name, parameter in self.named_parameters():
            bound = 0.0 if name.endswith("bias") else 0.08
            nn.init.uniform_(parameter, -bound, bound)
        self.gates.bias.data[self.width : 2 * self.width] = 1  # an open forget gate

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        state, cell = self.read(embedded, *tensors)
        return DecoderOutput(self.dropout(state), ()), (state, cell)

    def read(self, inputs: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next state and cell, (N, D) each, after inputs of the embedding's width."""
        return lstm(self.gates(torch.cat((self.dropout(inputs), state), dim=-1)), cell)


class NicDecoder(LanguageLstm):
    """LSTM that reads the image as its first token."""

    def __init__(self, config: NicConfig, *, feature_width: int, vocabulary_size: int):
        sizes = {"width": config.width, "embedding": config.embedding}
        super().__init__(dropout=config.dropout, vocabulary_size=vocabulary_size, **sizes)
        self.image = nn.Linear(feature_width, config.embedding, bias=False)
        self.initialise()

    def start(self, memory: Memory) -> Tensors:
        """Return state and cell after the image."""
        zeros = memory.states.new_zeros(len(memory), self.width)
        return self.read(self.image(mean_region(memory)), zeros, zeros)


class RnnDecoder(LanguageLstm):
    """RNN that reads the image beside its first token (Karpathy and Fei-Fei 2015).

    h_t = max(0, W_hx x_t + W_hh h_(t-1) + b_h + [t = 1] W_hi CNN(I))    (Eq. 13 and 14)
    """

    def __init__(self, config: NicConfig, *, feature_width: int, vocabulary_size: int):
        sizes = {"width": config.width, "embedding": config.embedding, "gates": 1}
        super().__init__(dropout=config.dropout, vocabulary_size=vocabulary_size, **sizes)
        self.image = nn.Linear(feature_width, config.width, bias=False)
        self.initialise()

    def start(self, memory: Memory) -> Tensors:
        """Return the state and the image's bias of the next step."""
        state = memory.states.new_zeros(len(memory), self.width)
        return state, self.dropout(self.image(mean_region(memory)))

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        state, image = tensors
        inputs = torch.cat((self.dropout(embedded), state), dim=-1)
        state = (self.gates(inputs) + image).relu()
        return DecoderOutput(self.dropout(state), ()), (state, torch.zeros_like(image))


class NicCaptioner(FeatureCaptioner):
    """Region features and the LSTM, or the RNN."""

    decoder: NicDecoder | RnnDecoder

    def __init__(self, config: NicConfig, **sizes: Unpack[Sizes]):
        make = RnnDecoder if config.cell == "rnn" else NicDecoder
        super().__init__(config, make, **sizes)
