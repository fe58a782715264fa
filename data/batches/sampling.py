"""Order of the images and choice of their captions, as pure functions of the seed.

Nothing here has a state: training that resumes within an epoch, or with another number of workers,
sees the same captions in the same order.
"""

import numpy as np
from numpy.typing import NDArray

_ORDER = 0
_CAPTIONS = 1
_MIRRORED = 2
_BATCHES = 3
_WINDOW = 4
_PARTS = 5


def epoch_order(count: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of 0 … count - 1, (count,) int64, for one epoch."""
    draws = _stream(seed, _ORDER, epoch).random_raw(count)
    return np.argsort(draws, kind="stable").astype(np.int64)


def part_order(
    parts: NDArray[np.int64], *, window: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Return a permutation for one epoch that reads one part after the other.

    parts: (count,) int64 from 0, the part of each index. The parts come in a random order; within
    it, no index moves by `window` positions or more, as with a shuffle buffer of that size.
    """
    ranks = epoch_order(int(parts.max(initial=0)) + 1, seed=seed, epoch=epoch)
    by_part = np.argsort(ranks[parts], kind="stable")
    draws = _stream(seed, _WINDOW, epoch).random_raw(len(parts)) / 2.0**64
    return by_part[np.argsort(np.arange(len(parts)) + window * draws, kind="stable")]


def epoch_chunks(
    count: int,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    groups: NDArray[np.int64] | None = None,
    parts: NDArray[np.int64] | None = None,
    window: int | None = None,
) -> list[NDArray[np.int64]]:
    """Return the indices of each batch of one epoch; every index is in one batch.

    groups: (count,) int64; a batch has indices of one group only, and the last one of each group
        may be smaller.
    parts, window: of `part_order`, in place of a random order of all indices.
    """
    order = epoch_order(count, seed=seed, epoch=epoch)
    if parts is not None and window is not None:
        order = part_order(parts, window=window, seed=seed, epoch=epoch)
    if groups is None:
        return [order[first : first + batch_size] for first in range(0, count, batch_size)]
    members = [order[groups[order] == group] for group in np.unique(groups)]
    chunks = [
        part[first : first + batch_size]
        for part in members
        for first in range(0, len(part), batch_size)
    ]
    draws = _stream(seed, _BATCHES, epoch).random_raw(len(chunks))
    return [chunks[number] for number in np.argsort(draws, kind="stable")]


def caption_choice(available: int, count: int, *, seed: int, epoch: int, index: int) -> list[int]:
    """Draw `count` of the `available` captions of the image at `index` for one epoch.

    Draws without replacement; if there are too few, every caption comes once and the rest is drawn
    with replacement. Both numbers are at least 1.
    """
    stream = _stream(seed, _CAPTIONS, epoch, index)
    order = np.argsort(stream.random_raw(available), kind="stable")
    repeated = stream.random_raw(max(0, count - available)) % available
    return [int(number) for number in (*order[:count], *repeated)]


def is_mirrored(*, seed: int, epoch: int, index: int) -> bool:
    """Decide if the image at `index` is mirrored in an epoch, as half of the images are."""
    return bool(_stream(seed, _MIRRORED, epoch, index).random_raw() & 1)


def part_draws(count: int, *, seed: int, epoch: int, index: int) -> list[float]:
    """Draw numbers in [0, 1) that choose the part of the image at `index` seen in one epoch."""
    draws = _stream(seed, _PARTS, epoch, index).random_raw(count)
    return [float(draw) / 2.0**64 for draw in draws]


def _stream(seed: int, *purpose: int) -> np.random.Philox:
    # Only raw streams of bit generators: the methods of numpy's Generator may change between
    # releases (NEP 19). spawn_key keeps purposes apart: SeedSequence((1, 2)) is ((1, 2, 0)).
    return np.random.Philox(np.random.SeedSequence(seed, spawn_key=purpose))
