"""Residual network in the form of the published caffe model (He et al. 2016, arXiv:1512.03385).

It differs from torchvision's ResNet in three points: the stem pools without padding and rounds
sizes up, a bottleneck strides in its first 1x1 convolution, and the last stage keeps its resolution
and dilates its 3x3 convolutions by two. Module names give detectron2's keys.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Residual blocks of stages res2 to res5, by depth."""

STRIDE = 16
"""Pixels of the scaled image per cell of the res4 feature map."""

EPSILON = 1e-5
"""Added to variances: caffe.proto's default."""


Side = TypeVar("Side", int, Tensor)
"""Pixels or cells of one side, or of many."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a detector, all readable from the shapes of its tensors.

    width: channels of the stem. classes, attributes: without the background and without
    "no attribute"; attributes is 0 where the detector has no attribute head.
    """

    depth: int
    width: int = 64
    classes: int = 1600
    attributes: int = 400
    anchors: int = 12
    proposal_width: int = 512
    embedding_width: int = 256
    attribute_width: int = 512

    @property
    def has_bottlenecks(self) -> bool:
        """True if blocks are 1x1, 3x3, 1x1 (depth 50 and more), not two 3x3."""
        return self.depth >= 50

    def stage_width(self, stage: int) -> int:
        """Return the output channels of stage 2, 3, 4 or 5."""
        return self.width * (4 if self.has_bottlenecks else 1) << (stage - 2)

    @property
    def feature_width(self) -> int:
        """F, numbers per region: 2048 as published."""
        return self.stage_width(5)


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with fixed statistics."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel. x: (B, C, H, W) float32; returns the same shape."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=EPSILON
        )


class NormalizedConvolution(nn.Conv2d):
    """Convolution without bias, then frozen batch normalisation."""

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int, stride: int = 1, dilation: int = 1
    ) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm = FrozenBatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and normalise; shapes as of the blocks below."""
        normalized: Tensor = self.norm(super().forward(x))
        return normalized

    def fold(self) -> None:
        """Replace the normalisation by other weights and a bias, for inference.

        gamma (Wx - mean) / sqrt(variance + eps) + beta is one convolution. In float32 the result
        differs by some 4e-6 of its size.
        """
        norm = self.norm
        gain = norm.weight.double() * (norm.running_var.double() + EPSILON).rsqrt()
        weight = self.weight.double() * gain.view(-1, 1, 1, 1)
        bias = norm.bias.double() - norm.running_mean.double() * gain
        self.weight = nn.Parameter(weight.float(), requires_grad=False)
        self.bias = nn.Parameter(bias.float(), requires_grad=False)
        self.add_module("norm", nn.Identity())

    def taps(self, x: Tensor) -> Tensor:
        """Return the products of each cell with the weights of each tap.

        x: (B, inputs, H, W). Returns (B, taps * outputs, H, W).
        """
        weight = self.weight.permute(2, 3, 0, 1).reshape(-1, self.in_channels, 1, 1)
        return F.conv2d(x, weight.contiguous(memory_format=torch.channels_last))

    def of_sums(self, sums: Tensor) -> Tensor:
        """Finish the convolution whose products are added up: (B, outputs, H, W), overwritten."""
        normalized: Tensor = self.norm(
            sums if self.bias is None else sums.add_(self.bias.view(-1, 1, 1))
        )
        return normalized


def blank_(maps: Tensor, inside: Tensor | None) -> Tensor:
    """Set the cells that belong to no image to zero, in place.

    maps: (B, C, h, w); inside: (B, 1, h, w) bool, or None where all belong to images.
    """
    return maps if inside is None else maps.mul_(inside)


class Stem(nn.Module):
    """7x7 convolution and 3x3 maximum, each with stride 2; padded_pool: pool as detectron2."""

    def __init__(self, width: int, *, padded_pool: bool = False) -> None:
        super().__init__()
        self.conv1 = NormalizedConvolution(3, width, kernel=7, stride=2)
        self.padded_pool = padded_pool

    def forward(self, images: Tensor, inside: Tensor | None = None) -> Tensor:
        """Convolve and pool. images: (B, 3, H, W). Returns (B, width, H / 4, W / 4), rounded up.

        inside: as of `blank_`, of the convolution's output.
        """
        x = blank_(F.relu_(self.conv1(images)), inside)
        # caffe rounds sizes up and does not pad; detectron2 pads and rounds down
        padding = int(self.padded_pool)
        return F.max_pool2d(x, 3, stride=2, padding=padding, ceil_mode=not self.padded_pool)


class ResidualBlock(nn.Module):
    """Convolutions around a shortcut: two 3x3, or for a bottleneck 1x1, 3x3 and 1x1."""

    def __init__(
        self, inputs: int, outputs: int, *, is_bottleneck: bool, stride: int, dilation: int
    ) -> None:
        super().__init__()
        inner, kernel = (outputs // 4, 1) if is_bottleneck else (outputs, 3)
        self.shortcut = (
            NormalizedConvolution(inputs, outputs, kernel=1, stride=stride)
            if inputs != outputs
            else None
        )
        # the first convolution strides, as in the caffe models; torchvision's second one does
        self.conv1 = NormalizedConvolution(
            inputs, inner, kernel=kernel, stride=stride, dilation=1 if is_bottleneck else dilation
        )
        self.conv2 = NormalizedConvolution(inner, inner, kernel=3, dilation=dilation)
        self.conv3 = NormalizedConvolution(inner, outputs, kernel=1) if is_bottleneck else None

    def forward(self, x: Tensor, inside: Tensor | None = None) -> Tensor:
        """Add the residual. x: (B, inputs, H, W). Returns (B, outputs, H / stride, W / stride).

        inside: as of `blank_`, of the output.
        """
        residual = self.conv2(blank_(F.relu_(self.conv1(x)), inside))
        added = self.added(residual, x if self.shortcut is None else self.shortcut(x))
        # the output of a bottleneck is read by 1x1 convolutions, which mix no cells
        return added if self.conv3 is not None else blank_(added, inside)

    def added(self, residual: Tensor, to: Tensor) -> Tensor:
        """Return the block's output. residual: of the second convolution; to: of the shortcut."""
        if self.conv3 is not None:
            residual = self.conv3(F.relu_(residual))
        residual += to
        return F.relu_(residual)


