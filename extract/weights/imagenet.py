"""torchvision's classifiers of ImageNet as a beginning for a detector.

Their first convolution sees RGB in units of a deviation; ours sees BGR minus the mean, so that it
takes channels and scale into its weights. With a padded stem pool and a strided last stage, as
`meta_for` gives them, a ResNet-18 then computes what torchvision's does. Deeper ones stride in the
first 1x1 convolution of a block, where torchvision's do so in the 3x3: three blocks see their input
shifted by up to a cell, which tuning has to mend.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

DEVIATION = (57.375, 57.12, 58.395)
"""Of blue, green and red, 255 times torchvision's; `DETECTRON2_MEAN` is its mean."""

_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)")


def resnet_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A torchvision ResNet's state dict by the detector's keys, for `begin_with`.

    The classifier and what is of no use in a detector are left out.
    """
    renamed = {_renamed(key): tensor for key, tensor in state.items()}
    tensors = {key: tensor for key, tensor in renamed.items() if key is not None}
    stem = "backbone.stem.conv1.weight"
    if stem in tensors:
        scale = torch.tensor(DEVIATION).view(1, 3, 1, 1)
        tensors[stem] = tensors[stem].flip(1) / scale  # RGB -> BGR
    return tensors


def _renamed(key: str) -> str | None:
    if key.endswith("num_batches_tracked"):
        return None
    if key == "conv1.weight":
        return "backbone.stem.conv1.weight"
    if key.startswith("bn1."):
        return key.replace("bn1.", "backbone.stem.conv1.norm.")
    found = _BLOCK.fullmatch(key)
    if found is None:
        return None
    layer, block, kind, number, part = found.groups()
    stage = int(layer) + 1
    place = f"{'roi_heads' if stage == 5 else 'backbone'}.res{stage}.{block}"
    if kind == "downsample.":
        return f"{place}.shortcut.{part if number == '0' else f'norm.{part}'}"
    return f"{place}.conv{number}.{part if kind == 'conv' else f'norm.{part}'}"
