"""Removal of an image's tokens: masked in every attention to them, so that nothing sees them.

Positions stay as they are. A self-attention from which all are removed sees the text alone; a
cross-attention has nothing else to see, and adds nothing then but the bias of its projection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from a2cap.model.errors import ModelError


@dataclass(frozen=True)
class Removal:
    """Tokens that are removed in a block of `removing`.

    layers: numbers of the attentions to the image; removed: (B, N) bool; columns: (N,) int64, the
    positions of the tokens in the prompt, None if they are all keys.
    """

    layers: tuple[int, ...]
    removed: Tensor
    columns: Tensor | None
    _read: dict[int, int] = field(default_factory=dict)

    def mask(
        self,
        layer: int,
        attention_mask: Tensor | None,
        *,
        like: Tensor,
        keys: int,
        is_cross: bool,
        is_causal: bool = True,
    ) -> Tensor:
        """Return a mask as a summand of the scores, (B, 1 or H, Q, keys), without the tokens.

        like: (B, H, Q, d), the queries, or (B, Q, D), the states.
        """
        queries = like.shape[-2]
        if attention_mask is None:
            seen = torch.ones(queries, keys, dtype=torch.bool, device=like.device)
            attention_mask = seen.tril(keys - queries)[None, None]
            if is_cross or not is_causal:
                attention_mask = seen[None, None]
        if attention_mask.ndim != 4:
            raise ModelError(
                "flash attention takes no mask that removes tokens; load the model with "
                'attn_implementation="sdpa"'
            )
        lowest = torch.finfo(like.dtype).min
        if not attention_mask.is_floating_point():
            is_hidden = ~attention_mask.bool()
            attention_mask = torch.zeros(is_hidden.shape, dtype=like.dtype, device=like.device)
            attention_mask = attention_mask.masked_fill(is_hidden, lowest)
        removed = self._removed_keys(layer, queries, keys, is_cross=is_cross)
        # the lowest number, not -inf: the row of a removed token may have nothing else
        return attention_mask.masked_fill(removed[:, None, None], lowest)

    def _removed_keys(self, layer: int, queries: int, keys: int, *, is_cross: bool) -> Tensor:
        """Return (B, keys) bool; a sliding KV cache has dropped the first keys."""
        if self.columns is None:
            return self.removed
        self._read[layer] = queries if keys == queries else self._read.get(layer, 0) + queries
        columns = self.columns - (0 if is_cross else max(0, self._read[layer] - keys))
        hidden = self.removed.new_zeros(len(self.removed), keys)
        hidden[:, columns[columns >= 0]] = self.removed[:, columns >= 0]
        return hidden

    @staticmethod
    def sees_nothing(mask: Tensor) -> Tensor:
        """Return (B, 1 or H, Q, 1) bool, True for a query without any key."""
        return (mask <= torch.finfo(mask.dtype).min / 2).all(dim=-1, keepdim=True)


_removal: ContextVar[Removal | None] = ContextVar("removal", default=None)


@contextmanager
def removing(removal: Removal) -> Iterator[None]:
    """Remove tokens in every call of the adapted model within the block, in this thread."""
    token = _removal.set(removal)
    try:
        yield
    finally:
        _removal.reset(token)


def removal_in(layer: int) -> Removal | None:
    """Return what is removed in an attention, None outside `removing` and in attention to words."""
    removal = _removal.get()
    return removal if removal is not None and layer in removal.layers else None
