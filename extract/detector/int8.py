"""Selection of proposals in int8, for processors without fast bfloat16.

As in `mixed_precision`, float32 computes what is stored. Stage res5 of bottlenecks runs on uint8
tensors by oneDNN's convolutions; their scales are measured in float32 on some of an image's
proposals. The errors are larger than those of bfloat16 and change ranks: see `contenders`.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.extract.detector.detector import CHUNK, Detector
from a2cap.extract.detector.resnet import ResidualBlock

LEVELS = 127
"""Levels of an activation. Processors without VNNI add two products in 16 bits, where 8 bits of
both factors would overflow."""

SIGNED_ZERO = 128
"""The level of zero in the output of a shortcut, which can be negative."""

CALIBRATION_STRIDE = 5
"""One in so many proposals of the first chunk measures the scales."""

DRAWS = 16
"""Selections with random errors."""

MIN_VOTES = 2
"""Selections, of these, in which a contender occurs."""

MIN_PROBABILITY = np.float32(1e-30)
"""Used for probabilities of 0, which have no logarithm."""

MIN_PEAK = 0.02
"""Classes that no proposal reaches with this probability are not drawn."""

Select = Callable[[NDArray[np.float32]], NDArray[np.int64]]


class Int8Convolution:
    """A convolution between uint8 tensors, with one scale of weights per output channel."""

    def __init__(self, exact: nn.Conv2d) -> None:
        weight = exact.weight
        scales = weight.abs().amax(dim=(1, 2, 3)).clamp(min=1e-12) / 127
        whole = (weight / scales.view(-1, 1, 1, 1)).round().to(torch.int8).contiguous()
        geometry = [list(exact.stride), list(exact.padding), list(exact.dilation), 1]
        packed = torch.ops.onednn.qconv_prepack(whole, scales, 1.0, 0, *geometry, None)
        self._weight = packed, scales, torch.zeros(len(scales), dtype=torch.int32)
        self._rest: list[Any] = [exact.bias, *geometry]

    def __call__(self, x: Tensor, unit: float, out: float, *, rectified: bool = True) -> Tensor:
        """Convolve. unit, out: size of a level of the input and of the output."""
        zero, function = (0, "relu") if rectified else (SIGNED_ZERO, "none")
        args = (x, unit, 0, *self._weight, *self._rest, out, zero, torch.uint8, function, [], "")
        return cast(Tensor, torch.ops.onednn.qconv2d_pointwise(*args))

    def added(
        self, x: Tensor, unit: float, out: float, *, to: Tensor, to_unit: float, zero: int
    ) -> Tensor:
        """Convolve, add to another tensor, which is overwritten, and rectify."""
        args = (x, unit, 0, *self._weight, to, *self._rest, out, 0, torch.uint8, to_unit, zero)
        run = torch.ops.onednn.qconv2d_pointwise.binary
        return cast(Tensor, run(*args, "sum", 1.0, "relu", [], ""))


class Int8Block:
    """A bottleneck block on uint8 tensors."""

    def __init__(self, exact: ResidualBlock) -> None:
        self.exact = exact
        self._first, self._second = Int8Convolution(exact.conv1), Int8Convolution(exact.conv2)
        self._third = Int8Convolution(cast(nn.Conv2d, exact.conv3))
        self._shortcut = Int8Convolution(exact.shortcut) if exact.shortcut else None

    def __call__(self, x: Tensor, unit: float, units: list[float]) -> Tensor:
        """Add the residual to x, which is overwritten. unit: of x; units: of what follows."""
        return self.leave(*self.enter(x, unit, units), units)

    def enter(self, x: Tensor, unit: float, units: list[float]) -> tuple[Tensor, Tensor]:
        """Return the first convolution of x, rectified, and the shortcut."""
        hidden = self._first(x, unit, units[0])
        if self._shortcut is not None:
            x = self._shortcut(x, unit, units[2], rectified=False)
        return hidden, x

    def leave(self, hidden: Tensor, shortcut: Tensor, units: list[float]) -> Tensor:
        """Return the block's output from what `enter` returns; the shortcut is overwritten."""
        first, second, rest, out = units
        zero = 0 if self._shortcut is None else SIGNED_ZERO
        hidden = self._second(hidden, first, second)
        return self._third.added(hidden, second, out, to=shortcut, to_unit=rest, zero=zero)

    def measured(self, x: Tensor) -> tuple[Tensor, list[float]]:
        """Return the block's output in float32, and the units of its four tensors."""
        block = self.exact
        first = F.relu(block.conv1(x))
        second = F.relu(block.conv2(first))
        rest = x if block.shortcut is None else block.shortcut(x)
        out = F.relu(cast(nn.Conv2d, block.conv3)(second) + rest)
        return out, [part.abs().amax().item() / LEVELS for part in (first, second, rest, out)]


