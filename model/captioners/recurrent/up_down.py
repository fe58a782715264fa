"""The Up-Down captioner (Anderson et al. 2018, section 3.2, arXiv:1707.07998).

An attention LSTM reads the previous token, the mean region and the language LSTM's state; its state
attends to the regions; the language LSTM reads both and predicts the token. Equations and initial
values are those of github.com/peteanderson80/Up-Down-Captioner at 0b4e8e5: no bias in attention,
forget gates that start open. Their first token is <eos>, ours <bos>.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import DecoderPass
from a2cap.model.attention.region_attention import SingleHeadAttention
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, Sizes
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    FeatureCaptioner,
    RecurrentDecoder,
    lstm,
    mean_region,
)
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig


class UpDownDecoder(RecurrentDecoder):
    """Attention LSTM, top-down attention, language LSTM and output layer."""

    attention: SingleHeadAttention

    def __init__(self, config: UpDownConfig, *, feature_width: int, vocabulary_size: int):
        super().__init__()
        width = config.width
        self.width = width
        self.embedding = nn.Embedding(vocabulary_size, config.embedding)
        # one matrix per input of the attention LSTM: the image's share is computed once
        self.from_token = nn.Linear(config.embedding, 4 * width)
        self.from_image = nn.Linear(feature_width, 4 * width, bias=False)
        self.from_states = nn.Linear(2 * width, 4 * width, bias=False)
        self.language = nn.Linear(2 * width + feature_width, 4 * width)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(width, vocabulary_size)
        self.attention = SingleHeadAttention(
            nn.Linear(feature_width, config.attention_width, bias=False),
            nn.Linear(width, config.attention_width, bias=False),
            additive=True,
            width=config.attention_width,
            hidden_width=width,
            region_width=feature_width,
            alignment=config.alignment,
        )
        for name, parameter in self.named_parameters():
            if config.initial == "authors" and ".alignment." not in name:
                nn.init.normal_(parameter, std=0.0 if name.endswith("bias") else 0.01)
        for gates in (self.from_token, self.language):
            gates.bias.data[width : 2 * width] = 1  # an open forget gate

    def start(self, memory: Memory) -> Tensors:
        """Return the image's share of the attention LSTM, and states and cells of 0."""
        # shared by the four tensors: a step never changes them in place
        zeros = memory.states.new_zeros(len(memory), self.width)
        return (self.from_image(mean_region(memory)), zeros, zeros, zeros, zeros)

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        image, attending, attending_cell, speaking, speaking_cell = tensors
        states = self.from_states(torch.cat((attending, speaking), dim=-1))
        gates = self.from_token(self.dropout(embedded)) + image + states
        attending, attending_cell = lstm(gates, attending_cell)
        # this step's state is the query, unlike in Show, Attend and Tell
        context, attention = self.attention(attending, memory.projections[0], decoder_pass)
        gates = self.language(torch.cat((attending, context, speaking), dim=-1))
        speaking, speaking_cell = lstm(gates, speaking_cell)
        tensors = (image, attending, attending_cell, speaking, speaking_cell)
        return DecoderOutput(self.dropout(speaking), (attention,)), tensors


class UpDownCaptioner(FeatureCaptioner):
    """Region features and the Up-Down decoder."""

    decoder: UpDownDecoder

    def __init__(self, config: UpDownConfig, **sizes: Unpack[Sizes]):
        super().__init__(config, UpDownDecoder, **sizes)
