"""Mixed precision: matrix products in bfloat16, alignment and losses in float32.

Parameters, gradients and optimiser stay in float32. Under bfloat16 only the linear layers compute
in it; softmax, masks, fusion, gate, penalty, layer norms and losses stay in float32
(`alignment.at_least_float32`). bfloat16 has float32's range, so that no loss scaling is needed.
"""

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def mixed_precision(precision: Precision, device: torch.device) -> torch.autocast:
    """Return the context for encoding, scoring and losses; call `backward()` outside it.

    float32 disables autocast, inside another such context too.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
