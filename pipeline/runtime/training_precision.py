"""Numeric precision of trainings and of extraction, and determinism: `train.deterministic`."""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from a2cap.extract.detector import proposal_precision
from a2cap.extract.detector.proposal_precision import has_bfloat16
from a2cap.extract.extract_config import ExtractConfig
from a2cap.model.mixed_precision import mixed_precision
from a2cap.pipeline.runtime.device import find_gpu, prepare_device
from a2cap.pipeline.runtime.runtime_config import Precision, RuntimeConfig

logger = logging.getLogger(__name__)


def resolve_training_precision(precision: Precision, device: str) -> Precision:
    """Return what `auto` is on a device of `runtime.device`, by the kind of its processor."""
    if precision != "auto":
        return precision
    has_gpu, _ = find_gpu()
    if device == "auto":
        device = "cuda" if has_gpu else "cpu"
    try:  # a device that is missing or unknown is reported when training starts
        is_missing = torch.device(device).type == "cuda" and not has_gpu
        return "bf16" if not is_missing and has_bfloat16(torch.device(device)) else "fp32"
    except RuntimeError:
        return "fp32"


def extraction_precision(
    config: ExtractConfig, runtime: RuntimeConfig
) -> Literal["exact", "mixed"]:
    """Return what `auto` is on the device of an extraction."""
    return proposal_precision.resolve_proposal_precision(config, prepare_device(runtime))


def forward_precision(
    precision: Precision, device: torch.device, network: nn.Module | None = None
) -> AbstractContextManager[None]:
    """Return the context of forward passes and losses; call `backward()` outside it.

    network: its linear layers are cast once for the context.
    """
    return mixed_precision("bfloat16" if precision == "bf16" else "float32", device, network)


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


@contextmanager
def deterministic_operations(device: torch.device) -> Iterator[None]:
    """Let torch use only deterministic operations inside the block."""
    before = torch.are_deterministic_algorithms_enabled()
    # read when CUDA starts its matrix products; without it, torch refuses them
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # fused attention adds up its gradients in any order on a GPU
    is_plain = device.type == "cuda"
    attention = sdpa_kernel(SDPBackend.MATH) if is_plain else nullcontext()
    torch.use_deterministic_algorithms(True)
    try:
        with attention:
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def warn_about_bf16(precision: Precision, device: torch.device) -> None:
    """Warn if the device emulates the bfloat16 that was asked for."""
    # on a CPU without AVX512_BF16 or AMX, one product took 600 times as long as in float32
    if precision == "bf16" and not has_bfloat16(device):
        message = "%s emulates bfloat16, many times slower: bf16; set train.precision to fp32"
        logger.warning(message, device)
