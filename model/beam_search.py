"""Beam search over any captioner, batched over pictures, with the captioner's own cache.

Plain beam as in M2 (github.com/aimagelab/meshed-memory-transformer): the sum of log-probabilities
decides, and a finished caption keeps its place in the beam until a better one takes it. Beam 1 is
greedy decoding. Ties are broken by the earlier beam, then by the smaller token id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from a2.model.captioner import Captioner, Memory


@dataclass(frozen=True)
class Hypothesis:
    """One caption.

    tokens: without <bos>, <eos> included where the caption ended before the longest length.
    log_prob: the sum over tokens, in nats; score: log_prob / length ** length_penalty.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float


@dataclass(frozen=True)
class _Beams:
    """tokens: (B, K, t) int64; log_probs: (B, K); lengths: (B, K) int64; finished: (B, K) bool.

    A place in the beam that nothing has filled yet has the log-probability -inf.
    """

    tokens: Tensor
    log_probs: Tensor
    lengths: Tensor
    finished: Tensor


@torch.no_grad()
def beam_search(
    captioner: Captioner,
    memory: Memory,
    *,
    beam_size: int = 5,
    max_length: int = 20,
    length_penalty: float = 0.0,
    forbidden: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The best captions of each picture, best first; the captioner must be in eval mode.

    max_length: tokens, <eos> included. length_penalty: 0 ranks by the sum of log-probabilities,
    1 by their mean. forbidden: token ids never said; by default <pad>, <bos> and <unk>.
    Returns B lists of at most K hypotheses (fewer only where fewer captions exist).
    """
    _check_sizes(beam_size, max_length)
    special = captioner.special
    if forbidden is None:
        forbidden = (special.pad, special.bos, special.unk)
    beams = _first_beams(memory, beam_size)
    state = captioner.start(memory, beam_size)
    last = torch.full_like(beams.lengths, special.bos)
    for _ in range(max_length):
        output = captioner.step(last.flatten(), state)
        beams, origin = _extend(
            beams,
            output.log_probs.reshape(len(memory), beam_size, -1),
            length_penalty=length_penalty,
            forbidden=forbidden,
            pad=special.pad,
            eos=special.eos,
        )
        if beams.finished.all():
            break
        state = captioner.reorder(output.state, _rows(origin))
        last = beams.tokens[..., -1]
    return _hypotheses(beams, length_penalty)


def _check_sizes(beam_size: int, max_length: int) -> None:
    if beam_size < 1:
        raise ValueError(f"beam size is too small: {beam_size}; choose 1 (greedy) or more")
    if max_length < 1:
        raise ValueError(f"longest caption is too short: {max_length}; choose 1 token or more")


def _first_beams(memory: Memory, beam_size: int) -> _Beams:
    shape, device = (len(memory), beam_size), memory.states.device
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    log_probs = torch.full(shape, -torch.inf, dtype=dtype, device=device)
    log_probs[:, 0] = 0
    return _Beams(
        tokens=torch.empty((*shape, 0), dtype=torch.int64, device=device),
        log_probs=log_probs,
        lengths=torch.zeros(shape, dtype=torch.int64, device=device),
        finished=torch.zeros(shape, dtype=torch.bool, device=device),
    )


def _extend(
    beams: _Beams,
    log_probs: Tensor,
    *,
    length_penalty: float,
    forbidden: Sequence[int],
    pad: int,
    eos: int,
) -> tuple[_Beams, Tensor]:
    """The best K continuations of all beams, and the beam (B, K) that each came from.

    log_probs: (B, K, V) of the next token.
    """
    vocabulary_size = log_probs.shape[-1]
    log_probs = log_probs.clone()
    log_probs[..., list(forbidden)] = -torch.inf
    log_probs.masked_fill_(beams.finished[..., None], -torch.inf)
    log_probs[..., pad].masked_fill_(beams.finished, 0)  # a finished caption stays as it is
    log_probs += beams.log_probs[..., None]
    lengths = beams.lengths + ~beams.finished
    ranked = _scores(log_probs, lengths[..., None], length_penalty)
    chosen = _best(ranked.flatten(1), beams.lengths.shape[1])
    origin, token = chosen // vocabulary_size, chosen % vocabulary_size
    was_finished = beams.finished.gather(1, origin)
    history = beams.tokens.gather(1, origin[..., None].expand(-1, -1, beams.tokens.shape[2]))
    extended = _Beams(
        tokens=torch.cat((history, token[..., None]), dim=2),
        log_probs=log_probs.flatten(1).gather(1, chosen),
        lengths=lengths.gather(1, origin),
        finished=was_finished | (token == eos),
    )
    return extended, origin


def _scores(log_probs: Tensor, lengths: Tensor, length_penalty: float) -> Tensor:
    """What captions are ranked by."""
    if not length_penalty:
        return log_probs
    return log_probs / lengths.to(log_probs.dtype) ** length_penalty


def _best(scores: Tensor, count: int) -> Tensor:
    """Places of the `count` best scores of each row, best first, the earlier place first in a tie.

    scores: (B, M). topk alone says nothing about ties, and a stable sort of everything is slow, so
    the sort is left to the rows where a score beyond the last place equals the last one.
    """
    values, places = scores.topk(count, dim=1)
    if ((scores >= values[:, -1:]).sum(dim=1) > count).any():
        return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    places = places.sort(dim=1).values
    order = scores.gather(1, places).sort(dim=1, descending=True, stable=True).indices
    return places.gather(1, order)


def _rows(origin: Tensor) -> Tensor:
    """Beam numbers within pictures (B, K) as row numbers of the batch (B * K)."""
    pictures, beam_size = origin.shape
    first = torch.arange(pictures, device=origin.device)[:, None] * beam_size
    return (first + origin).flatten()


def _hypotheses(beams: _Beams, length_penalty: float) -> list[list[Hypothesis]]:
    scores = _scores(beams.log_probs, beams.lengths, length_penalty)
    columns = (beams.tokens, beams.lengths, beams.log_probs, scores)
    return [
        [
            Hypothesis(tuple(tokens[:length]), log_prob, score)
            for tokens, length, log_prob, score in zip(*picture, strict=True)
            if log_prob > -torch.inf
        ]
        for picture in zip(*(column.tolist() for column in columns), strict=True)
    ]
