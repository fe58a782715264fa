"""Numeric precision of training: `train.precision`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from a2cap.extract.detector.mixed_precision import has_bfloat16
from a2cap.model.precision import mixed_precision
from a2cap.pipeline.runtime.config import Precision

logger = logging.getLogger(__name__)


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


def warn_about_emulation(precision: Precision, device: torch.device) -> None:
    """Warn if the device emulates the bfloat16 that was asked for."""
    # on a CPU without AVX512_BF16 or AMX, one product took 600 times as long as in float32
    if precision == "bf16" and not has_bfloat16(device):
        message = "%s emulates bfloat16, many times slower: bf16; set train.precision to fp32"
        logger.warning(message, device)
