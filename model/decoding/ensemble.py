"""An ensemble of captioners, itself a captioner: their predictions of each word are averaged.

The A2 paper submits an ensemble of four without saying what is averaged. Averages of probabilities
are ImageCaptioning.pytorch's (github.com/ruotianluo/ImageCaptioning.pytorch), averages of
log-probabilities M2's (github.com/aimagelab/meshed-memory-transformer), which leaves them
unnormalised; here they are scaled to probabilities again.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from a2cap.model.captioner import Captioner, DecoderState, Memory, StepAttention, StepOutput
from a2cap.model.errors import ModelError

Average = Literal["probabilities", "log_probabilities"]


class Ensemble:
    """Captioners of one vocabulary and one region width that say each word together.

    average: what their mean is taken of. Raises ModelError where they cannot speak together.
    """

    def __init__(self, captioners: Sequence[Captioner], *, average: Average = "probabilities"):
        if not captioners:
            raise ModelError("an ensemble has no captioner; give it one or more")
        first = captioners[0]
        for captioner in captioners:
            if (captioner.vocabulary_size, captioner.special) != (
                first.vocabulary_size,
                first.special,
            ):
                raise ModelError(
                    f"captioners of an ensemble have {first.vocabulary_size} and "
                    f"{captioner.vocabulary_size} words, or other special tokens; give it "
                    "captioners of one vocabulary"
                )
        self.captioners = tuple(captioners)
        self.average: Average = average
        self.special = first.special
        self.vocabulary_size = first.vocabulary_size

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """What each captioner keeps of B images; states are those of the first one."""
        members = tuple(c.encode(features, boxes, region_mask) for c in self.captioners)
        return Memory(members[0].states, region_mask, (), members=members)

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """The state of each captioner before <bos>."""
        members = tuple(
            captioner.start(member, rows_per_image)
            for captioner, member in zip(self.captioners, memory.members, strict=True)
        )
        return DecoderState(memory, rows_per_image, members=members)

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Every captioner takes the same tokens; log-probabilities are those of their average."""
        outputs = [
            captioner.step(tokens, member, attention=attention)
            for captioner, member in zip(self.captioners, state.members, strict=True)
        ]
        paid = [output.attention for output in outputs if output.attention is not None]
        return StepOutput(
            self._averaged([output.log_probs for output in outputs]),
            _mean_attention(paid) if paid else None,
            replace(state, members=tuple(output.state for output in outputs)),
        )

    def reorder(self, state: DecoderState, index: Tensor) -> DecoderState:
        """Every captioner's state with row index[i] at row i."""
        members = tuple(
            captioner.reorder(member, index)
            for captioner, member in zip(self.captioners, state.members, strict=True)
        )
        return replace(state, members=members)

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Teacher forcing: the average's log-probabilities (B, K, L, V)."""
        return self._averaged(
            [
                captioner.forward(member, tokens)
                for captioner, member in zip(self.captioners, memory.members, strict=True)
            ]
        )

    def _averaged(self, log_probs: Sequence[Tensor]) -> Tensor:
        """Log-probabilities (..., V) of the average; those of a single captioner unchanged."""
        if len(log_probs) == 1:
            return log_probs[0]
        stacked = torch.stack(list(log_probs))
        if self.average == "probabilities":
            return stacked.logsumexp(dim=0) - math.log(len(log_probs))
        return stacked.mean(dim=0).log_softmax(dim=-1)


def _mean_attention(paid: Sequence[StepAttention]) -> StepAttention:
    """The captioners' mean; keep and gate over those that have them, the layers one by one."""
    return StepAttention(
        original=_mean([attention.original for attention in paid]),
        aligned=_mean([attention.aligned for attention in paid]),
        keep=_mean_of_some([attention.keep for attention in paid]),
        gate=_mean_of_some([attention.gate for attention in paid]),
        layers=tuple(layer for attention in paid for layer in attention.layers),
    )


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(dim=0)


def _mean_of_some(values: Sequence[Tensor | None]) -> Tensor | None:
    there = [value for value in values if value is not None]
    return _mean(there) if there else None
