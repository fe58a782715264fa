"""Random weights calibrated on images: for smoke runs, benchmarks and parity tests only.

The activations of a freshly initialised ResNet-101 explode over its 33 blocks, and its class
probabilities are flat. Here each normalisation takes its statistics from the images, once, and the
classifiers are scaled so that some regions are confident and others are not.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.data.errors import InputError
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import scaled_batch
from a2cap.extract.detector.operators import roi_pool
from a2cap.extract.detector.resnet import STRIDE, Architecture, FrozenBatchNorm, ResidualBlock

BOXES_PER_IMAGE = 8
"""Random regions per image from which the heads take their statistics."""

LOGIT_SPREAD = 3.0
"""Standard deviation of class and attribute logits: probabilities then range from 0.01 to 0.99."""

OBJECTNESS_SPREAD = 2.0
DELTA_SPREAD = 0.2
"""Standard deviation of proposal logits, and of box deltas in anchor sizes."""

RESIDUAL_GAIN = 0.25
"""Weight of each block's residual relative to its shortcut, so that variance does not grow with
depth."""


def calibrate(
    images: Sequence[NDArray[np.uint8]],
    architecture: Architecture,
    *,
    min_side: int,
    max_side: int,
    roi_size: int,
    seed: int,
    advance: Callable[[int], object] = bool,
) -> Detector:
    """Return a detector with random weights calibrated on images.

    images: (H, W, 3) uint8 BGR each, of any sizes. Sides in pixels of the scaled image,
    roi_size in cells, both as the detector will be run. Equal arguments give equal weights on one
    machine with one number of threads. advance: called with 1 after each of the ResNet's blocks.
    Raises InputError without images.
    """
    if not images:
        raise InputError(
            "no images to calibrate random weights on; check that data.images holds some"
        )
    meta = caffe_meta(
        origin=f"calibrated-random, seed {seed}", classes=architecture.classes
    ).model_copy(update={"scale": (min_side, max_side)})
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):  # PyTorch's own initialisation would draw from the global generator
        detector = Detector(architecture, meta)
    detector = detector.to_empty(device="cpu").requires_grad_(False).eval()
    _initialise(detector, generator)
    blobs, _ = scaled_batch(images, scale=meta.scale, meta=meta)
    height, width = (min(blob.shape[axis] for blob in blobs) for axis in (1, 2))
    # cropped to the size that all cover, because statistics of padding would be wrong
    blob = torch.from_numpy(np.stack([blob[:, :height, :width] for blob in blobs]))
    with torch.inference_mode():
        maps = _forward_measured(detector.backbone, blob, generator, advance)
        head = detector.proposal_generator.rpn_head
        hidden = torch.relu(head.conv(maps))
        _centre(head.objectness_logits, head.objectness_logits(hidden), spread=OBJECTNESS_SPREAD)
        _centre(head.anchor_deltas, head.anchor_deltas(hidden), spread=DELTA_SPREAD)
        rois = _random_rois(len(images), width, height, generator)
        pooled = roi_pool(maps, rois, size=roi_size, scale=1 / STRIDE, chunk=len(rois))
        regions = torch.cat(list(pooled))
        features = _forward_measured(detector.roi_heads, regions, generator, advance)
        predictor = detector.roi_heads.box_predictor
        _centre(predictor.cls_score, predictor.cls_score(features), spread=LOGIT_SPREAD)
        _centre(predictor.bbox_pred, predictor.bbox_pred(features), spread=DELTA_SPREAD)
        logits = predictor.attribute_logits(features, predictor(features))
        if logits is not None:
            _centre(predictor.attr_score, logits, spread=LOGIT_SPREAD)
    return detector


def _initialise(detector: Detector, generator: torch.Generator) -> None:
    # random directions; calibration sets the scales
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
            (module.conv3 or module.conv2).norm.weight.mul_(RESIDUAL_GAIN)


def _forward_measured(
    network: nn.Module, x: Tensor, generator: torch.Generator, advance: Callable[[int], object]
) -> Tensor:
    """Run a network in which each normalisation takes its statistics from its input."""

    def measure(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, FrozenBatchNorm)
        variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3), correction=0)
        # Exactly normal channels would hide a wrong epsilon or a missing mean from a parity test.
        jitter = torch.empty(2, len(mean)).uniform_(-0.1, 0.1, generator=generator)
        module.running_mean.copy_(mean + jitter[0] * variance.sqrt())
        module.running_var.copy_((variance * (1 + jitter[1])).clamp(min=1e-4))

    hooks = [
        module.register_forward_pre_hook(measure)
        for module in network.modules()
        if isinstance(module, FrozenBatchNorm)
    ] + [
        module.register_forward_hook(lambda *_: advance(1) and None)
        for module in network.modules()
        if isinstance(module, ResidualBlock)
    ]
    try:
        output: Tensor = network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return output


def _centre(layer: nn.Conv2d | nn.Linear, output: Tensor, *, spread: float) -> None:
    """Scale a layer so that each of its outputs has mean 0 and the given standard deviation.

    output: (B, channels) or (B, channels, H, W), the layer's output with its bias at 0.
    """
    # Without centring, the features that all regions share would give them all one class.
    axes = [axis for axis in range(output.ndim) if axis != 1]
    mean = output.mean(dim=axes)
    deviation = (output - mean.view(1, -1, *[1] * (output.ndim - 2))).square().mean().sqrt()
    gain = spread / float(deviation.clamp(min=1e-6))
    layer.weight.mul_(gain)
    assert layer.bias is not None
    layer.bias.copy_(-mean * gain)


def _random_rois(images: int, width: int, height: int, generator: torch.Generator) -> Tensor:
    """Draw random boxes in each image: (images * BOXES_PER_IMAGE, 5) float32, pixels."""
    count = images * BOXES_PER_IMAGE
    corners = torch.rand(count, 2, 2, generator=generator).sort(dim=1).values
    boxes = corners * torch.tensor([width - 1.0, height - 1.0])  # (K, corner, x or y)
    indices = torch.arange(images).repeat_interleave(BOXES_PER_IMAGE)
    return torch.cat([indices[:, None].float(), boxes.reshape(count, 4)], dim=1)
