"""What a stage will take of disk and memory, reckoned from its configuration.

Measured peaks, one process on a CPU with torch 2.15, less 0.54 GiB for the libraries: the detector
of the defaults 1.19 GiB (here 1.08), with `roi_size` 7 0.80 (0.74), ResNet-18 0.50 (0.39); the
captioner of the defaults with 10,000 words and 50 regions 1.85 (1.80), with 2 layers of 128 0.47
(0.51).
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
from a2cap.model.config import ModelConfig
from a2cap.pipeline.config import Config
from a2cap.pipeline.training.detector.config import DetectorConfig

PUBLISHED_WIDTH = 2048
"""F of the published detectors, for weights whose header does not say."""

_CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"
_FLOAT = 4
_CHECKPOINTS = 4
"""Checkpoints on the disk while one is written: the two newest, the best, and the new one."""


def feature_width(config: ExtractConfig, weights: Path | None) -> int:
    """F, the numbers per region; weights: the detector's file, None for calibrated-random ones.

    Raises WeightsError where a safetensors file cannot be read.
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
            f"weights {weights.name!r} are damaged: {error}; download or make them again"
        ) from error


def detector_memory(config: ExtractConfig, weights: Path | None, width: int) -> int:
    """Bytes for an image's regions: the weights twice, a chunk of regions and the first layer."""
    parameters = weights.stat().st_size if weights is not None else _calibrated_bytes(config)
    if config.boxes == "grid":
        return 2 * parameters + 6 * config.min_side * config.max_side * config.width * _FLOAT
    regions = CHUNK * config.roi_size**2 * width * _FLOAT
    first_layer = config.min_side * config.max_side * config.width * _FLOAT
    return 2 * parameters + 3 * regions + first_layer


def captioner_parameters(config: ModelConfig, *, width: int, vocabulary: int) -> int:
    """Numbers in a captioner of these sizes; none of them is made."""
    with torch.device("meta"):
        captioner = TransformerCaptioner(config, feature_width=width, vocabulary_size=vocabulary)
    return sum(parameter.numel() for parameter in captioner.parameters())


def training_memory(config: Config, *, parameters: int, vocabulary: int, processes: int = 1) -> int:
    """Bytes that a step takes of each of so many processes.

    Weights, gradients, two moments, and both passes over the tokens of a part of the batch.
    """
    train, model = config.train, config.model
    captions = train.captions_per_image if train.grouping == "image" else 1
    items = math.ceil(train.batch_size / (train.accumulate * processes))
    tokens = items * captions * (config.preprocess.max_length + 1)
    regions = train.max_regions or config.extract.max_regions
    layer = 12 * model.width + 2 * model.feed_forward + 3 * model.heads * regions
    of_token = 10 * vocabulary + 2 * model.decoder_layers * layer
    return _FLOAT * (4 * parameters + tokens * of_token)


def self_critical_memory(
    config: Config, *, parameters: int, vocabulary: int, processes: int = 1
) -> int:
    """Bytes that a self-critical step takes of each of so many processes, as `training_memory`.

    There is one pass over the samples, and where the masks are continued one over true captions.
    """
    scst, model = config.scst, config.model
    images = math.ceil(scst.batch_size / (scst.accumulate * processes))
    tokens = images * scst.samples * scst.max_length
    if scst.mask == "continued":
        tokens += images * scst.captions_per_image * (config.preprocess.max_length + 1)
    regions = config.train.max_regions or config.extract.max_regions
    layer = 12 * model.width + 2 * model.feed_forward + 3 * model.heads * regions
    return _FLOAT * (4 * parameters + tokens * (5 * vocabulary + model.decoder_layers * layer))


def training_disk(parameters: int) -> int:
    """Bytes of a training's checkpoints, each with two moments, and of the trained captioner."""
    return _FLOAT * parameters * (3 * _CHECKPOINTS + 1)


def detector_training_disk(config: DetectorConfig) -> int:
    """Least bytes of a detector's training, as if it knew one class and no attribute."""
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


def _calibrated_bytes(config: ExtractConfig) -> int:
    return _detector_bytes(Architecture(depth=config.depth, width=config.width))


def _detector_bytes(architecture: Architecture) -> int:
    with torch.device("meta"):
        meta = caffe_meta(origin="estimate", classes=architecture.classes)
        detector = Detector(architecture, meta)
    return _FLOAT * sum(int(tensor.numel()) for tensor in detector.state_dict().values())
