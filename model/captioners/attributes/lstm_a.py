"""LSTM-A (Yao et al. 2017, arXiv:1611.01646): an LSTM that reads attributes and the image.

Attributes are the most frequent words. Their probabilities come from the regions by multiple
instance learning (Fang et al. 2015, section 3, arXiv:1411.4952): an image shows an attribute if one
of its regions does, p = 1 - prod_r (1 - p_r), the noisy-or. The detector learns from the words of
the image's captions by a loss of its own. As in the paper, whose detector is trained before, the
caption loss does not reach it. The paper's text was not at hand: order and linear layers with a
bias are those of X-modaler, github.com/YehLi/xmodaler at ed1f559, which has the variant a3.
docs/captioners.md lists what is open.
"""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import DecoderPass, at_least_float32
from a2cap.model.captioner import Memory, ScoredCaptions, Tensors
from a2cap.model.captioners.attributes.lstm_a_config import FIRST_WORD, LstmAConfig
from a2cap.model.captioners.encoder_decoder import DecoderOutput, Sizes
from a2cap.model.captioners.recurrent.nic import LanguageLstm
from a2cap.model.captioners.recurrent.recurrent_decoder import FeatureCaptioner, mean_region
from a2cap.model.errors import ModelError
from a2cap.model.replaced_parameters import frozen

ORDERS = {
    "a1": (("attributes",), None),
    "a2": (("image", "attributes"), None),
    "a3": (("attributes", "image"), None),
    "a4": (("image",), "attributes"),
    "a5": (("attributes",), "image"),
}
"""Variant -> what the LSTM reads before the tokens in turn, and what is added to each token."""

_INITIAL_BIAS = -6.58
"""Score of an attribute in a region at the start, a probability of 0.0014: with 0 nearly every
attribute of an image of many regions would have a probability of 1."""


class AttributeDetector(nn.Module):
    """Probabilities that an image shows its attributes, by noisy-or over its regions."""

    def __init__(self, *, feature_width: int, attributes: int):
        super().__init__()
        self.score = nn.Linear(feature_width, attributes)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.constant_(self.score.bias, _INITIAL_BIAS)

    def forward(self, states: Tensor, region_mask: Tensor) -> Tensor:
        """Return -log(1 - p) of each attribute, (B, N) float, from features (B, R, F)."""
        scores = at_least_float32(self.score(states))
        # -log(1 - sigmoid(z)) is softplus(z)
        return functional.softplus(scores).masked_fill(~region_mask[..., None], 0).sum(dim=1)

    def loss(self, negative_logs: Tensor, shown: Tensor) -> Tensor:
        """Return the binary cross-entropy of each image, summed over attributes; (B, N) -> (B,).

        negative_logs: -log(1 - p); shown: bool, True for attributes that the captions name.
        """
        tiny = torch.finfo(negative_logs.dtype).tiny
        log_probability = (-torch.expm1(-negative_logs)).clamp(min=tiny).log()
        return torch.where(shown, -log_probability, negative_logs).sum(dim=-1)


class LstmADecoder(LanguageLstm):
    """Detector of attributes, and an LSTM that reads them and the image."""

    def __init__(self, config: LstmAConfig, *, feature_width: int, vocabulary_size: int):
        sizes = {"width": config.width, "embedding": config.embedding}
        super().__init__(dropout=config.dropout, vocabulary_size=vocabulary_size, **sizes)
        self.first, self.each = ORDERS[config.variant]
        widths = {"attributes": config.attributes, "image": feature_width}
        names = [*self.first, *([] if self.each is None else [self.each])]
        self.inputs = nn.ModuleDict(
            {name: nn.Linear(widths[name], config.embedding) for name in names}
        )
        self.initialise()
        self.detector = AttributeDetector(feature_width=feature_width, attributes=config.attributes)

    def start(self, memory: Memory) -> Tensors:
        """Return state and cell after the first inputs, and what is added to each token."""
        # no gradient of the caption loss
        with frozen(self.detector, self.detector.parameters()):
            negative_logs = self.detector(memory.states, memory.region_mask)
        values = {"attributes": -torch.expm1(-negative_logs), "image": mean_region(memory)}
        embedded = {name: layer(values[name]) for name, layer in self.inputs.items()}
        state = cell = memory.states.new_zeros(len(memory), self.width)
        for name in self.first:
            state, cell = self.read(embedded[name], state, cell)
        return (state, cell) if self.each is None else (state, cell, embedded[self.each])

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        state, cell, *each = tensors
        inputs = embedded + each[0] if each else embedded
        output, after = super().advance(inputs, (state, cell), memory, decoder_pass)
        return output, (*after, *each)


class LstmACaptioner(FeatureCaptioner):
    """Region features and the decoder, with the loss of its detector."""

    decoder: LstmADecoder
    penalty_names = ("attributes",)
    penalties_of_truth = penalty_names

    def __init__(self, config: LstmAConfig, **sizes: Unpack[Sizes]):
        if sizes["vocabulary_size"] < config.least_vocabulary:
            words = sizes["vocabulary_size"] - FIRST_WORD
            raise ModelError(
                f"attributes is {config.attributes}, but the vocabulary has {words} words; set "
                f"model.attributes to at most {words}"
            )
        super().__init__(config, LstmADecoder, **sizes)

    def penalties(
        self, scored: ScoredCaptions, memory: Memory, captions: Tensor
    ) -> dict[str, Tensor]:
        """Return the loss of the detector, over the words of the captions of each image."""
        detector, words = self.decoder.detector, captions.flatten(1)
        present = torch.zeros(
            len(words), self.vocabulary_size, dtype=torch.bool, device=words.device
        ).scatter_(1, words, True)
        shown = present[:, FIRST_WORD : FIRST_WORD + detector.score.out_features]
        is_token = words != self.special.pad
        losses = detector.loss(detector(memory.states, memory.region_mask), shown)
        # per token, as the caption loss; an image without captions has no words to learn from
        total = (losses * is_token.any(dim=-1)).sum() / is_token.sum().clamp(min=1)
        return {"attributes": total}
