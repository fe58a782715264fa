"""Self-critical training (Rennie et al. 2017, arXiv:1612.00563; Eq. 12 of the A2 paper).

Captions are sampled without a graph, then scored by teacher forcing in one pass that has the
gradient. Without dropout both compute the same probabilities, so that the gradient is that of
back-propagation through every step of sampling. One difference is left: captions are drawn from the
softmax without <pad> and <bos>, and scored by the softmax with both, to which a trained captioner
gives next to nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from a2cap.model.captioner import CaptionModel, Memory
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.decoding.sampling import sample_captions
from a2cap.model.errors import ModelError

RolloutBaseline = Literal["leave_one_out", "greedy", "beam_mean"]
"""`greedy`: reward of the greedy caption (Rennie); `leave_one_out`: mean of the image's other
samples (Luo 2020, arXiv:2003.09971); `beam_mean`: beams instead of samples, and their mean
(Cornia et al. 2020, arXiv:1912.08226)."""

Reward = Callable[[Tensor], Tensor]
"""Captions (B, K, L) int64 -> rewards (B, K) float, for any K."""


@dataclass(frozen=True)
class Rollouts:
    """K captions of each of B images and their rewards.

    captions: (B, K, L) int64, a row of padding where a beam has no caption; rewards, baseline:
    (B, K) float.
    """

    captions: Tensor
    rewards: Tensor
    baseline: Tensor

    @property
    def advantages(self) -> Tensor:
        """Rewards above the baseline, (B, K) float."""
        return self.rewards - self.baseline


@torch.no_grad()
def generate_rollouts(
    captioner: CaptionModel,
    memory: Memory,
    reward: Reward,
    *,
    baseline: RolloutBaseline = "leave_one_out",
    samples: int = 5,
    max_length: int = 20,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """Generate captions and reward them; the captioner must be in eval mode.

    samples: K, at least 2 for `leave_one_out`; beams for `beam_mean`.
    max_length: tokens, <eos> included.
    generator: on the memory's device, unused by `beam_mean`.
    Raises ModelError for too few samples.
    """
    if baseline == "leave_one_out" and samples < 2:
        raise ModelError(f"too few samples to leave one out: {samples}; choose 2 or more")
    if baseline == "beam_mean":
        config = DecodingConfig(beam_size=samples, max_length=max_length)
        captions = _beams(captioner, memory, config)
        rewards, exists = reward(captions), (captions != captioner.special.pad).any(dim=-1)
        mean = (rewards * exists).sum(dim=1, keepdim=True) / exists.sum(dim=1, keepdim=True)
        return Rollouts(captions, rewards, mean.expand_as(rewards))
    captions = sample_captions(
        captioner,
        memory,
        count=samples,
        max_length=max_length,
        generator=generator,
        greedy=baseline == "greedy",
    )
    rewards = reward(captions)
    if baseline == "greedy":
        greedy = rewards[:, samples:].expand(-1, samples)
        return Rollouts(captions[:, :samples], rewards[:, :samples], greedy)
    # the sample's own reward would make the baseline depend on it
    mean_of_others = (rewards.sum(dim=1, keepdim=True) - rewards) / (samples - 1)
    return Rollouts(captions, rewards, mean_of_others)


def self_critical_loss(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Return Eq. 12 summed over tokens, <eos> included; divide it by their number.

    log_probs: (B, K, L) float, of each token, 0 on padding; advantages: (B, K), constants.
    """
    return -(log_probs.sum(dim=-1) * advantages.to(log_probs.dtype).detach()).sum()


def _beams(captioner: CaptionModel, memory: Memory, config: DecodingConfig) -> Tensor:
    """Return the beams as padded captions, (B, K, L) int64."""
    images = beam_search(captioner, memory, config)
    longest = max(len(hypothesis.tokens) for beams in images for hypothesis in beams)
    shape = (len(memory), config.beam_size, longest)
    captions = torch.full(shape, captioner.special.pad, dtype=torch.int64)
    for image, beams in enumerate(images):
        for rank, hypothesis in enumerate(beams):
            captions[image, rank, : len(hypothesis.tokens)] = torch.tensor(hypothesis.tokens)
    return captions.to(memory.states.device)
