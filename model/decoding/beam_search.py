"""Beam search over any captioner, batched over images, with the captioner's own cache.

Plain beam as in M2 (github.com/aimagelab/meshed-memory-transformer): the sum of log-probabilities
decides, and a finished caption keeps its place in the beam until a better one takes it. Beam 1 is
greedy decoding. Ties are broken by the earlier beam, then by the smaller token id.

Off by default: no n-gram twice (Paulus et al. 2018, section 2.5, arXiv:1705.04304), and diverse
groups of beams (Vijayakumar et al. 2016, section 3, arXiv:1610.02424; Hamming diversity). As
printed there, the diversity term chooses the beams of its own step and enters no later score; some
implementations add it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from a2cap.model.captioner import Captioner, Memory
from a2cap.model.errors import ModelError

_BLOCK = 128
"""Scores that are looked at together when the best ones are sought on a CPU."""


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
class _Rules:
    """How beams may be extended; see `beam_search`."""

    length_penalty: float
    no_repeat_ngram: int
    groups: int
    diversity: float
    forbidden: tuple[int, ...]
    pad: int
    eos: int


@dataclass(frozen=True)
class _Beams:
    """tokens: (B, K, t) int64; log_probs: (B, K); lengths: (B, K) int64; finished: (B, K) bool.

    A place in the beam that nothing has filled yet has the log-probability -inf.
    """

    tokens: Tensor
    log_probs: Tensor
    lengths: Tensor
    finished: Tensor

    def split(self, size: int) -> "list[_Beams]":
        """Groups of `size` beams each."""
        columns = (self.tokens, self.log_probs, self.lengths, self.finished)
        parts = (torch.split(column, size, dim=1) for column in columns)
        return [_Beams(*part) for part in zip(*parts, strict=True)]


def _joined(groups: Sequence[_Beams]) -> _Beams:
    return _Beams(
        torch.cat([group.tokens for group in groups], dim=1),
        torch.cat([group.log_probs for group in groups], dim=1),
        torch.cat([group.lengths for group in groups], dim=1),
        torch.cat([group.finished for group in groups], dim=1),
    )


@torch.no_grad()
def beam_search(
    captioner: Captioner,
    memory: Memory,
    *,
    beam_size: int = 5,
    max_length: int = 20,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    groups: int = 1,
    diversity: float = 0.5,
    forbidden: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The best captions of each image, best first; the captioner must be in eval mode.

    max_length: tokens, <eos> included. length_penalty: 0 ranks by the sum of log-probabilities,
    1 by their mean. no_repeat_ngram: words in a row that no caption says twice (3 blocks trigrams),
    0 is off. groups: of equally many beams, of which each is kept from saying the words of those
    before it at the same place by `diversity` nats per beam that says them; groups may end with the
    same caption. forbidden: token ids never said; by default <pad>, <bos> and <unk>.
    Returns B lists of at most K hypotheses (fewer only where fewer captions exist).
    """
    _check_sizes(beam_size, max_length, groups)
    special = captioner.special
    if forbidden is None:
        forbidden = (special.pad, special.bos, special.unk)
    rules = _Rules(
        length_penalty,
        no_repeat_ngram,
        groups,
        diversity,
        tuple(forbidden),
        special.pad,
        special.eos,
    )
    beams = _first_beams(memory, beam_size, groups)
    state = captioner.start(memory, beam_size)
    last = torch.full_like(beams.lengths, special.bos)
    for _ in range(max_length):
        output = captioner.step(last.flatten(), state)
        log_probs = output.log_probs.reshape(len(memory), beam_size, -1)
        beams, origin = _extend_groups(beams, log_probs, rules)
        if beams.finished.all():
            break
        state = captioner.reorder(output.state, _rows(origin))
        last = beams.tokens[..., -1]
    return _hypotheses(beams, length_penalty)


def _check_sizes(beam_size: int, max_length: int, groups: int) -> None:
    if beam_size < 1:
        raise ModelError(f"beam size is too small: {beam_size}; choose 1 (greedy) or more")
    if max_length < 1:
        raise ModelError(f"longest caption is too short: {max_length}; choose 1 token or more")
    if groups < 1 or beam_size % groups:
        raise ModelError(
            f"{beam_size} beams cannot be shared equally by groups: {groups}; choose a number of "
            "groups that divides the beam size"
        )


