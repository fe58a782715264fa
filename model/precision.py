"""Mixed precision: matrix products in bfloat16, everything that alignment rests on in float32.

Parameters, gradients and optimiser stay in float32. Under bfloat16 the linear layers compute in it;
softmax, masks, fusion, gate, penalty, layer norms and losses stay in float32 (`alignment.widened`):
in bfloat16 the mask 1 - sigmoid(6.5) is 0. bfloat16 has float32's range, so no loss is scaled.
"""

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def mixed_precision(precision: Precision, device: torch.device) -> torch.autocast:
    """The context in which to encode, score and take losses; `backward()` belongs outside it.

    float32 changes nothing, also where the caller is in another such context.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
