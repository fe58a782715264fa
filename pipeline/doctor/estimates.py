"""Estimates of the disk space and memory of stages, computed from the configuration.

Peaks measured with one process on a CPU and torch 2.15, minus 0.54 GiB for the libraries; the
estimate is in parentheses:

- default detector 1.19 GiB (1.08), with `roi_size` 7 0.80 (0.74), ResNet-18 0.50 (0.39);
- default captioner, 10,000 tokens, 50 regions 1.85 GiB (1.80), 2 layers of width 128 0.47 (0.51).
"""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from a2cap.data.errors import WeightsError
from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import CHUNK, Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.grid import grid_width
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.config import TransformerConfig
from a2cap.pipeline.config import Config
from a2cap.pipeline.training.detector.config import DetectorConfig

PUBLISHED_WIDTH = 2048
"""Feature width F of the published detectors, for weights without it in their header."""

_CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"
_FLOAT_BYTES = 4
_CHECKPOINTS = 4
"""Checkpoints on the disk during a write: the two newest, the best, and the new one."""


def feature_width(config: ExtractConfig, weights: Path | None) -> int:
    """Return the feature width F; `weights` is None for calibrated-random ones.

    Raises WeightsError if a safetensors file is damaged.
    """
    if config.boxes == "grid":
        return grid_width(config)
    if weights is None:
        return Architecture(depth=config.depth, width=config.width).feature_width
    with weights.open("rb") as file:
        is_safetensors = file.read(9)[8:] == b"{"
    if not is_safetensors:
        return PUBLISHED_WIDTH
    try:
        with safe_open(weights, framework="np") as tensors:
            if _CLASSIFIER not in tensors.keys():  # noqa: SIM118
                return PUBLISHED_WIDTH
            shape: list[int] = tensors.get_slice(_CLASSIFIER).get_shape()
            return shape[1]
    except SafetensorError as error:
        raise WeightsError(
            f"weights {weights.name!r} are damaged: {error}; download or create them again"
        ) from error


def detector_memory(config: ExtractConfig, weights: Path | None, width: int) -> int:
    """Return the bytes of one image: the weights twice, a chunk of regions, the first layer."""
    if weights is not None:
        parameters = weights.stat().st_size
    else:
        parameters = _detector_bytes(Architecture(depth=config.depth, width=config.width))
    if config.boxes == "grid":
        return 2 * parameters + 6 * config.min_side * config.max_side * config.width * _FLOAT_BYTES
    regions = CHUNK * config.roi_size**2 * width * _FLOAT_BYTES
    first_layer = config.min_side * config.max_side * config.width * _FLOAT_BYTES
    return 2 * parameters + 3 * regions + first_layer


def captioner_parameters(config: TransformerConfig, *, width: int, vocabulary: int) -> int:
    """Count a captioner's parameters on the meta device, without allocating them."""
    with torch.device("meta"):
        captioner = TransformerCaptioner(config, feature_width=width, vocabulary_size=vocabulary)
    return sum(parameter.numel() for parameter in captioner.parameters())


def training_memory(config: Config, *, parameters: int, vocabulary: int, processes: int = 1) -> int:
    """Return the bytes of a training step on each of `processes` ranks.

    Covers weights, gradients, Adam's two moments, and the forward and backward pass over the tokens
    of one accumulated part of the batch.
    """
    train = config.train
    captions = train.captions_per_image if train.grouping == "image" else 1
    items = math.ceil(train.batch_size / (train.accumulate * processes))
    tokens = items * captions * (config.preprocess.max_length + 1)
    return _step_memory(config, parameters=parameters, vocabulary=vocabulary, tokens=2 * tokens)


def self_critical_memory(
    config: Config, *, parameters: int, vocabulary: int, processes: int = 1
) -> int:
    """Return the bytes of a self-critical step on each of `processes` ranks.

    One pass over the samples, and one over reference captions if `scst.mask` is "continued".
    """
    scst = config.scst
    images = math.ceil(scst.batch_size / (scst.accumulate * processes))
    tokens = images * scst.samples * scst.max_length
    if scst.mask == "continued":
        tokens += images * scst.captions_per_image * (config.preprocess.max_length + 1)
    return _step_memory(config, parameters=parameters, vocabulary=vocabulary, tokens=tokens)


def _step_memory(config: Config, *, parameters: int, vocabulary: int, tokens: int) -> int:
    model, regions = config.model, config.train.max_regions or config.extract.max_regions
    layer = 12 * model.width + 2 * model.feed_forward + 3 * model.heads * regions
    per_token = 5 * vocabulary + model.decoder_layers * layer
    return _FLOAT_BYTES * (4 * parameters + tokens * per_token)


def training_disk(parameters: int) -> int:
    """Return the bytes of the checkpoints, each with Adam's two moments, and of the captioner."""
    return _FLOAT_BYTES * parameters * (3 * _CHECKPOINTS + 1)


def detector_training_disk(config: DetectorConfig) -> int:
    """Return the minimum bytes of a detector's checkpoints: one class, no attributes."""
    architecture = Architecture(
        depth=config.depth,
        width=config.width,
        classes=1,
        attributes=0,
        anchors=len(config.anchor_sizes) * len(config.anchor_ratios),
        proposal_width=config.proposal_width,
        embedding_width=0,
        attribute_width=0,
    )
    states = {"sgd": 1, "adamw": 2}[config.optimiser]
    return _detector_bytes(architecture) * ((1 + states) * _CHECKPOINTS + 1)


def _detector_bytes(architecture: Architecture) -> int:
    with torch.device("meta"):
        meta = caffe_meta(origin="estimate", classes=architecture.classes)
        detector = Detector(architecture, meta)
    return _FLOAT_BYTES * sum(int(tensor.numel()) for tensor in detector.state_dict().values())