class Int8Heads:
    """A copy of the heads in int8 that classifies proposals."""

    def __init__(self, network: Detector) -> None:
        self._network = network
        self._blocks = [Int8Block(cast(ResidualBlock, b)) for b in network.roi_heads.res5]

    def class_logits(self, features: Tensor, rois: Tensor, *, roi_size: int) -> Tensor:
        """Return (K, classes + 1) float32; arguments as of `Detector.predict`."""
        network, blocks = self._network, self._blocks
        first = next(network.pooled(features, rois, roi_size=roi_size))
        unit, x, units = features.amax().item() / LEVELS, first[::CALIBRATION_STRIDE], []
        for block in blocks:
            x, found = block.measured(x)
            units.append(found)

        def enter(pooled: Tensor) -> tuple[Tensor, Tensor]:
            # no pooled value is above the map's
            levels = pooled.div_(unit).add_(0.5).to(torch.uint8)
            return blocks[0].enter(levels, unit, units[0])

        if network.shares_cells(features, rois):
            vectors = []
            for cells in network.cells(features, rois, roi_size=roi_size):
                hidden, shortcut = (part.regions(CHUNK) for part in cells.mapped(enter))
                parts = zip(hidden, shortcut, strict=True)
                vectors += [self._leave(*part, units) for part in parts]
        else:
            chunks = network.pooled(features, rois, roi_size=roi_size)
            vectors = [self._leave(*enter(chunk), units) for chunk in chunks]
        return cast(Tensor, network.roi_heads.box_predictor(torch.cat(vectors)))

    def _leave(self, hidden: Tensor, shortcut: Tensor, units: list[list[float]]) -> Tensor:
        """Return the feature of each region from what the first block's `enter` returns."""
        x, unit = self._blocks[0].leave(hidden, shortcut, units[0]), units[0][-1]
        for block, found in zip(self._blocks[1:], units[1:], strict=True):
            x, unit = block(x, unit, found), found[-1]
        return x.mean(dim=(2, 3), dtype=torch.float32) * unit


def contenders(
    rough: NDArray[np.float32], exact: NDArray[np.float32], known: NDArray[np.bool_], select: Select
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the next proposals to compute, none if selection is certain, and all probabilities.

    rough: (N, classes) of int8; exact: of float32 where known, which is (N,); select: returns the
    indices that probabilities select. The error of known rows, its mean per class and its spread,
    is assumed of the others, whose returned probabilities are corrected by the mean.
    """
    error = np.log(
        np.maximum(exact[known], MIN_PROBABILITY) / np.maximum(rough[known], MIN_PROBABILITY)
    )
    error -= error.mean(axis=1, keepdims=True)  # softmax ignores a constant added to all logits
    mean = error.mean(axis=0)
    spread = (error - mean).std() * ~known[:, None]
    corrected = np.where(known[:, None], exact, _moved(rough, mean))
    plausible = corrected[:, corrected.max(axis=0) > MIN_PEAK]
    draw = np.random.default_rng(0)
    votes = np.zeros(len(rough), np.int64)
    votes[select(corrected)] = MIN_VOTES
    for _ in range(DRAWS):
        noise = draw.standard_normal(plausible.shape, dtype=np.float32) * spread
        votes[select(_moved(plausible, noise))] += 1
    votes[known] = -1
    likeliest = np.argsort(-votes, kind="stable")[: min(CHUNK, np.count_nonzero(~known))]
    return likeliest if votes.max() >= MIN_VOTES else likeliest[:0], corrected


def _moved(probabilities: NDArray[np.float32], by: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the probabilities after their logits moved; those of absent classes stay."""
    grown = probabilities * np.exp(by)
    absent = 1 - probabilities.sum(axis=1, keepdims=True)
    moved: NDArray[np.float32] = grown / (grown.sum(axis=1, keepdims=True) + absent)
    return moved
