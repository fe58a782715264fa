"""Estimates of the disk space and memory of stages, computed from the configuration.

Peaks measured with one process on a CPU and torch 2.15, minus 0.54 GiB for the libraries; the
estimate is in parentheses:

- default detector 1.19 GiB (1.08), with `roi_size` 7 0.80 (0.74), ResNet-18 0.50 (0.39);
- default captioner, 10,000 tokens, 50 regions 1.85 GiB (1.80), 2 layers of width 128 0.47 (0.51);
- EfficientNet-Lite2, 32 images of side 160 0.48 GiB (0.41), with `captions` 0.60 (0.58), all of it
  on side 260 5.21 (5.14), in bfloat16 3.81 (2.61), where a CPU keeps depthwise maps in float32.
"""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from a2cap.data.errors import WeightsError
from a2cap.data.files.tensors import skip_init
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import CHUNK_OF_GPU, Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.grid import grid_network, grid_width, input_of
from a2cap.extract.trainable_encoder import train_last
from a2cap.extract.weights.torch_files import is_safetensors
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.training.checkpoints import training_disk
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.encoder.objectives import DECODER

PUBLISHED_WIDTH = 2048  # for weights without a width in their header
_FIRST_CHANNELS = 64  # of the first layer of a published network

_CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"
_FLOAT_BYTES = 4
_FEW = 8  # tokens and numbers of a region, where their count does not matter


def feature_width(config: ExtractConfig, weights: Path) -> int:
    """Return the feature width F; raise WeightsError if a safetensors file is damaged."""
    if config.pools_map:
        return grid_width(config)
    try:
        if is_safetensors(weights):  # other layouts cannot be asked without loading them
            with safe_open(weights, framework="np") as tensors:
                if _CLASSIFIER in tensors.keys():  # noqa: SIM118
                    return int(tensors.get_slice(_CLASSIFIER).get_shape()[1])
        return PUBLISHED_WIDTH
    except SafetensorError as error:
        raise WeightsError(
            f"weights {weights.name!r} are damaged: {error}; download or create them again"
        ) from error


def detector_memory(config: ExtractConfig, weights: int, width: int) -> int:
    """Return the bytes of one image: the weights twice, a chunk of regions, the first layer.

    weights: bytes of their file.
    """
    first_layer = config.min_side * config.max_side * _FIRST_CHANNELS * _FLOAT_BYTES
    if config.pools_map:
        return 2 * weights + 6 * first_layer
    regions = CHUNK_OF_GPU * config.roi_size**2 * width * _FLOAT_BYTES
    return 2 * weights + 3 * regions + first_layer


def captioner_parameters(config: ModelConfig, *, width: int, vocabulary: int) -> int:
    """Count a captioner's parameters, whose memory stays untouched."""
    with skip_init():  # the meta device would load PyTorch's compiler, for two seconds
        captioner = make_captioner(config, feature_width=width, vocabulary_size=vocabulary)
    return sum(parameter.numel() for parameter in captioner.parameters())


def step_memory(config: Config, *, tokens: int, parameters: int, vocabulary: int) -> int:
    """Return the bytes of a step: weights, gradients, Adam's two moments, and the tokens.

    Runs one caption; the parameters stay uninitialised, as only sizes count.
    """
    regions = config.train.max_regions or config.extract.max_regions
    few_tokens = max(_FEW, config.model.least_vocabulary)
    with skip_init():
        captioner = make_captioner(
            config.model, feature_width=_FEW, vocabulary_size=few_tokens
        ).train()
    is_region = torch.zeros(1, regions, dtype=torch.bool)
    is_region[:, 0] = True  # of one region: spatial rejects images of more regions than cells
    boxes = torch.zeros(1, regions, 6 + regions)  # with relations, which few kinds read
    memory = captioner.encode(torch.zeros(1, regions, _FEW), boxes, is_region)

    def kept(length: int) -> int:
        one_caption = torch.full((1, 1, length), _FEW - 1)
        return _kept_bytes(captioner, lambda: captioner.score(memory, one_caption))

    # a token keeps what two keep more than one, and its logits
    per_token = 5 * vocabulary + (kept(2) - kept(1)) // _FLOAT_BYTES
    return _FLOAT_BYTES * (4 * parameters + tokens * per_token)


def encoder_memory(config: Config, ranks: int, *, vocabulary: int) -> int:
    """Return the bytes of a step on a rank: the weights, those trained four times, and the maps.

    Each image has those that gradients need, and the largest twice, which a layer reads and writes.
    With the objective `captions` the step of its decoder is added; vocabulary: its tokens.
    """
    encoder, shapes = config.encoder, list[torch.Size]()

    def record(module: nn.Module, inputs: object, output: object) -> None:
        shapes.extend(tensor.shape for tensor in tree_leaves(output))

    with torch.device("meta"):
        network = grid_network(config.extract)
        train_last(network, encoder.trained)
        for module in network.modules():
            module.register_forward_hook(record)
        side = encoder.side or input_of(network)[0]
        kept = _kept_bytes(network, lambda: network(torch.zeros(1, 3, side, side)))
    images = math.ceil(encoder.batch_size / (encoder.accumulate * ranks))
    maps = images * (kept + 2 * _FLOAT_BYTES * max(map(math.prod, shapes)))
    weights = sum(p.numel() * (4 if p.requires_grad else 1) for p in network.parameters())
    needed = _FLOAT_BYTES * weights + maps // (2 if encoder.precision == "bf16" else 1)
    if encoder.objective == "words":
        return needed
    tokens = images * encoder.captions_per_image * (config.preprocess.max_length + 1)
    _, width, *cells = shapes[-1]  # (1, C, h, w) of the map
    train = config.train.model_copy(update={"max_regions": math.prod(cells)})
    step = config.model_copy(update={"model": DECODER, "train": train})
    parameters = captioner_parameters(DECODER, width=width, vocabulary=vocabulary)
    return needed + step_memory(step, tokens=tokens, parameters=parameters, vocabulary=vocabulary)


def _kept_bytes(network: nn.Module, forward: Callable[[], object]) -> int:
    """Return the bytes that a forward pass keeps for its gradient beside the network's tensors."""
    saved: list[torch.Tensor] = []
    with saved_tensors_hooks(saved.append, torch.as_tensor):
        forward()
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in saved}
    for tensor in (*network.parameters(), *network.buffers()):
        storages.pop(tensor.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in storages.values())


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
    states = {"sgd": 1, "adamw": 2}[config.optimiser]  # momentum, or two moments
    return training_disk(detector_bytes(architecture) // _FLOAT_BYTES, states=states)


def detector_bytes(architecture: Architecture) -> int:
    """Return the bytes of a detector's tensors, without allocating them."""
    with torch.device("meta"), skip_init():
        meta = caffe_meta(origin="estimate", classes=architecture.classes)
        detector = Detector(architecture, meta)
    return _FLOAT_BYTES * sum(int(tensor.numel()) for tensor in detector.state_dict().values())
