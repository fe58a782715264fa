"""Selection of proposals in bfloat16; the features of selected ones are computed in float32.

Nine tenths of the time goes into res5 over all proposals, of which a tenth to a third is kept. Here
res5 runs on all of them in bfloat16, compiled with prepacked weights.
"""

import copy
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.detector import Detector, chunk_on
from a2cap.extract.detector.int8 import Int8Block
from a2cap.extract.detector.resnet import ResidualBlock

logger = logging.getLogger(__name__)

Heads = Callable[[Tensor], Tensor]

WORTHWHILE_GAIN = 1.5
"""Speed of bfloat16 over float32 from which selection in it pays, with its second pass."""

WORTHWHILE_INT8_GAIN = 2.0
"""Speed of a block in int8 over float32 from which selection in it pays: at 2.2, an image of which
60 of 300 proposals are computed again gains 1.3."""


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device computes in bfloat16 without emulation."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return cast(bool, torch.ops.mkldnn._is_mkldnn_bf16_supported())


def bfloat16_gain(network: Detector, device: torch.device, *, roi_size: int) -> float:
    """Measure how many times as fast a 3x3 convolution of res5 is in bfloat16 as in float32.

    Returns 0 where bfloat16 is emulated.
    """
    # A flag of the processor would not do: AVX-512 has bfloat16 instructions, which take longer
    # than float32 ones for lack of matrix units.
    if not has_bfloat16(device):
        return 0.0
    exact = cast(nn.Conv2d, network.get_submodule("roi_heads.res5.0.conv2"))
    batch = _batch(exact, device, roi_size)
    rough = copy.deepcopy(exact).to(torch.bfloat16)
    return _gain(partial(exact, batch), partial(rough, batch.to(torch.bfloat16)))


def int8_gain(network: Detector, device: torch.device, *, roi_size: int) -> float:
    """Measure how many times as fast a block of res5 is in int8 as in float32.

    Returns 0 where it does not run: on a GPU, without bottlenecks, or where torch lacks operators.
    """
    if device.type != "cpu" or not network.architecture.has_bottlenecks:
        return 0.0
    exact = cast(ResidualBlock, network.get_submodule("roi_heads.res5.1"))
    batch = _batch(exact.conv1, device, roi_size)
    try:
        rough = partial(Int8Block(exact), batch.to(torch.uint8), 1.0, [1.0] * 4)
        return _gain(partial(exact, batch), rough)
    except (AttributeError, RuntimeError, TypeError):
        return 0.0


def _batch(convolution: nn.Conv2d, device: torch.device, roi_size: int) -> Tensor:
    batch = torch.ones(8, convolution.in_channels, roi_size, roi_size, device=device)
    return batch.contiguous(memory_format=torch.channels_last)


def _gain(exact: Callable[[], Tensor], rough: Callable[[], Tensor]) -> float:
    """Return how many times as fast the second form is."""
    seconds: list[list[float]] = [[], []]
    with torch.inference_mode():
        for _ in range(4):
            for form, times in zip((exact, rough), seconds, strict=True):
                started = time.perf_counter()
                form().sum().item()  # waits for a GPU to finish
                times.append(time.perf_counter() - started)
    # the fastest round: the first one warms up, and other programs only slow rounds down
    return min(seconds[0]) / min(seconds[1])


def chosen_precision(config: ExtractConfig, network: Detector, device: torch.device) -> str:
    """Return exact, mixed or int8: the one that was asked for, or the fastest one for auto.

    Logs the choice and its reason; warns where mixed was asked for and is slow, and where the
    asked one does not run.
    """
    asked = config.precision_in_key
    if asked == "exact" or config.boxes != "detect":
        return asked
    if asked == "int8":
        if int8_gain(network, device, roi_size=config.roi_size):
            return asked
        logger.warning(
            "extract.precision=int8 runs as exact: it needs a CPU and a ResNet of depth 50 or more"
        )
        return "exact"
    gain = bfloat16_gain(network, device, roi_size=config.roi_size)
    reason = f"a convolution is {gain:.1f} times as fast in bfloat16 as in float32"
    if asked == "auto":
        chosen = "mixed" if gain >= WORTHWHILE_GAIN else "exact"
        reason = reason if gain else f"{device} has no bfloat16"
        if chosen == "exact":
            gain = int8_gain(network, device, roi_size=config.roi_size)
            if gain >= WORTHWHILE_INT8_GAIN:
                chosen = "int8"
                reason = f"a block of res5 is {gain:.1f} times as fast in int8 as in float32"
        logger.info("extract.precision: %s, because %s", chosen, reason)
        return chosen
    if not gain:
        logger.warning("%s has no bfloat16: extract.precision=mixed runs as exact", device)
        return "exact"
    if gain < WORTHWHILE_GAIN:
        logger.warning(
            "extract.precision=mixed is slow on %s: %s; set extract.precision=auto", device, reason
        )
    return asked


class SelectionHeads:
    """A copy of the heads in bfloat16 that classifies proposals."""

    def __init__(self, network: Detector) -> None:
        self._network = network
        self._res5 = copy.deepcopy(network.roi_heads).bfloat16()
        self._heads: Heads | None = None

    def class_logits(self, features: Tensor, rois: Tensor, *, roi_size: int) -> Tensor:
        """Return (K, classes + 1) float32; arguments as of `Detector.predict`."""
        vectors = torch.cat(
            [
                self._features(chunk)
                for chunk in self._network.pooled(features, rois, roi_size=roi_size)
            ]
        )
        return cast(Tensor, self._network.roi_heads.box_predictor(vectors.float()))

    def _features(self, pooled: Tensor) -> Tensor:
        # padded to a whole chunk, so that only one shape is compiled
        whole = F.pad(pooled, (0, 0, 0, 0, 0, 0, 0, chunk_on(pooled.device) - len(pooled)))
        batch = whole.to(torch.bfloat16, memory_format=torch.channels_last)
        if self._heads is None:
            self._heads = self._compiled(batch)
        return self._heads(batch)[: len(pooled)]

    def _compiled(self, example: Tensor) -> Heads:
        """Return the heads compiled, or uncompiled where that fails."""
        compiled = torch.compile(self._res5, options={"freezing": True})
        try:
            compiled(example)
        except Exception as error:  # a missing or unfit C++ compiler raises types of its own
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            logger.warning("bfloat16 selection runs uncompiled: %s", reason)
            return self._res5
        return compiled
