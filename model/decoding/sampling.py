"""Captions sampled from a captioner token by token, batched over images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from a2cap.model.captioner import Captioner, Memory
from a2cap.model.errors import ModelError


@torch.no_grad()
def sample_captions(
    captioner: Captioner,
    memory: Memory,
    *,
    count: int = 1,
    max_length: int = 20,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    forbidden: Sequence[int] | None = None,
) -> Tensor:
    """Sample K = count captions of each image; the captioner must be in eval mode.

    max_length: tokens, <eos> included. temperature: divisor of the log-probabilities; 0 is greedy
    decoding, with ties to the smaller token id. generator: on the memory's device. forbidden: token
    ids that are never sampled; by default <pad> and <bos>.
    Returns (B, K, L) int64: tokens, <eos>, <pad>; without <eos> at the maximum length. Raises
    ModelError for sizes or a temperature out of range.
    """
    if count < 1:
        raise ModelError(f"too few captions to sample: {count}; choose 1 or more")
    if max_length < 1:
        raise ModelError(
            f"maximum caption length is too small: {max_length}; choose 1 token or more"
        )
    if not temperature >= 0:  # not < 0, which is False for NaN
        raise ModelError(f"temperature is negative: {temperature}; choose 0 (greedy) or more")
    special = captioner.special
    if forbidden is None:
        # <unk> is allowed: self-critical training cannot unlearn a token that is never sampled
        forbidden = (special.pad, special.bos)
    rows = len(memory) * count
    state = captioner.start(memory, rows_per_image=count)
    last = torch.full((rows,), special.bos, dtype=torch.int64, device=memory.states.device)
    ended = torch.zeros_like(last, dtype=torch.bool)
    sampled: list[Tensor] = []
    while len(sampled) < max_length and not (sampled and ended.all()):
        output = captioner.step(last, state)
        state = output.state
        log_probs = output.log_probs.index_fill(
            -1, torch.tensor(forbidden, dtype=torch.int64, device=last.device), -torch.inf
        )
        last = _sample(log_probs, temperature, generator).masked_fill(ended, special.pad)
        ended = ended | (last == special.eos)
        sampled.append(last)
    return torch.stack(sampled, dim=1).reshape(len(memory), count, -1)


def _sample(log_probs: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Sample one token for each row of (N, V)."""
    if temperature == 0:
        return log_probs.argmax(dim=-1)
    # Inverting the cumulative distribution takes one random number per row for any vocabulary.
    # In float64 a draw just below 1 cannot be rounded past the last token.
    cumulative = (log_probs / temperature).softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    draws = torch.rand(
        (len(log_probs), 1), dtype=torch.float64, device=log_probs.device, generator=generator
    )
    return torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True).squeeze(-1)