def residual_stage(
    architecture: Architecture, stage: int, *, dilated: bool = True
) -> nn.Sequential:
    """Build stage 2, 3, 4 or 5; 3 and 4 halve the resolution, 5 dilates by two instead.

    dilated: False if stage 5 halves the resolution like the others.
    """
    outputs = architecture.stage_width(stage)
    inputs = architecture.width if stage == 2 else architecture.stage_width(stage - 1)
    dilation = 2 if stage == 5 and dilated else 1
    strides = [1 if stage == 2 or dilation == 2 else 2]
    strides += [1] * (BLOCKS[architecture.depth][stage - 2] - 1)
    return nn.Sequential(
        *(
            ResidualBlock(
                outputs if number else inputs,
                outputs,
                is_bottleneck=architecture.has_bottlenecks,
                stride=stride,
                dilation=dilation,
            )
            for number, stride in enumerate(strides)
        )
    )


class Backbone(nn.Module):
    """Stem and stages res2 to res4, which run on the whole image."""

    def __init__(self, architecture: Architecture, *, padded_pool: bool = False) -> None:
        super().__init__()
        self.stem = Stem(architecture.width, padded_pool=padded_pool)
        self.res2 = residual_stage(architecture, 2)
        self.res3 = residual_stage(architecture, 3)
        self.res4 = residual_stage(architecture, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of each image.

        images: (B, 3, H, W) float32, BGR minus the mean. Returns (B, C, H / 16, W / 16).
        """
        maps: Tensor = self.res4(self.res3(self.res2(self.stem(images))))
        return maps

    def of_padded(self, images: Tensor, sides: Tensor) -> Tensor:
        """Return maps whose cells inside an image do not depend on zeros below and to the right.

        images, and the result: as of `forward`; sides: (B, 2) int64, height and width of each image
        in pixels. A layer's bias makes numbers of the zeros, where an image alone has zeros; they
        are blanked before a wider convolution reads them.
        """
        height, width = (self.levels(side) for side in images.shape[2:])
        insides = [
            (_up_to(h, cells[:, :1])[:, :, None] & _up_to(w, cells[:, 1:])[:, None])[:, None]
            for h, w, cells in zip(height, width, self.levels(sides), strict=True)
        ]
        x = blank_(self.stem(images, insides[0]), insides[1])
        for stage, inside in zip((self.res2, self.res3, self.res4), insides[1:], strict=True):
            for block in stage:
                x = block(x, inside)
        return x

    def levels(self, side: Side) -> tuple[Side, Side, Side, Side]:
        """Return the cells of a side in pixels after the stem's convolution and each stage."""
        convolved = _halved(side)
        pooled = _halved(convolved) if self.stem.padded_pool else convolved // 2
        return convolved, pooled, _halved(pooled), _halved(_halved(pooled))


def _halved(side: Side) -> Side:
    return (side + 1) // 2


def _up_to(count: int, limits: Tensor) -> Tensor:
    """Return which of `count` positions are below each limit: (B, 1) -> (B, count) bool."""
    return torch.arange(count, device=limits.device) < limits
