"""Self-critical training (Rennie et al. 2017, arXiv:1612.00563; Eq. 12 of the A2 paper).

Captions are drawn without a graph and with the captioner's cache, then scored by teacher forcing in
one pass that has the gradient. Without dropout both compute the same probabilities, so the gradient
is that of back-propagation through every step of drawing.

Baselines: `greedy` rewards what greedy decoding says (Rennie), `leave_one_out` the mean of the
image's other samples (Luo 2020, arXiv:2003.09971), `beam_mean` takes the beams for samples and
rewards their mean (Cornia et al. 2020, arXiv:1912.08226).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from a2cap.model.captioner import Captioner, Memory
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.sampling import sample_captions
from a2cap.model.errors import ModelError

Baseline = Literal["leave_one_out", "greedy", "beam_mean"]
Reward = Callable[[Tensor], Tensor]
"""Captions (B, K, L) int64 -> rewards (B, K) float; whatever K is."""


@dataclass(frozen=True)
class Attempts:
    """K captions of each of B images and what they earned.

    captions: (B, K, L) int64, a row of padding alone where a beam found fewer; rewards and
    baseline: (B, K) float.
    """

    captions: Tensor
    rewards: Tensor
    baseline: Tensor

    @property
    def advantages(self) -> Tensor:
        """Reward above the baseline, (B, K) float."""
        return self.rewards - self.baseline


@torch.no_grad()
def attempt(
    captioner: Captioner,
    memory: Memory,
    reward: Reward,
    *,
    baseline: Baseline = "leave_one_out",
    samples: int = 5,
    max_length: int = 20,
    generator: torch.Generator | None = None,
) -> Attempts:
    """Draws captions and rewards them; the captioner must be in eval mode.

    samples: K, for `leave_one_out` 2 or more; beams for `beam_mean`. max_length: tokens, <eos>
    included. generator: of the memory's device; `beam_mean` draws nothing.
    """
    if baseline == "leave_one_out" and samples < 2:
        raise ModelError(f"too few samples to leave one out: {samples}; choose 2 or more")
    if baseline == "beam_mean":
        captions = _beams(captioner, memory, samples, max_length)
        return _rewarded_beams(captions, reward(captions), pad=captioner.special.pad)
    captions = sample_captions(
        captioner, memory, count=samples, max_length=max_length, generator=generator
    )
    rewards = reward(captions)
    if baseline == "greedy":
        greedy = sample_captions(captioner, memory, max_length=max_length, temperature=0)
        return Attempts(captions, rewards, reward(greedy).expand_as(rewards))
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / (samples - 1)
    return Attempts(captions, rewards, others)


def self_critical_loss(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Eq. 12 summed over tokens, <eos> included and padding not; divide it by their number.

    log_probs: (B, K, L) float, of each token, 0 on padding; advantages: (B, K), constants.
    """
    return -(log_probs.sum(dim=-1) * advantages.to(log_probs.dtype).detach()).sum()


def _beams(captioner: Captioner, memory: Memory, count: int, max_length: int) -> Tensor:
    """(B, K, L) int64, padded."""
    found = beam_search(captioner, memory, beam_size=count, max_length=max_length)
    longest = max(len(hypothesis.tokens) for beams in found for hypothesis in beams)
    captions = torch.full((len(memory), count, longest), captioner.special.pad, dtype=torch.int64)
    for image, beams in enumerate(found):
        for place, hypothesis in enumerate(beams):
            captions[image, place, : len(hypothesis.tokens)] = torch.tensor(hypothesis.tokens)
    return captions.to(memory.states.device)


def _rewarded_beams(captions: Tensor, rewards: Tensor, *, pad: int) -> Attempts:
    exists = (captions != pad).any(dim=-1)
    mean = (rewards * exists).sum(dim=1, keepdim=True) / exists.sum(dim=1, keepdim=True)
    return Attempts(captions, rewards, mean.expand_as(rewards))
