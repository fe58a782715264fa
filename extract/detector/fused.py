"""Fusion of frozen batch normalisations into the convolutions before them, for inference.

y = gamma (Wx - mean) / sqrt(variance + eps) + beta is one convolution with scaled weights and a
bias. In float32 the result differs by some 4e-6 of its size.
"""

import copy

import torch
from torch import nn

from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import EPSILON, NormalizedConvolution


def fuse(detector: Detector) -> Detector:
    """Return a copy of the detector without normalisations; the original stays as it is on disk."""
    shared = {id(t): t for t in (*detector.parameters(), *detector.buffers())}
    fused = copy.deepcopy(detector, memo=dict(shared))  # shares tensors instead of copying them
    for module in list(fused.modules()):
        if isinstance(module, NormalizedConvolution):
            fold_norm(module)
    return fused.to(memory_format=torch.channels_last).eval()


def fold_norm(convolution: NormalizedConvolution) -> None:
    """Replace a convolution's normalisation by another weight and a bias, in place."""
    norm = convolution.norm
    gain = norm.weight.double() * (norm.running_var.double() + EPSILON).rsqrt()
    weight = convolution.weight.double() * gain.view(-1, 1, 1, 1)
    bias = norm.bias.double() - norm.running_mean.double() * gain
    convolution.weight = nn.Parameter(weight.float(), requires_grad=False)
    convolution.bias = nn.Parameter(bias.float(), requires_grad=False)
    convolution.add_module("norm", nn.Identity())
