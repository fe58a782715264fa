"""Show, Attend and Tell with soft or hard attention (Xu et al. 2015, arXiv:1502.03044).

Equations are those of the paper, sections 3.1 and 4. What it leaves open follows the authors'
code, github.com/kelvinxu/arctic-captions: two layers before the attention's tanh, one hidden layer
for both initial states, a gate on the context (section 4.2.1), and a tanh in the deep output. One
bias that the softmax over regions undoes is left out.
"""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import DecoderPass
from a2cap.model.attention.hard import LocationLosses, Locations
from a2cap.model.attention.region_attention import SingleHeadAttention
from a2cap.model.captioner import Memory, ScoredCaptions, SpecialTokens, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, Sizes
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    FeatureCaptioner,
    RecurrentDecoder,
    lstm,
    mean_region,
)
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig


class ShowAttendTellDecoder(RecurrentDecoder):
    """Attention by the previous state, LSTM and deep output; bos: token that starts a caption."""

    attention: SingleHeadAttention

    def __init__(
        self, config: ShowAttendTellConfig, *, feature_width: int, vocabulary_size: int, bos: int
    ):
        super().__init__()
        width, embedding = config.width, config.embedding
        self.bos, self.has_tanh = bos, config.output == "tanh"
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.attention = SingleHeadAttention(
            _key(feature_width, config),
            nn.Linear(width, config.attention_width, bias=False),
            additive=True,
            width=config.attention_width,
            hidden_width=width,
            region_width=feature_width,
            alignment=config.alignment,
            choose=Locations(config.hard) if config.attention == "hard" else None,
        )
        self.gate = nn.Linear(width, 1) if config.gate == "scalar" else None
        self.initial = nn.Linear(feature_width, feature_width)
        self.initial_state = nn.Linear(feature_width, width)
        self.initial_cell = nn.Linear(feature_width, width)
        self.gates = nn.Linear(embedding + width + feature_width, 4 * width)
        self.from_state = nn.Linear(width, embedding)
        self.from_context = nn.Linear(feature_width, embedding)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(embedding, vocabulary_size)
        if config.initial == "authors":
            self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Set orthogonal values where square, else N(0, 0.01^2); biases are 0."""
        for name, parameter in self.named_parameters():
            if ".alignment." in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.shape[0] == parameter.shape[1]:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.normal_(parameter, std=0.01)
        first = self.embedding.embedding_dim
        width = self.initial_state.out_features
        for block in self.gates.weight.chunk(4):
            nn.init.orthogonal_(block[:, first : first + width])

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens, <bos> as zeros: the first input is not an embedding."""
        return super().embed(tokens).masked_fill((tokens == self.bos)[..., None], 0)

    def start(self, memory: Memory) -> Tensors:
        """Return the LSTM's state and cell, from the mean region."""
        hidden = self.dropout(self.initial(mean_region(memory)).relu())
        return (self.initial_state(hidden).tanh(), self.initial_cell(hidden).tanh())

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        state, cell = tensors
        context, attention = self.attention(state, memory.projections[0], decoder_pass)
        if self.gate is not None:
            context = self.gate(state).sigmoid() * context
        state, cell = lstm(self.gates(torch.cat((embedded, state, context), dim=-1)), cell)
        deep = embedded + self.from_state(self.dropout(state)) + self.from_context(context)
        states = self.dropout(deep.tanh() if self.has_tanh else deep)
        return DecoderOutput(states, (attention,)), (state, cell)


def _key(feature_width: int, config: ShowAttendTellConfig) -> nn.Module:
    first = nn.Linear(feature_width, config.attention_width)
    if config.attention_layers == 1:
        return first
    second = nn.Linear(config.attention_width, config.attention_width)
    return nn.Sequential(first, second, nn.Tanh())


class ShowAttendTellCaptioner(FeatureCaptioner):
    """Region features and the decoder, with the losses of its attention.

    Soft attention has the doubly stochastic penalty, hard attention those of REINFORCE; the masks
    of hard attention are trained with expected contexts.
    """

    config: ShowAttendTellConfig
    decoder: ShowAttendTellDecoder

    def __init__(self, config: ShowAttendTellConfig, **sizes: Unpack[Sizes]):
        bos = (sizes.get("special") or SpecialTokens()).bos
        super().__init__(config, partial(ShowAttendTellDecoder, bos=bos), **sizes)
        self.hard = LocationLosses(config.hard) if config.attention == "hard" else None
        penalties = ("doubly_stochastic",) if self.hard is None else self.hard.names
        self.penalty_names = (*self.penalty_names, *penalties)

    @property
    def samples_regions(self) -> bool:
        """True for hard attention."""
        return self.hard is not None

    @property
    def moving_averages(self) -> list[Tensor]:
        """The baseline of hard attention, if it is a moving average."""
        return [] if self.hard is None else list(self.hard.buffers())

    def penalties(
        self, scored: ScoredCaptions, memory: Memory, captions: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses of the attention, per token of the batch."""
        is_token = captions != self.special.pad
        if self.hard is None:
            return {"doubly_stochastic": self._doubly_stochastic(scored, memory, is_token)}
        if not self.training:  # nothing is sampled
            return dict.fromkeys(self.hard.names, scored.log_probs.new_zeros(()))
        soft = None
        if self.config.hard.baseline == "soft":
            with torch.no_grad():
                soft = self.score(memory, captions, expected=True).log_probs
        losses: dict[str, Tensor] = self.hard(scored.log_probs, scored.attention[0], is_token, soft)
        return losses

    def _doubly_stochastic(
        self, scored: ScoredCaptions, memory: Memory, is_token: Tensor
    ) -> Tensor:
        """Return lambda sum_i (1 - sum_t alpha_ti)^2 of each caption, per token of the batch."""
        # of the attention before alignment, whose rows are distributions
        original = scored.attention[0].original[:, 0].reshape(*is_token.shape, -1)
        attended = (original * is_token[..., None]).sum(dim=2)  # -> (B, K, R)
        counted = memory.region_mask[:, None] & is_token.any(dim=-1, keepdim=True)
        total = ((1 - attended).square() * counted).sum() / is_token.sum().clamp(min=1)
        return self.config.doubly_stochastic * total
