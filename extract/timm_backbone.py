"""Networks of timm as grid backbones, CLIP's and DINO's image encoders included (`a2cap[timm]`).

timm downloads weights only if asked to; this module never asks, and reads a state dict from a file.
"""

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from torch import Tensor, nn

from a2cap.data.errors import ConfigError, WeightsError

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
        self._classifiers = (names,) if isinstance(names, str) else tuple(names)
        self._first_patch = int(getattr(network, "num_prefix_tokens", 0))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the map, (B, C, h, w); images: (B, 3, side, side), red first, normalised."""
        found: Tensor = cast(Any, self.network).forward_features(images)
        if found.ndim == 3:  # the tokens of a vision transformer, class tokens first
            patches = found[:, self._first_patch :].transpose(1, 2)
            rows = math.isqrt(patches.shape[2])
            found = patches.reshape(*patches.shape[:2], rows, rows)
        elif found.shape[1] != self.features:  # Swin's channels are last
            found = found.permute(0, 3, 1, 2)
        return {"map": found}

    def load(self, weights: Mapping[str, Tensor], name: str) -> Mapping[str, Tensor]:
        """Load a state dict and return it by timm's names; WeightsError for another network."""
        own: dict[str, Tensor] = self.network.state_dict()
        wanted = {key for key in own if not key.startswith(self._classifiers)}
        fits = {key: value for key, value in weights.items() if key in wanted}
        wrong = [key for key, value in fits.items() if value.shape != own[key].shape]
        missing = sorted(wanted - fits.keys()) or wrong
        if missing:
            raise WeightsError(
                f"weights do not fit {name}: {len(missing):,} tensors are missing or of another "
                f"shape, first {missing[0]}; name its state dict"
            )
        self.network.load_state_dict(fits, strict=False)
        return fits
