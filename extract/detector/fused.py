"""Fusion of frozen batch normalisations into the convolutions before them, for inference.

y = gamma (Wx - mean) / sqrt(variance + eps) + beta is one convolution with scaled weights and a
bias. In float32 the result differs by some 4e-6 of its size.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import EPSILON, NormalizedConvolution


class FusedConvolution(nn.Module):
    """A convolution with bias that replaces a convolution and its batch normalisation."""

    def __init__(self, separate: NormalizedConvolution) -> None:
        super().__init__()
        norm = separate.norm
        gain = norm.weight.double() * (norm.running_var.double() + EPSILON).rsqrt()
        weight = separate.weight.double() * gain.view(-1, 1, 1, 1)
        bias = norm.bias.double() - norm.running_mean.double() * gain
        self.weight = nn.Parameter(weight.float(), requires_grad=False)
        self.bias = nn.Parameter(bias.float(), requires_grad=False)
        self.stride = separate.stride
        self.padding = separate.padding
        self.dilation = separate.dilation

    def forward(self, x: Tensor) -> Tensor:
        """Convolve. x: (B, inputs, H, W). Returns (B, outputs, H / stride, W / stride)."""
        return F.conv2d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )


def fuse(detector: Detector) -> Detector:
    """Return a copy of the detector without normalisations; the original stays as it is on disk."""
    shared = {id(t): t for t in (*detector.parameters(), *detector.buffers())}
    fused = copy.deepcopy(detector, memo=dict(shared))  # shares tensors instead of copying them
    for module in list(fused.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, NormalizedConvolution):
                setattr(module, name, FusedConvolution(child))
    return fused.to(memory_format=torch.channels_last).eval()
