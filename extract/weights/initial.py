"""Initial weights of a detector in training: random, or another network's.

Convolutions are initialised as in He et al. 2015 (arXiv:1502.01852), classifiers and proposal
network with small numbers as in bottom-up-attention @514e561 (train.prototxt) and detectron2
@02b5c4e.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.weights.values import check_values

SPREAD = 0.01
"""Standard deviation of the proposal network's and the classifiers' weights."""

BOX_SPREAD = 0.001
"""Standard deviation of the weights that refine boxes by class."""

_HEADS = ("proposal_generator.", "roi_heads.box_predictor.")


def random_detector(
    architecture: Architecture, meta: DetectorMeta, *, generator: torch.Generator
) -> Detector:
    """Return a randomly initialised detector; equal generators give equal ones.

    Its normalisations are neutral, so it can be trained only with `learns_norms`.
    """
    with torch.device("meta"):  # PyTorch's own initialisation would draw from the global generator
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
