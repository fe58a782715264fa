"""Initial weights of a detector in training: random, another network's, or of ImageNet.

Convolutions are initialised as in He et al. 2015 (arXiv:1502.01852), classifiers and proposal
network with small numbers as in bottom-up-attention @514e561 (train.prototxt) and detectron2
@02b5c4e.

With a padded stem pool and a strided last stage, as in `custom_meta`, a ResNet-18 computes what
torchvision's classifier of ImageNet does. Deeper ones stride in the first 1x1 convolution of a
block, torchvision's in the 3x3: the input of three blocks is shifted by up to a cell, which
training corrects.
"""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.data.files.tensors import skip_init
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.weights.values import check_values

SPREAD = 0.01
"""Standard deviation of the proposal network's and the classifiers' weights."""

BOX_SPREAD = 0.001
"""Standard deviation of the weights that refine boxes by class."""

_HEADS = ("proposal_generator.", "roi_heads.box_predictor.")

DEVIATION = (57.375, 57.12, 58.395)
"""Standard deviation of blue, green and red, 255 times torchvision's; its mean is
`DETECTRON2_MEAN`."""

_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)")


def random_detector(
    architecture: Architecture, meta: DetectorMeta, *, generator: torch.Generator
) -> Detector:
    """Return a randomly initialised detector; equal generators give equal ones.

    Its normalisations are neutral, so it can be trained only with `learns_norms`.
    """
    # PyTorch's own initialisation would draw from the global generator
    with torch.device("meta"), skip_init():
        detector = Detector(architecture, meta)
    detector = detector.to_empty(device="cpu").requires_grad_(False)
    for key, tensor in sorted(detector.state_dict().items()):
        if tensor.ndim > 1:
            tensor.normal_(0, _spread(key, tensor), generator=generator)
        else:
            tensor.fill_(key.endswith(("norm.weight", "norm.running_var")))
    return detector.eval()


def _spread(key: str, tensor: Tensor) -> float:
    if not key.startswith(_HEADS):
        return math.sqrt(2 / tensor[0].numel())
    return BOX_SPREAD if "bbox_pred" in key else SPREAD


def initialise_from(
    detector: Detector, tensors: Mapping[str, Tensor], *, name: str
) -> tuple[str, ...]:
    """Copy trained tensors into a detector, in place; heads of other sizes stay as they are.

    tensors: by the detector's keys, perhaps without some heads, such as those of `resnet_tensors`
    or another detector's state; name: of their file, for messages. Returns the keys that stay.
    Raises WeightsError where a convolution or normalisation is missing or of another shape.
    """
    check_values(tensors, name=name)
    ours = detector.state_dict()
    fitting = {
        key: tensors[key].float()
        for key in ours.keys() & tensors.keys()
        if ours[key].shape == tensors[key].shape
    }
    left = tuple(sorted(ours.keys() - fitting.keys()))
    missing = [key for key in left if not key.startswith(_HEADS)]
    if missing:
        raise WeightsError(
            f"weights {name!r} do not fit a ResNet-{detector.architecture.depth} of width "
            f"{detector.architecture.width}: {len(missing)} tensors are missing or of another "
            f"shape, {missing[0]!r} first; choose the depth and width of the weights"
        )
    detector.load_state_dict(fitting, strict=False)
    return left


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
    match = _BLOCK.fullmatch(key)
    if match is None:
        return None
    layer, block, kind, number, part = match.groups()
    stage = int(layer) + 1
    prefix = f"{'roi_heads' if stage == 5 else 'backbone'}.res{stage}.{block}"
    if kind == "downsample.":
        return f"{prefix}.shortcut.{part if number == '0' else f'norm.{part}'}"
    return f"{prefix}.conv{number}.{part if kind == 'conv' else f'norm.{part}'}"
