"""METEOR's alignment of a caption with a reference: the matches that cover most words.

Matches overlap, so a beam search over the positions of the reference chooses among them: most
covered words first, then fewest chunks, then the shortest distance between positions. Ties are
broken by the order of the matches, and the details of the search decide that order, so they follow
METEOR 1.5 including two oddities, which are marked.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

BEAM = 40
"""Partial alignments that are continued."""

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
"""Stages, in the order of matching."""

# A rank orders partial alignments: weight of covered words, then chunks, then distance.
_COVERED, _CHUNK = 1 << 48, 1 << 24


class Match(NamedTuple):
    """Words of the caption that match words of the reference."""

    stage: int
    start: int
    length: int
    reference_start: int
    reference_length: int
    used: int
    """Words of the caption, as bits."""
    reference_used: int
    gain: int
    """Change of the rank by the covered words."""
    distance: int


@cache
def new_match(
    stage: int, start: int, length: int, reference_start: int, reference_length: int
) -> Match:
    """Return a match of `length` words at `start` with those of the reference."""
    # METEOR gives stages after the first half a weight and then drops fractions.
    weight = 2 if stage == EXACT else length // 2 + reference_length // 2
    return Match(
        stage,
        start,
        length,
        reference_start,
        reference_length,
        ((1 << length) - 1) << start,
        ((1 << reference_length) - 1) << reference_start,
        -weight * _COVERED,
        abs(start - reference_start),
    )


Trail = tuple[Match, "Trail"] | None
"""Matches that were chosen, the last one first."""

_Path = tuple[int, int, int, int, int, Trail]
"""Rank, used words of the caption and of the reference, next position, end of the last match in
the caption (-1 if a gap follows it), and the trail."""


def align(matches: Sequence[Sequence[Match]]) -> list[Match]:
    """Return the best matches that do not overlap; matches: those at each reference position."""
    fixed = _undisputed(matches)
    if len(fixed) == sum(map(bool, matches)):
        return list(fixed.values())
    used = sum(match.used for match in fixed.values())
    reference_used = sum(match.reference_used for match in fixed.values())
    paths: list[_Path] = [(0, used, reference_used, 0, -1, None)]
    for position, here in enumerate(matches):
        if len(paths) > 1:
            paths.sort(key=_rank)
            del paths[BEAM:]
        fixed_match = fixed.get(position)
        # METEOR goes on with the best path if none is left.
        paths = _advanced(paths, position, fixed_match, () if fixed_match else here) or paths[:1]
    paths.sort(key=_rank)
    best = min(paths[:BEAM], key=lambda path: path[0] + (0 if path[4] == -1 else _CHUNK))
    aligned, trail = list(fixed.values()), best[5]
    while trail is not None:
        aligned.append(trail[0])
        trail = trail[1]
    return aligned


def _rank(path: _Path) -> int:
    return path[0]


def _undisputed(matches: Sequence[Sequence[Match]]) -> dict[int, Match]:
    """Return the matches whose words have no other match, by reference position."""
    once = twice = reference_once = reference_twice = 0
    for here in matches:
        for match in here:
            twice |= once & match.used
            once |= match.used
            reference_twice |= reference_once & match.reference_used
            reference_once |= match.reference_used
    return {
        position: here[0]
        for position, here in enumerate(matches)
        if len(here) == 1 and not (here[0].used & twice or here[0].reference_used & reference_twice)
    }


def _advanced(
    paths: list[_Path], position: int, fixed: Match | None, here: Sequence[Match]
) -> list[_Path]:
    """Return the paths after one position of the reference."""
    bit = 1 << position
    following: list[_Path] = []
    for path in paths:
        rank, used, reference_used, index, end, trail = path
        if index > position:  # inside a match
            following.append(path)
            continue
        if fixed is not None:
            rank += fixed.gain + fixed.distance
            if end not in (-1, fixed.start):
                rank += _CHUNK
            index = position + fixed.reference_length
            following.append((rank, used, reference_used, index, fixed.start + fixed.length, trail))
            continue
        if reference_used & bit:
            continue
        for match in here:
            if used & match.used or reference_used & match.reference_used:
                continue
            gain = match.gain if end in (-1, match.start) else match.gain + _CHUNK
            following.append(
                (
                    rank + gain,
                    used | match.used,
                    reference_used | match.reference_used,
                    position + match.reference_length,
                    match.start + match.length,
                    (match, trail),
                )
            )
            # METEOR adds the distance to the paths that do without the match.
            rank += match.distance
        rank = rank if end == -1 else rank + _CHUNK
        following.append((rank, used, reference_used, position + 1, -1, trail))
    return following
