"""Which image comes when, and with which of its captions: pure functions of the seed.

Nothing here has a state, so a training that resumes in the middle of an epoch, or reads with
another number of workers, sees the same captions in the same order. Only the raw streams of
numpy's bit generators are used: they are fixed for good, while the methods of its Generator may
change between releases (NEP 19).
"""

import numpy as np
from numpy.typing import NDArray

_ORDER = 0
_CAPTIONS = 1
_MIRRORED = 2


def epoch_order(count: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 … count - 1, (count,) int64, for one epoch."""
    draws = _stream(seed, _ORDER, epoch).random_raw(count)
    return np.argsort(draws, kind="stable").astype(np.int64)


def caption_choice(available: int, wanted: int, *, seed: int, epoch: int, index: int) -> list[int]:
    """Which `wanted` of the `available` captions the image at `index` shows in an epoch.

    Drawn without replacement where there are enough; else every caption comes once and the rest
    is drawn with replacement. ValueError where either number is below 1.
    """
    if min(available, wanted) < 1:
        raise ValueError(f"cannot choose {wanted} of {available} captions; give at least 1 of each")
    stream = _stream(seed, _CAPTIONS, epoch, index)
    order = np.argsort(stream.random_raw(available), kind="stable")
    repeated = stream.random_raw(max(0, wanted - available)) % available
    return [int(number) for number in (*order[:wanted], *repeated)]


def is_mirrored(*, seed: int, epoch: int, index: int) -> bool:
    """Whether the image at `index` is shown mirrored in an epoch, as half of them are."""
    return bool(_stream(seed, _MIRRORED, epoch, index).random_raw() & 1)


def _stream(seed: int, *purpose: int) -> np.random.Philox:
    # spawn_key keeps the numbers apart: SeedSequence((1, 2)) is the same as ((1, 2, 0))
    return np.random.Philox(np.random.SeedSequence(seed, spawn_key=purpose))
