"""Beam search over any captioner, batched over images.

Like M2 (github.com/aimagelab/meshed-memory-transformer), it ranks captions by the sum of their
log-probabilities, and a finished caption stays in the beam until a better one replaces it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from a2cap.model.captioner import CaptionModel, Memory
from a2cap.model.decoding.decoding_config import DecodingConfig

_STEPS_BETWEEN_READS = 4
"""Steps after which a GPU is asked if all captions have ended: reading a value waits for it."""
_OPEN = 0.75
"""Share of images with open beams up to which a CPU leaves out the others: these are copied."""


@dataclass(frozen=True)
class Hypothesis:
    """One caption.

    tokens: without <bos>, with <eos> unless the caption reached the maximum length.
    log_prob: sum over the tokens, in nats; score: log_prob / length ** length_penalty.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float


@dataclass(frozen=True)
class _Rules:
    """Settings and token ids that decide how beams are extended."""

    config: DecodingConfig
    forbidden: Tensor  # (F,) int64
    pad: int
    eos: int


class _Beams(NamedTuple):
    """K beams of each of B images; empty ones have log-probability -inf.

    tokens: (B, K, t) int64.
    log_probs: (B, K) float.
    lengths: (B, K) int64.
    finished: (B, K) bool.
    """

    tokens: Tensor
    log_probs: Tensor
    lengths: Tensor
    finished: Tensor

    def split(self, size: int) -> "list[_Beams]":
        """Split into groups of `size` beams."""
        parts = (torch.split(column, size, dim=1) for column in self)
        return [_Beams(*part) for part in zip(*parts, strict=True)]

    def select(self, images: Tensor) -> "_Beams":
        """Keep those of some images; images: (B,) bool."""
        return _Beams(*(column[images] for column in self))