def _first_beams(memory: Memory, beam_size: int, groups: int) -> _Beams:
    shape, device = (len(memory), beam_size), memory.states.device
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    log_probs = torch.full(shape, -torch.inf, dtype=dtype, device=device)
    log_probs[:, :: beam_size // groups] = 0
    return _Beams(
        tokens=torch.empty((*shape, 0), dtype=torch.int64, device=device),
        log_probs=log_probs,
        lengths=torch.zeros(shape, dtype=torch.int64, device=device),
        finished=torch.zeros(shape, dtype=torch.bool, device=device),
    )


def _extend_groups(beams: _Beams, log_probs: Tensor, rules: _Rules) -> tuple[_Beams, Tensor]:
    """The continuations of all beams, group by group, and the beam (B, K) that each came from.

    log_probs: (B, K, V) of the next token.
    """
    if rules.groups == 1:
        return _extend(beams, log_probs, rules)
    size = log_probs.shape[1] // rules.groups
    said = torch.zeros_like(log_probs[:, 0])  # (B, V): beams of earlier groups, by word
    extended: list[_Beams] = []
    origins: list[Tensor] = []
    for number, (group, likely) in enumerate(
        zip(beams.split(size), torch.split(log_probs, size, dim=1), strict=True)
    ):
        found, origin = _extend(group, likely, rules, penalty=rules.diversity * said[:, None])
        extended.append(found)
        origins.append(origin + number * size)
        token = found.tokens[..., -1]
        counts = (token != rules.pad) & (found.log_probs > -torch.inf)
        said.scatter_add_(1, token, counts.to(said.dtype))
    return _joined(extended), torch.cat(origins, dim=1)


def _extend(
    beams: _Beams, log_probs: Tensor, rules: _Rules, *, penalty: Tensor | None = None
) -> tuple[_Beams, Tensor]:
    """The best K continuations of all beams of a group, and the beam (B, K) each came from.

    log_probs: (B, K, V) of the next token; penalty: (B, 1, V), taken from what ranks them.
    """
    vocabulary_size = log_probs.shape[-1]
    totals = _totals(beams, log_probs, rules)
    lengths = beams.lengths + ~beams.finished
    ranked = _scores(totals, lengths[..., None], rules.length_penalty)
    if penalty is not None:
        ranked = ranked - penalty
    chosen = _best(ranked.flatten(1), beams.lengths.shape[1])
    origin, token = chosen // vocabulary_size, chosen % vocabulary_size
    history = beams.tokens.gather(1, origin[..., None].expand(-1, -1, beams.tokens.shape[2]))
    extended = _Beams(
        tokens=torch.cat((history, token[..., None]), dim=2),
        log_probs=totals.flatten(1).gather(1, chosen),
        lengths=lengths.gather(1, origin),
        finished=beams.finished.gather(1, origin) | (token == rules.eos),
    )
    return extended, origin


def _totals(beams: _Beams, log_probs: Tensor, rules: _Rules) -> Tensor:
    """Log-probability (B, K, V) of each beam with each token after it; -inf where it may not be."""
    open_beams = beams.log_probs.masked_fill(beams.finished, -torch.inf)
    totals = log_probs + open_beams[..., None]
    totals[..., list(rules.forbidden)] = -torch.inf
    if 0 < rules.no_repeat_ngram <= beams.tokens.shape[2]:
        _block_repeats(totals, beams.tokens, rules.no_repeat_ngram)
    # a finished caption stays as it is
    totals[..., rules.pad] = torch.where(beams.finished, beams.log_probs, totals[..., rules.pad])
    return totals


def _block_repeats(totals: Tensor, tokens: Tensor, length: int) -> None:
    """Sets to -inf in `totals` (B, K, V) what would end a run of `length` that is in the tokens."""
    runs = tokens.unfold(2, length, 1)  # (B, K, t) -> (B, K, t - length + 1, length)
    last = tokens[..., tokens.shape[2] - length + 1 :]
    repeats = (runs[..., :-1] == last[:, :, None]).all(dim=-1)
    limit = torch.where(repeats, -torch.inf, torch.inf).to(totals.dtype)
    totals.scatter_reduce_(2, runs[..., -1], limit, "amin")


def _scores(log_probs: Tensor, lengths: Tensor, length_penalty: float) -> Tensor:
    """What captions are ranked by."""
    if not length_penalty:
        return log_probs
    return log_probs / lengths.to(log_probs.dtype) ** length_penalty


def _best(scores: Tensor, count: int) -> Tensor:
    """Places of the `count` best scores of each row, best first, the earlier place first in a tie.

    scores: (B, M). topk alone says nothing about ties, and a stable sort of everything is slow, so
    the sort is left to batches where a score beyond the last place equals the last one.
    """
    values, places = _top(scores, min(count + 1, scores.shape[1]))
    if (values[:, count:] == values[:, count - 1 : count]).any():
        return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    places = places[:, :count].sort(dim=1).values
    order = scores.gather(1, places).sort(dim=1, descending=True, stable=True).indices
    return places.gather(1, order)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What `scores.topk(count, dim=1)` gives, but that it may choose others among equal scores.

    They lie in the `count` blocks with the greatest maxima, or in what is left after whole blocks.
    """
    blocks = scores.shape[1] // _BLOCK
    if scores.device.type != "cpu" or blocks <= count:
        return scores.topk(count, dim=1)
    whole = scores[:, : blocks * _BLOCK].reshape(len(scores), blocks, _BLOCK)
    chosen = whole.amax(dim=2).topk(count, dim=1).indices
    inside = torch.arange(_BLOCK) + chosen[..., None] * _BLOCK
    left = torch.arange(blocks * _BLOCK, scores.shape[1]).expand(len(scores), -1)
    places = torch.cat((inside.flatten(1), left), dim=1)
    values, order = scores.gather(1, places).topk(count, dim=1)
    return values, places.gather(1, order)


def _rows(origin: Tensor) -> Tensor:
    """Beam numbers within images (B, K) as row numbers of the batch (B * K)."""
    images, beam_size = origin.shape
    first = torch.arange(images, device=origin.device)[:, None] * beam_size
    return (first + origin).flatten()


def _hypotheses(beams: _Beams, length_penalty: float) -> list[list[Hypothesis]]:
    scores = _scores(beams.log_probs, beams.lengths, length_penalty)
    columns = (beams.tokens, beams.lengths, beams.log_probs, scores)
    found = [
        [
            Hypothesis(tuple(tokens[:length]), log_prob, score)
            for tokens, length, log_prob, score in zip(*image, strict=True)
            if log_prob > -torch.inf
        ]
        for image in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return [sorted(image, key=lambda found: -found.score) for image in found]
