"""Captions sampled from a captioner token by token, batched over images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from a2cap.model.captioner import CaptionModel, Memory, decoder_input
from a2cap.model.decoding.beam_search import Hypothesis, have_all_ended
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.errors import ModelError


@torch.no_grad()
def sample_captions(
    captioner: CaptionModel,
    memory: Memory,
    *,
    count: int = 1,
    max_length: int = 20,
    min_length: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    forbidden: Sequence[int] | None = None,
    greedy: bool = False,
) -> Tensor:
    """Sample K = count captions of each image; the captioner must be in eval mode.

    max_length: tokens, <eos> included.
    min_length: without it.
    temperature: divisor of the log-probabilities; 0 is greedy decoding, with ties to the smaller
        token id.
    top_k, top_p: limits of the tokens to choose from, see `DecodingConfig`.
    generator: on the memory's device.
    forbidden: token ids that are never sampled; by default <pad> and <bos>.
    greedy: decode one more caption of each image, greedily, as the last.
    Returns (B, K, L) int64: tokens, <eos>, <pad>; without <eos> at the maximum length. Raises
    ModelError for sizes or a temperature out of range.
    """
    _require_sizes(count, max_length, temperature)
    special = captioner.special
    if forbidden is None:
        # <unk> is allowed: self-critical training cannot unlearn a token that is never sampled
        forbidden = (special.pad, special.bos)
    shape = (len(memory), count + greedy)
    state = captioner.start(memory, rows_per_image=count + greedy)
    last = torch.full(shape, special.bos, dtype=torch.int64, device=memory.states.device)
    ended = torch.zeros_like(last, dtype=torch.bool)
    excluded = torch.tensor(forbidden, dtype=torch.int64).to(last.device, non_blocking=True)
    sampled: list[Tensor] = []
    while len(sampled) < max_length and not have_all_ended(ended, len(sampled)):
        output = captioner.step(last.flatten(), state)
        state = output.state
        log_probs = output.log_probs.index_fill(-1, excluded, -torch.inf)
        if len(sampled) < min_length:
            log_probs[:, special.eos] = -torch.inf
        by_image = log_probs.reshape(*shape, -1)  # (N, V) -> (B, K, V)
        tokens = sample_tokens(
            by_image[:, :count].flatten(0, 1),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
        ).reshape(-1, count)
        if greedy:
            tokens = torch.cat((tokens, by_image[:, count:].argmax(dim=-1)), dim=1)
        last = tokens.masked_fill(ended, special.pad)
        ended = ended | (last == special.eos)
        sampled.append(last)
    return torch.stack(sampled, dim=2)  # L of (B, K) -> (B, K, L)


def _require_sizes(count: int, max_length: int, temperature: float) -> None:
    if count < 1:
        raise ModelError(f"too few captions to sample: {count}; choose 1 or more")
    if max_length < 1:
        raise ModelError(
            f"maximum caption length is too small: {max_length}; choose 1 token or more"
        )
    if not temperature >= 0:  # not < 0, which is False for NaN
        raise ModelError(f"temperature is negative: {temperature}; choose 0 (greedy) or more")


@torch.no_grad()
def sampled_hypotheses(
    captioner: CaptionModel,
    memory: Memory,
    config: DecodingConfig,
    *,
    generator: torch.Generator | None = None,
) -> list[list[Hypothesis]]:
    """Sample `config.beam_size` captions of each image; return them as beam search does.

    They have the log-probability that the captioner gives them, without temperature or limits.
    """
    special = captioner.special
    tokens = sample_captions(
        captioner,
        memory,
        count=config.beam_size,
        max_length=config.max_length,
        min_length=config.min_length,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        generator=generator,
        forbidden=(special.pad, special.bos, special.unk),
    )
    is_token = tokens != special.pad
    log_probs = captioner.forward(memory, decoder_input(tokens, bos=special.bos))
    # (B, K, L, V) -> (B, K, L) -> (B, K)
    sums = (log_probs.gather(-1, tokens[..., None]).squeeze(-1) * is_token).sum(dim=-1)
    images: list[list[Hypothesis]] = []
    for rows, totals in zip(tokens.tolist(), sums.tolist(), strict=True):
        captions = [tuple(token for token in row if token != special.pad) for row in rows]
        hypotheses = [
            Hypothesis(caption, total, total / len(caption) ** config.length_penalty)
            for caption, total in zip(captions, totals, strict=True)
        ]
        images.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))
    return images


def sample_tokens(
    log_probs: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample one token for each row of (N, V) log-probabilities; the other values are limits."""
    if temperature == 0:
        return log_probs.argmax(dim=-1)
    probabilities = (log_probs / temperature).softmax(dim=-1)
    if 0 < top_k < probabilities.shape[-1]:
        values, indices = probabilities.topk(top_k, dim=-1)
        probabilities = torch.zeros_like(probabilities).scatter(-1, indices, values)
    if top_p < 1:
        values, indices = probabilities.sort(dim=-1, descending=True, stable=True)
        before = values.cumsum(dim=-1) - values
        is_outside = before >= top_p * values.sum(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(
            torch.zeros_like(is_outside).scatter(-1, indices, is_outside), 0
        )
    # Inverting the cumulative distribution takes one random number per row for any vocabulary.
    # In float64 a draw just below 1 cannot be rounded past the last token.
    if probabilities.is_cuda:
        # A GPU adds in any order, which changes no sum of integers.
        cumulative = (probabilities.double() * 2.0**40).long().cumsum(dim=-1).double()
    else:
        cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    draws = torch.rand(
        (len(log_probs), 1), dtype=torch.float64, device=log_probs.device, generator=generator
    )
    return torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True).squeeze(-1)