@torch.no_grad()
def beam_search(
    captioner: CaptionModel,
    memory: Memory,
    config: DecodingConfig,
    *,
    forbidden: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Return the top-scoring captions of each image, best first; needs the captioner in eval mode.

    forbidden: token ids that are never generated; by default <pad>, <bos> and <unk>.
    Returns B lists of at most K hypotheses, fewer only where fewer captions exist. Groups of
    diverse beam search may end with equal captions.
    """
    special, beam_size = captioner.special, config.beam_size
    if forbidden is None:
        forbidden = (special.pad, special.bos, special.unk)
    device = memory.states.device
    excluded = torch.tensor(list(forbidden), dtype=torch.int64).to(device, non_blocking=True)
    rules = _Rules(config, excluded, special.pad, special.eos)
    beams = _first_beams(memory, config)
    # all beams of an image begin with the same row
    state = captioner.start(memory, 1)
    last = torch.full_like(beams.lengths[:, :1], special.bos)
    images, hypotheses = list(range(len(memory))), dict[int, list[Hypothesis]]()
    for number in range(1, config.max_length + 1):
        output = captioner.step(last.flatten(), state)
        log_probs = output.log_probs.reshape(*last.shape, -1).expand(-1, beam_size, -1)
        beams, origin = _extend_groups(beams, log_probs, rules)
        if have_all_ended(beams.finished, number):
            break
        # beam numbers within each image -> rows of the batch
        first = torch.arange(len(last), device=device)[:, None] * last.shape[1]
        source = origin if number > 1 else torch.zeros_like(origin)
        state = output.state.reorder((first + source).flatten())
        is_open = ~beams.finished.all(dim=1)
        # to know of them would wait for a GPU
        if device.type == "cpu" and is_open.sum() <= _OPEN * len(images):
            ended = compress(images, (~is_open).tolist())
            hypotheses |= _hypotheses(ended, beams.select(~is_open), config.length_penalty)
            images, beams = list(compress(images, is_open.tolist())), beams.select(is_open)
            state = state.select(is_open.nonzero().flatten())
        last = beams.tokens[..., -1]
    hypotheses |= _hypotheses(images, beams, config.length_penalty)
    return [hypotheses[image] for image in range(len(memory))]


def have_all_ended(ended: Tensor, steps: int) -> bool:
    """Return True if all captions have ended after so many steps; read a GPU every 4 steps only."""
    is_read = steps > 0 and (ended.device.type == "cpu" or steps % _STEPS_BETWEEN_READS == 0)
    return is_read and bool(ended.all())


def _first_beams(memory: Memory, config: DecodingConfig) -> _Beams:
    shape, device = (len(memory), config.beam_size), memory.states.device
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    # All beams are empty at first: more than one live beam per group would give duplicates.
    log_probs = torch.full(shape, -torch.inf, dtype=dtype, device=device)
    log_probs[:, :: config.beam_size // config.groups] = 0
    return _Beams(
        tokens=torch.empty((*shape, 0), dtype=torch.int64, device=device),
        log_probs=log_probs,
        lengths=torch.zeros(shape, dtype=torch.int64, device=device),
        finished=torch.zeros(shape, dtype=torch.bool, device=device),
    )


def _extend_groups(beams: _Beams, log_probs: Tensor, rules: _Rules) -> tuple[_Beams, Tensor]:
    """Extend all beams, group by group.

    log_probs: (B, K, V) of the next token. Returns the new beams and their origins (B, K) int64.
    """
    groups = rules.config.groups
    if groups == 1:
        return _extend(beams, log_probs, rules)
    size = log_probs.shape[1] // groups
    counts = torch.zeros_like(log_probs[:, 0])  # (B, V): beams of earlier groups, by token
    extended: list[_Beams] = []
    origins: list[Tensor] = []
    for number, (group, group_log_probs) in enumerate(
        zip(beams.split(size), torch.split(log_probs, size, dim=1), strict=True)
    ):
        # As printed in the paper, the penalty ranks the beams of this step only. Some
        # implementations add it to the scores of later steps too.
        penalty = rules.config.diversity * counts[:, None]
        extension, origin = _extend(group, group_log_probs, rules, penalty=penalty)
        extended.append(extension)
        origins.append(origin + number * size)
        token = extension.tokens[..., -1]
        counted = (token != rules.pad) & (extension.log_probs > -torch.inf)
        counts.scatter_add_(1, token, counted.to(counts.dtype))
    joined = _Beams(*(torch.cat(columns, dim=1) for columns in zip(*extended, strict=True)))
    return joined, torch.cat(origins, dim=1)


def _extend(
    beams: _Beams, log_probs: Tensor, rules: _Rules, *, penalty: Tensor | None = None
) -> tuple[_Beams, Tensor]:
    """Select the top-K continuations of the beams of one group.

    log_probs: (B, K, V) of the next token.
    penalty: (B, 1, V), subtracted from the ranking scores.
    Returns the new beams and their origins (B, K) int64.
    """
    vocabulary_size = log_probs.shape[-1]
    totals = _continuations(beams, log_probs, rules)
    lengths = beams.lengths + ~beams.finished
    ranked = _scores(totals, lengths[..., None], rules.config.length_penalty)
    if penalty is not None:
        ranked = ranked - penalty
    best = _top_k(ranked.flatten(1), beams.lengths.shape[1])  # (B, K * V) -> (B, K)
    origin, token = best // vocabulary_size, best % vocabulary_size
    # (B, K, t), the tokens of each origin
    history = beams.tokens.gather(1, origin[..., None].expand(-1, -1, beams.tokens.shape[2]))
    extended = _Beams(
        tokens=torch.cat((history, token[..., None]), dim=2),
        log_probs=totals.flatten(1).gather(1, best),
        lengths=lengths.gather(1, origin),
        finished=beams.finished.gather(1, origin) | (token == rules.eos),
    )
    return extended, origin


def _continuations(beams: _Beams, log_probs: Tensor, rules: _Rules) -> Tensor:
    """Return the log-probability (B, K, V) of each beam with each next token, -inf if excluded."""
    open_beams = beams.log_probs.masked_fill(beams.finished, -torch.inf)
    totals = log_probs + open_beams[..., None]
    totals.index_fill_(-1, rules.forbidden, -torch.inf)
    if beams.tokens.shape[2] < rules.config.min_length:
        totals[..., rules.eos] = -torch.inf
    if 0 < rules.config.no_repeat_ngram <= beams.tokens.shape[2]:
        _block_repeats(totals, beams.tokens, rules.config.no_repeat_ngram)
    # a finished caption continues with padding, at no cost
    totals[..., rules.pad] = torch.where(beams.finished, beams.log_probs, totals[..., rules.pad])
    return totals


def _block_repeats(totals: Tensor, tokens: Tensor, length: int) -> None:
    """Set `totals` (B, K, V) to -inf for tokens that would repeat an n-gram of `length` tokens."""
    ngrams = tokens.unfold(2, length, 1)  # (B, K, t) -> (B, K, t - length + 1, length)
    prefix = tokens[..., tokens.shape[2] - length + 1 :]  # -> (B, K, length - 1)
    repeats = (ngrams[..., :-1] == prefix[:, :, None]).all(dim=-1)
    limit = torch.where(repeats, -torch.inf, torch.inf).to(totals.dtype)
    totals.scatter_reduce_(2, ngrams[..., -1], limit, "amin")


def _scores(log_probs: Tensor, lengths: Tensor, length_penalty: float) -> Tensor:
    """Return the scores that rank captions."""
    if not length_penalty:
        return log_probs
    return log_probs / lengths.to(log_probs.dtype) ** length_penalty


def _top_k(scores: Tensor, count: int) -> Tensor:
    """Return indices (B, count) of the top scores of each row of (B, M), best first.

    Ties go to the smaller index: the earlier beam, then the smaller token id.
    """
    # to know of ties would wait for a GPU
    if scores.is_cuda and scores.dtype == torch.float32:
        return _top_k_by_keys(scores, count)
    if scores.device.type != "cpu":
        return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    # topk leaves the order of ties open and a stable sort of everything is slow: if the score after
    # the last one taken equals it, as it often does in bfloat16, sort the scores that are not less
    values, indices = scores.topk(min(count + 1, scores.shape[1]), dim=1)
    is_tied = (values[:, count:] == values[:, count - 1 : count]).any(dim=1)
    indices = indices[:, :count].sort(dim=1).values
    for row in is_tied.nonzero().flatten().tolist():
        tied = (scores[row] >= values[row, count - 1]).nonzero().flatten()
        first = scores[row, tied].sort(descending=True, stable=True).indices[:count]
        indices[row] = tied[first].sort().values
    order = scores.gather(1, indices).sort(dim=1, descending=True, stable=True).indices
    return indices.gather(1, order)


def _top_k_by_keys(scores: Tensor, count: int) -> Tensor:
    """Return what `_top_k` does for float32, without sorting and without waiting for a GPU."""
    # Bits of floats are in the order of integers, downwards below 0; -0.0 is made 0.0. Then no two
    # keys are equal: the high half is the score, the low half counts the indices from the end.
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    last = scores.shape[1] - 1
    from_end = torch.arange(last, -1, -1, device=scores.device)
    keys = torch.add(from_end, ordered, alpha=2**32)  # int64
    return last - (keys.topk(count, dim=1).values & 0xFFFFFFFF)


def _hypotheses(
    images: Iterable[int], beams: _Beams, length_penalty: float
) -> dict[int, list[Hypothesis]]:
    """Return the captions of each image, best first, by its number."""
    scores = _scores(beams.log_probs, beams.lengths, length_penalty)
    columns = (beams.tokens, beams.lengths, beams.log_probs, scores)
    captions = [
        [
            Hypothesis(tuple(tokens[:length]), log_prob, score)
            for tokens, length, log_prob, score in zip(*image, strict=True)
            if log_prob > -torch.inf
        ]
        for image in zip(*(column.tolist() for column in columns), strict=True)
    ]
    ranked = (sorted(image, key=lambda hypothesis: -hypothesis.score) for image in captions)
    return dict(zip(images, ranked, strict=True))
