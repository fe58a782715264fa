"""torchvision's classifiers of ImageNet as initial weights of a detector.

With a padded stem pool and a strided last stage, as in `custom_meta`, a ResNet-18 computes what
torchvision's does. Deeper ones stride in the first 1x1 convolution of a block, torchvision's in the
3x3: the input of three blocks is shifted by up to a cell, which training corrects.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

DEVIATION = (57.375, 57.12, 58.395)
"""Standard deviation of blue, green and red, 255 times torchvision's; its mean is
`DETECTRON2_MEAN`."""

_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)")


def resnet_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a torchvision ResNet's state dict to the detector's keys, for `initialise_from`.

    Tensors that a detector lacks, such as the classifier, are dropped.
    """
    renamed = {_renamed(key): tensor for key, tensor in state.items()}
    tensors = {key: tensor for key, tensor in renamed.items() if key is not None}
    # The classifier's input is RGB divided by the deviation, the detector's is BGR minus the mean.
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
    prefix = f"{'roi_heads' if stage == 5 else 'backbone'}.res{stage}.{block}"
    if kind == "downsample.":
        return f"{prefix}.shortcut.{part if number == '0' else f'norm.{part}'}"
    return f"{prefix}.conv{number}.{part if kind == 'conv' else f'norm.{part}'}"
