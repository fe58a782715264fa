"""How exactly training computes: `train.precision`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from a2cap.model.precision import mixed_precision
from a2cap.pipeline.runtime.config import Precision


def forward_precision(precision: Precision, device: torch.device) -> torch.autocast:
    """The context of forward passes and losses; `backward()` belongs outside it."""
    return mixed_precision("bfloat16" if precision == "bf16" else "float32", device)


@contextmanager
def matrix_precision(precision: Precision) -> Iterator[None]:
    """For the block, float32 matrix products are rounded to TF32 on a GPU where that is asked for.

    A setting of the whole process: what runs after the block, say an evaluation, is exact again.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
