"""Keys and values of the tokens before the current one, per row of the decoder."""

from typing import NamedTuple

import torch
from torch import Tensor


class KVCache(NamedTuple):
    """Cache of one self-attention layer; keys, values: (N, H, t, d)."""

    keys: Tensor
    values: Tensor

    def append(self, keys: Tensor, values: Tensor) -> "KVCache":
        """Append the next token of each row, (N, H, 1, d) each; leave this cache unchanged."""
        # new tensors, because beams with a common prefix go on with the old ones
        return KVCache(torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2))
