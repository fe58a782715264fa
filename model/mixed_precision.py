"""Mixed precision: matrix products in bfloat16, alignment and losses in float32.

Parameters, gradients and optimiser stay in float32. Under bfloat16 only the linear layers compute
in it; softmax, masks, fusion, gate, penalty, layer norms and losses stay in float32
(`alignment.at_least_float32`). bfloat16 has float32's range, so that no loss scaling is needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from a2cap.model.replaced_parameters import linear_cast, replaced

AutocastType = Literal["float32", "bfloat16"]


@contextmanager
def mixed_precision(
    precision: AutocastType, device: torch.device, network: nn.Module | None = None
) -> Iterator[None]:
    """Encode, score and compute losses in this context; call `backward()` outside it.

    network: its linear layers are cast once for the context; autocast alone would cast weights
    that a pass freezes again in each pass. float32 disables autocast, inside another such context
    too.
    """
    is_mixed = precision == "bfloat16"
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_mixed):
        if network is None or not is_mixed:
            yield
            return
        with replaced(network, linear_cast(network, torch.bfloat16)):
            yield
