"""Captions drawn from a captioner, token by token, batched over images, with its own cache.

Tokens are drawn by inverting the cumulative distribution: one random number per row and step,
whatever the size of the vocabulary. Temperature 0 is greedy decoding, ties going to the smaller
token id.
"""

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
    """K = count captions of each image; the captioner must be in eval mode.

    max_length: tokens, <eos> included. temperature: log-probabilities are divided by it, 0 takes
    the most probable token. generator: of the memory's device; equal states draw equal captions.
    forbidden: token ids never drawn; by default <pad> and <bos>, which no caption holds, but not
    <unk>: what is never drawn is never unlearnt.
    Returns (B, K, L) int64: words, <eos>, then <pad>; without <eos> where L = max_length came
    first.
    """
    _check(count, max_length, temperature)
    special = captioner.special
    if forbidden is None:
        forbidden = (special.pad, special.bos)
    rows = len(memory) * count
    state = captioner.start(memory, rows_per_image=count)
    last = torch.full((rows,), special.bos, dtype=torch.int64, device=memory.states.device)
    ended = torch.zeros_like(last, dtype=torch.bool)
    drawn: list[Tensor] = []
    while len(drawn) < max_length and not (drawn and ended.all()):
        output = captioner.step(last, state)
        state = output.state
        log_probs = output.log_probs.index_fill(
            -1, torch.tensor(forbidden, dtype=torch.int64, device=last.device), -torch.inf
        )
        last = _draw(log_probs, temperature, generator).masked_fill(ended, special.pad)
        ended = ended | (last == special.eos)
        drawn.append(last)
    return torch.stack(drawn, dim=1).reshape(len(memory), count, -1)


def _draw(log_probs: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One token for each row of (N, V)."""
    if temperature == 0:
        return log_probs.argmax(dim=-1)
    # in float64, so that a draw just below 1 cannot be rounded past the last token
    cumulative = (log_probs / temperature).softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    draws = torch.rand(
        (len(log_probs), 1), dtype=torch.float64, device=log_probs.device, generator=generator
    )
    return torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True).squeeze(-1)


def _check(count: int, max_length: int, temperature: float) -> None:
    if count < 1:
        raise ModelError(f"too few captions to draw: {count}; choose 1 or more")
    if max_length < 1:
        raise ModelError(f"longest caption is too short: {max_length}; choose 1 token or more")
    if not temperature >= 0:
        raise ModelError(f"temperature is negative: {temperature}; choose 0 (greedy) or more")
