"""The KV cache of a decoder: keys and values of the tokens so far, shared by the rows of a group.

A group is the rows that begin as one: the beams of an image, or a sample alone. It has one pool of
slots per layer. A step fills a slot for each row, and a row attends to the slots of its own tokens
alone: beams are reordered without moving a key, and shapes stay the same for many steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = 20
"""Steps for which a pool has room at first, and by which it grows: as many as the default maximum
length of a caption."""
_MULTIPLE = 8
"""Number of slots is a multiple of it: attention of a GPU would copy other biases."""


@dataclass
class _Filled:
    """Slots of a pool that any state has filled."""

    slots: int = 0


@dataclass(frozen=True)
class KVCache:
    """Keys and values of the tokens of N = G * K rows of G groups.

    pools: one per layer, (2, G, H, S, d) float, keys and values; a step writes into them.
    bias: (N, S) float, a summand of scores: 0 at the slots of a row's own tokens, else -inf.
    numbers: (S,) int64, from 0.
    tokens: number of tokens of a row.
    filled: slots of this state.
    slots: (K,) int64, of the newest token of each row of a group.
    position: (1,) int64, its own.
    """

    pools: tuple[Tensor, ...]
    bias: Tensor
    numbers: Tensor
    slots: Tensor
    position: Tensor
    tokens: int = 0
    filled: int = 0
    pool: _Filled = field(default_factory=_Filled)

    @classmethod
    def empty(cls, pools: Iterable[Tensor]) -> "KVCache":
        """Create the cache of a row for each group before the first token; pools: without slots."""
        pools = tuple(pools)
        none = torch.empty(0, dtype=torch.int64, device=pools[0].device)
        return cls(pools, pools[0].new_empty(pools[0].shape[1], 0), none, none, none)

    @property
    def _groups(self) -> int:
        return self.pools[0].shape[1]

    def extended(self) -> "KVCache":
        """Take a slot for one more token of each row; the layers have yet to fill it."""
        rows = len(self.bias) // self._groups
        tokens, filled, size = self.tokens + 1, self.filled + rows, len(self.numbers)
        pools, bias, numbers, pool = self.pools, self.bias, self.numbers, self.pool
        if filled > size:
            added = rows * (_STEPS - self.tokens % _STEPS)
            added += -(size + added) % _MULTIPLE
            pools, pool = tuple(_enlarged(keys, added) for keys in pools), _Filled()
            bias = functional.pad(bias, (0, added), value=-torch.inf)
            numbers = torch.arange(size + added, device=bias.device)
        elif pool.slots > self.filled or torch.is_grad_enabled():
            # another state has filled these slots, or a gradient will need what is in them
            pools, pool = tuple(keys.clone() for keys in pools), _Filled()
        pool.slots = filled
        slots, position = numbers[self.filled : filled], numbers[self.tokens : tokens]
        by_group = bias.view(-1, rows, bias.shape[1])  # (N, S) -> (G, K, S)
        row_slots = slots[:, None].expand(len(by_group), -1, -1)  # (K,) -> (G, K, 1)
        bias = by_group.scatter(2, row_slots, 0.0).view_as(bias)
        return KVCache(pools, bias, numbers, slots, position, tokens, filled, pool)

    def reorder(self, index: Tensor, *, images: int) -> "KVCache":
        """Return rows index[i], int64, image by image: each as one of its own image."""
        if self._groups != images:
            return self.select(index)  # each row has a pool, which goes with it
        return replace(self, bias=self.bias.index_select(0, index))

    def select(self, rows: Tensor) -> "KVCache":
        """Keep some rows, int64: whole groups, the rows of each next to each other."""
        size = len(self.bias) // self._groups
        groups = rows[::size] // size  # (N',) -> (G',)
        pools = tuple(pool.index_select(1, groups) for pool in self.pools)
        bias = self.bias.index_select(0, rows)
        return replace(self, pools=pools, bias=bias, pool=_Filled(self.filled))


def _enlarged(pool: Tensor, added: int) -> Tensor:
    return functional.pad(pool, (0, 0, 0, added))  # (2, G, H, S, d), on the axis of slots
