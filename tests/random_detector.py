"""Detectors with random weights whose activations stay in range, calibrated on images.

The activations of a freshly initialised ResNet explode over its blocks, and its class probabilities
are flat. Here each layer takes its scale from its first input, so that some regions are confident
and others are not.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.data.files.tensors import skip_init
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import scaled_batch
from a2cap.extract.detector.resnet import STRIDE, Architecture, FrozenBatchNorm, ResidualBlock
from a2cap.extract.detector.roi_pool import roi_pool

SPREADS = {
    "proposal_generator.rpn_head.objectness_logits": 2.0,
    "proposal_generator.rpn_head.anchor_deltas": 0.2,
    "roi_heads.box_predictor.cls_score": 3.0,
    "roi_heads.box_predictor.bbox_pred": 0.2,
    "roi_heads.box_predictor.attr_score": 3.0,
}
"""Layer -> standard deviation of its outputs, whose mean is 0."""

REGIONS = 8
"""Random regions per image from which the heads take their statistics."""


def random_detector(
    images: Sequence[NDArray[np.uint8]],
    architecture: Architecture,
    *,
    min_side: int,
    max_side: int,
    roi_size: int,
    seed: int = 0,
) -> Detector:
    """Return a detector with random weights; equal arguments give equal weights.

    images: (H, W, 3) uint8 BGR each. Sides and roi_size are those with which it will be run.
    """
    origin = f"random, seed {seed}"
    meta = caffe_meta(origin=origin, classes=architecture.classes)
    meta = meta.model_copy(update={"scale": (min_side, max_side)})
    generator = torch.Generator().manual_seed(seed)
    # PyTorch's own initialisation would draw from the global generator
    with torch.device("meta"), skip_init():
        detector = Detector(architecture, meta)
    detector = detector.to_empty(device="cpu").requires_grad_(False).eval()
    _initialise(detector, generator)
    blobs, _ = scaled_batch(images, scale=meta.scale, meta=meta)
    height, width = (min(blob.shape[axis] for blob in blobs) for axis in (1, 2))
    # cropped to the size that all cover, because statistics of padding would be wrong
    blob = torch.from_numpy(np.stack([blob[:, :height, :width] for blob in blobs]))
    hooks = list(_calibrating_hooks(detector, generator))
    with torch.inference_mode():
        maps = detector.backbone(blob)
        rpn = detector.proposal_generator.rpn_head
        hidden = torch.relu(rpn.conv(maps))
        rpn.objectness_logits(hidden)
        rpn.anchor_deltas(hidden)
        rois = _random_rois(len(images), width, height, generator)
        pooled = roi_pool(maps, rois, size=roi_size, scale=1 / STRIDE, chunk=len(rois))
        features = detector.roi_heads(torch.cat(list(pooled)))
        predictor = detector.roi_heads.box_predictor
        predictor.bbox_pred(features)
        predictor.attribute_logits(features, predictor(features))
    for hook in hooks:
        hook.remove()
    return detector


def _initialise(detector: Detector, generator: torch.Generator) -> None:
    for _, parameter in sorted(detector.named_parameters()):
        if parameter.ndim > 1:
            fan_in = parameter[0].numel()
            parameter.normal_(0, math.sqrt(2 / fan_in), generator=generator)
        else:
            parameter.zero_()
    for module in detector.modules():
        if isinstance(module, FrozenBatchNorm):
            module.weight.uniform_(0.5, 1.5, generator=generator)
            module.bias.normal_(0, 0.2, generator=generator)
    for module in detector.modules():
        if isinstance(module, ResidualBlock):
            # small beside the shortcut, so that the variance does not grow with depth
            (module.conv3 or module.conv2).norm.weight.mul_(0.25)


def _calibrating_hooks(detector: Detector, generator: torch.Generator):
    """Let each normalisation and head take its scale from what it is given."""

    def measure(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, FrozenBatchNorm)
        variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3), correction=0)
        # Exactly normal channels would hide a wrong epsilon or a missing mean from a parity test.
        jitter = torch.empty(2, len(mean)).uniform_(-0.1, 0.1, generator=generator)
        module.running_mean.copy_(mean + jitter[0] * variance.sqrt())
        module.running_var.copy_((variance * (1 + jitter[1])).clamp(min=1e-4))

    for name, module in detector.named_modules():
        if isinstance(module, FrozenBatchNorm):
            yield module.register_forward_pre_hook(measure)
        if name in SPREADS:
            yield module.register_forward_hook(
                lambda layer, inputs, output, spread=SPREADS[name]: _centred(layer, output, spread)
            )


def _centred(layer: nn.Module, output: Tensor, spread: float) -> Tensor:
    """Scale a layer so that each output has mean 0 and this deviation; return the new outputs.

    output: (B, channels) or (B, channels, H, W), made with a bias of 0.
    """
    # Without centring, the features that all regions share would give them all one class.
    axes = [axis for axis in range(output.ndim) if axis != 1]
    mean = output.mean(dim=axes)
    offset = output - mean.view(1, -1, *[1] * (output.ndim - 2))
    gain = spread / float(offset.square().mean().sqrt().clamp(min=1e-6))
    assert isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None
    layer.weight.mul_(gain)
    layer.bias.copy_(-mean * gain)
    return offset * gain


def _random_rois(images: int, width: int, height: int, generator: torch.Generator) -> Tensor:
    """Draw random boxes in each image: (images * REGIONS, 5) float32, pixels."""
    corners = torch.rand(images * REGIONS, 2, 2, generator=generator).sort(dim=1).values
    boxes = corners * torch.tensor([width - 1.0, height - 1.0])  # (K, corner, x or y)
    indices = torch.arange(images).repeat_interleave(REGIONS)
    return torch.cat([indices[:, None].float(), boxes.reshape(-1, 4)], dim=1)
