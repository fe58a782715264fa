"""An ensemble of captioners, itself a captioner: it averages their predictions of each token.

The A2 paper submits an ensemble of four and leaves open what it averages.
ImageCaptioning.pytorch (github.com/ruotianluo/ImageCaptioning.pytorch) averages probabilities, M2
(github.com/aimagelab/meshed-memory-transformer) log-probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from a2cap.model.captioner import CaptionModel, DecoderState, Memory, StepAttention, StepOutput
from a2cap.model.errors import ModelError

Average = Literal["probabilities", "log_probabilities"]


class Ensemble:
    """Captioners of one vocabulary and one region width that predict each token together.

    average: the quantity averaged; weights: of the captioners in this mean, () for equal ones.
    Attention is averaged evenly. Raises ModelError for different vocabularies, no captioner or
    other weights.
    """

    def __init__(
        self,
        captioners: Sequence[CaptionModel],
        *,
        average: Average = "probabilities",
        weights: Sequence[float] = (),
    ):
        if not captioners:
            raise ModelError("an ensemble has no captioner; give it one or more")
        if weights:
            check_weights(weights, len(captioners))
        first = captioners[0]
        expected = (first.vocabulary_size, first.special)
        for captioner in captioners:
            if (captioner.vocabulary_size, captioner.special) != expected:
                raise ModelError(
                    f"captioners of an ensemble have {first.vocabulary_size} and "
                    f"{captioner.vocabulary_size} tokens, or other special tokens; give it "
                    "captioners of one vocabulary"
                )
        self.captioners = tuple(captioners)
        self.average: Average = average
        values = torch.tensor(weights or [1.0] * len(captioners), dtype=torch.float64)
        self._weights = values / values.sum()
        self.special = first.special
        self.vocabulary_size = first.vocabulary_size

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Encode B images with each captioner; the states are those of the first one."""
        members = tuple(c.encode(features, boxes, region_mask) for c in self.captioners)
        return Memory(members[0].states, region_mask, (), members=members)

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """Create the state of each captioner before <bos>."""
        members = tuple(
            captioner.start(member, rows_per_image)
            for captioner, member in zip(self.captioners, memory.members, strict=True)
        )
        return DecoderState(memory, rows_per_image, members=members)

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Average the predictions of all captioners after the same tokens."""
        outputs = [
            captioner.step(tokens, member, attention=attention)
            for captioner, member in zip(self.captioners, state.members, strict=True)
        ]
        attention_maps = [output.attention for output in outputs if output.attention is not None]
        return StepOutput(
            self._average([output.log_probs for output in outputs]),
            _mean_attention(attention_maps) if attention_maps else None,
            replace(state, members=tuple(output.state for output in outputs)),
        )

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return the averaged log-probabilities (B, K, L, V) of every next token."""
        return self._average(
            [
                captioner.forward(member, tokens)
                for captioner, member in zip(self.captioners, memory.members, strict=True)
            ]
        )

    def _average(self, log_probs: Sequence[Tensor]) -> Tensor:
        """Average log-probabilities (..., V); a single captioner's are unchanged."""
        # exactly those of the captioner: the average of one would round
        if len(log_probs) == 1:
            return log_probs[0]
        stacked = torch.stack(list(log_probs))
        weights = self._weights.to(stacked).reshape(-1, *[1] * log_probs[0].dim())
        if self.average == "probabilities":
            return (stacked + weights.log()).logsumexp(dim=0)
        # M2 leaves the mean unnormalised; here it is a distribution again
        return (stacked * weights).sum(dim=0).log_softmax(dim=-1)


def check_weights(weights: Sequence[float], count: int) -> None:
    """Raise ModelError unless there is a positive weight for each captioner of an ensemble."""
    if len(weights) != count or not all(0 < weight < math.inf for weight in weights):
        raise ModelError(
            f"ensemble_weights are {list(weights)} for {count} captioners; give a positive number "
            "for each, in their order, or none"
        )


def _mean_attention(members: Sequence[StepAttention]) -> StepAttention:
    """Average over captioners; keep and gate over those that have them; concatenate the layers."""

    def mean(name: str) -> Any:  # None if no captioner has it
        values = [getattr(attention, name) for attention in members]
        present = [value for value in values if value is not None]
        return torch.stack(present).mean(dim=0) if present else None

    layers = tuple(layer for attention in members for layer in attention.layers)
    original, aligned, keep, gate = map(mean, ("original", "aligned", "keep", "gate"))
    return StepAttention(original, aligned, keep, gate, layers)
