"""Numeric precision of training: `train.precision`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from a2cap.model.precision import mixed_precision
from a2cap.pipeline.runtime.config import Precision


def forward_precision(precision: Precision, device: torch.device) -> torch.autocast:
    """Return the autocast context of forward passes and losses; call `backward()` outside it."""
    return mixed_precision("bfloat16" if precision == "bf16" else "float32", device)


@contextmanager
def matrix_precision(precision: Precision) -> Iterator[None]:
    """Round float32 matrix products to TF32 inside the block, if `precision` is tf32."""
    # a global setting of torch, restored so that a later evaluation is exact
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
