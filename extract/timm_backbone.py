"""Networks of timm as grid backbones, CLIP's and DINO's image encoders included (`a2cap[timm]`).

timm downloads weights only if asked to; this module never asks, and reads a state dict from a file.
"""

import math
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from a2cap.data.errors import ConfigError

PREFIX = "timm/"
"""Prefix of the names of these networks in `extract.grid_backbone`."""


class TimmBackbone(nn.Module):
    """The last map of a timm network; images are scaled to its own square size."""

    def __init__(self, name: str) -> None:
        super().__init__()
        try:
            timm = import_module("timm")
        except ImportError as error:
            raise ConfigError(
                f"extract.grid_backbone={name} needs timm; install it with "
                'pip install "a2cap[timm]"'
            ) from error
        try:
            network = timm.create_model(name.removeprefix(PREFIX), pretrained=False)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"timm has no network {name.removeprefix(PREFIX)!r} (extract.grid_backbone): "
                f"{error}; see timm.list_models()"
            ) from error
        self.network: nn.Module = network.eval()
        self.features = int(network.num_features)
        facts = network.pretrained_cfg
        self.side = int(facts["input_size"][-1])
        self.mean: tuple[float, float, float] = facts["mean"]
        self.deviation: tuple[float, float, float] = facts["std"]
        names = facts.get("classifier") or ()
        self.classifiers = (names,) if isinstance(names, str) else tuple(names)
        self._first_patch = int(getattr(network, "num_prefix_tokens", 0))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the map, (B, C, h, w); images: (B, 3, side, side), red first, normalised."""
        features: Tensor = cast(Any, self.network).forward_features(images)
        if features.ndim == 3:  # the tokens of a vision transformer, class tokens first
            patches = features[:, self._first_patch :].transpose(1, 2)
            rows = math.isqrt(patches.shape[2])
            features = patches.reshape(*patches.shape[:2], rows, rows)
        elif features.shape[1] != self.features:  # Swin's channels are last
            features = features.permute(0, 3, 1, 2)
        return {"map": features}

    def map_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the map in order, without those of a head behind it."""
        parameters = list(self.parameters())
        feature_map = self(torch.zeros(1, 3, self.side, self.side))["map"]
        gradients = torch.autograd.grad(feature_map.sum(), parameters, allow_unused=True)
        return [
            p for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None
        ]
