"""Features of a convolutional map: its cells as regions, or given boxes of any detector.

The map of any layer of a torchvision VGG, ResNet, AlexNet or GoogLeNet, or the last one of an
EfficientNet-Lite or timm network, is pooled to n x n cells by adaptive means, as in
ImageCaptioning.pytorch (14 x 14 in its scripts/prepro_feats.py). Jiang et al. 2020
(arXiv:2001.03615) compare grids with regions.
Of an EfficientNet-Lite, boxes are pooled by RoIAlign (He et al. 2017, arXiv:1703.06870) and means.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.data.errors import ConfigError, InputError, WeightsError
from a2cap.data.files.atomic import replacing
from a2cap.data.files.tensors import save_tensors
from a2cap.data.regions import NO_CLASS, Regions, cell_boxes
from a2cap.extract.detector.input import (
    BATCH,
    Blob,
    Boxes,
    Pixels,
    batches_of_one_size,
    check_boxes,
    rounded_blob,
    rounded_size,
)
from a2cap.extract.detector.proposal_precision import warn_about_mixed_precision
from a2cap.extract.detector.proposals import batch_rois
from a2cap.extract.detector.roi_pool import roi_align
from a2cap.extract.detector.started_batches import Pending, StartedBatches, copied, moved
from a2cap.extract.efficientnet_lite import STRIDE, EfficientNetLite
from a2cap.extract.extract_config import BASE_KEY, GRID_KEY, LITE, ExtractConfig, GridBackbone
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.extract.timm_backbone import PREFIX as TIMM
from a2cap.extract.timm_backbone import TimmBackbone
from a2cap.extract.torchvision_module import torchvision_module
from a2cap.extract.weights.differences import added
from a2cap.extract.weights.load import load_public
from a2cap.extract.weights.normalised_vgg import is_normalised_vgg, torchvision_tensors
from a2cap.extract.weights.torch_files import is_safetensors, load_safetensors
from a2cap.extract.weights.values import check_values

_MEAN = (0.406 * 255, 0.456 * 255, 0.485 * 255)
_TOGETHER = 100  # boxes that are pooled at once
_CROP = 224  # pixels of a side, as torchvision's networks were trained
_DEVIATION = (0.225 * 255, 0.224 * 255, 0.229 * 255)
"""Statistics of ImageNet in blue, green and red, grey levels (torchvision.transforms)."""

_OF_ONE_SIDE = (EfficientNetLite, TimmBackbone)
"""Backbones with a square size of their own, whose last map is pooled."""

_CLASSIFIERS = ("fc.", "classifier.", "aux1.", "aux2.")
"""Modules of torchvision's networks that a state dict need not have."""
_UNUSED = "num_batches_tracked"  # which files of old versions of torch lack


class GridExtractor:
    """A backbone that turns an image into cells or regions of given boxes, as `Extractor` does.

    differences: the file that the weights were read from, if it holds those from a wheel's.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        *,
        config: ExtractConfig,
        device: str = "cpu",
        differences: bytes | None = None,
    ) -> None:
        self.config = config.model_copy(update={"precision": config.precision_in_key})
        self.device = torch.device(device)
        self._differences = differences
        self._batches = StartedBatches()
        network, self._weights = map_network(config, weights)
        self._map = network.to(self.device)
        if self.config.precision == "mixed":
            warn_about_mixed_precision(config, self.device)
            # bfloat16 convolutions are half as fast again on this layout
            self._map.to(memory_format=torch.channels_last)
        # not by `grid_width`: the first operation on the meta device imports torch's compiler
        self.feature_width = _channels(self._map, config)

    def __call__(self, image: Pixels, boxes: Boxes | None = None) -> Regions:
        """Return the cells of one image, row by row, or its given boxes in their order.

        image: (H, W, 3) uint8 BGR; boxes: (R, 4) x1 y1 x2 y2 in pixels of it, ignored for a grid;
        without any, the whole image is the region. Features are float32. Raises InputError where
        the image is too thin, or boxes are unordered or outside of it.
        """
        return self.extract_many([image], [boxes])[0]

    def extract_many(
        self, images: Sequence[Pixels], boxes: Sequence[Boxes | None]
    ) -> list[Regions]:
        """Return the regions of several images, in order, equal to those of each image alone.

        On a GPU images that are scaled to one size pass the network together: their results equal
        single ones to float32 rounding, with `mixed` to bfloat16's.
        """
        return self.start(images, boxes)()

    def start(self, images: Sequence[Pixels], boxes: Sequence[Boxes | None]) -> Pending:
        """Start `extract_many`, as `Extractor.start` does."""
        inputs = [self._input(image, b) for image, b in zip(images, boxes, strict=True)]
        blobs = {index: blob for index, (_, blob, _) in enumerate(inputs)}
        # together, images of EfficientNet-Lite take twice as long on a CPU
        batches = batches_of_one_size(blobs, most=1 if self.device.type == "cpu" else BATCH)
        return self._batches.start(batches, lambda batch: self._extract([inputs[i] for i in batch]))

    def _extract(self, inputs: Sequence[tuple[Pixels, Blob, Boxes]]) -> Pending:
        """Start the regions of images that are scaled to one size, each as of `_input`."""
        images, blobs, boxes = zip(*inputs, strict=True)
        # torchvision's networks take red first
        rgb = moved(torch.from_numpy(np.stack([blob[::-1] for blob in blobs])), self.device)
        is_mixed = self.config.precision == "mixed"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_mixed):
            feature_map = self._map(rgb)["map"].float()
        if self.config.boxes == "grid":
            cells = F.adaptive_avg_pool2d(feature_map, self.config.grid_size)
            pooled = cells.flatten(2).transpose(1, 2).flatten(0, 1)  # -> (B * n * n, C)
        else:
            pooled = self._pooled(feature_map, images, boxes)
        wait = copied(pooled)
        ends = np.cumsum([len(b) for b in boxes])[:-1]

        def finish() -> list[Regions]:
            return [
                Regions(
                    boxes=b,
                    features=features.copy(),  # which the batch does not outlive
                    scores=np.ones(len(b), np.float32),
                    class_ids=np.full(len(b), NO_CLASS, np.int32),
                    attribute_ids=None,
                    width=image.shape[1],
                    height=image.shape[0],
                )
                for image, b, features in zip(images, boxes, np.split(wait(), ends), strict=True)
            ]

        return finish

    def _pooled(
        self, feature_map: Tensor, images: Sequence[Pixels], boxes: Sequence[Boxes]
    ) -> Tensor:
        """Return the mean of the map in each box: (B, C, h, w), (R, 4) of each -> (sum of R, C)."""
        network, scaled = cast(EfficientNetLite, self._map), []
        # RoIAlign takes the first cell to be half a stride from the edge
        shift = np.float32(STRIDE / 2 - network.first_centre())
        for image, image_boxes in zip(images, boxes, strict=True):
            height, width = image.shape[:2]
            factors = np.array([network.side / width, network.side / height] * 2, np.float32)
            scaled.append(torch.from_numpy(image_boxes * factors + shift))
        rois = moved(batch_rois(scaled).float(), self.device)
        aligned = roi_align(
            feature_map, rois, size=self.config.grid_size, scale=1 / STRIDE, chunk=_TOGETHER
        )
        return torch.cat([cells.mean(dim=(2, 3)) for cells in aligned])

    def _input(self, image: Pixels, boxes: Boxes | None) -> tuple[Pixels, Blob, Boxes]:
        """Return an image, its scaled and normalised form, (3, H', W'), and its cells or boxes."""
        (height, width), config = image.shape[:2], self.config
        side, mean, deviation = input_of(self._map)
        is_cropped = config.grid_crop == "centre" and config.boxes == "grid"
        if isinstance(self._map, _OF_ONE_SIDE) and not is_cropped:
            size = side, side
        else:
            shorter = round(side * 8 / 7) if is_cropped else config.min_side
            longer = 16 * shorter if is_cropped else config.max_side
            size = rounded_size(height=height, width=width, min_side=shorter, max_side=longer)
        top, left, rows, columns = 0, 0, *size
        if is_cropped:
            if min(size) < side:
                raise InputError(f"image is too thin: {width} x {height} pixels; leave it out")
            top, left, rows, columns = (size[0] - side) // 2, (size[1] - side) // 2, side, side
        centred = rounded_blob(image, size=size, mean=mean)
        centred = centred[:, top : top + rows, left : left + columns]
        centred /= np.array(deviation, np.float32)[:, None, None]
        x, y = width / size[1], height / size[0]
        if config.boxes == "grid":
            area = left * x, top * y, (left + columns) * x, (top + rows) * y
            boxes = cell_boxes(config.grid_size, area)
        elif boxes is None or not len(boxes):
            boxes = np.array([[0, 0, width, height]], np.float32)
        check_boxes(boxes, height=height, width=width)
        return image, centred, boxes

    def save(self, path: Path) -> None:
        """Write the backbone's weights atomically; equal weights give equal bytes.

        Differences stay what they are, so that the record names the file that was read.
        """
        with replacing(path) as partial:
            if self._differences is not None:
                partial.write_bytes(self._differences)
            else:
                save_tensors(partial, self._weights, {GRID_KEY: self.config.grid_backbone})

    def record(self, weights: Path) -> ExtractorRecord:
        """Return what determines the features; weights: the file that `save` wrote."""
        config, cells = self.config, self.config.grid_size
        network = f"{config.grid_layer} of torchvision's {config.grid_backbone}"
        if isinstance(self._map, _OF_ONE_SIDE):
            network = f"{config.grid_backbone}"
        is_grid = config.boxes == "grid"
        summary = f"{cells} x {cells} grid of {network}" if is_grid else f"{network}, given boxes"
        return ExtractorRecord.create(
            weights,
            config,
            device=self.device,
            summary=summary,
            feature_width=self.feature_width,
        )


def map_network(
    config: ExtractConfig, weights: Mapping[str, Tensor]
) -> tuple[nn.Module, Mapping[str, Tensor]]:
    """Return the backbone up to the layer that is pooled, and those of the weights that count.

    The network returns {"map": (B, C, h, w)} for (B, 3, H, W) images, red first, normalised as
    `input_of` states. Raises WeightsError for the weights of another network.
    """
    backbone = _backbone(config.grid_backbone)
    tensors = _fitting(backbone, weights, config.grid_backbone)
    _module(backbone).load_state_dict(tensors, strict=False)
    return _up_to(backbone, config.grid_layer).eval(), tensors


def check_grid_weights(weights: Mapping[str, Tensor], name: GridBackbone, *, file: str) -> None:
    """Raise WeightsError, which names their file, for the weights of another network."""
    with torch.device("meta"):
        _fitting(_backbone(name), weights, name, file=f" {file!r}")


Levels = tuple[float, float, float]
"""Grey levels of blue, green and red, in [0, 255]."""


def input_of(network: nn.Module) -> tuple[int, Levels, Levels]:
    """Return the pixels of a side that a network was trained with, and the mean and deviation."""
    if not isinstance(network, _OF_ONE_SIDE):
        return _CROP, _MEAN, _DEVIATION
    mean, deviation = (
        (255 * blue, 255 * green, 255 * red)
        for red, green, blue in (network.mean, network.deviation)
    )
    return network.side, mean, deviation


def load_grid_weights(path: Path, backbone: GridBackbone) -> dict[str, Tensor]:
    """Load tensors by torchvision's keys from a file that `save` wrote, or from a state dict.

    The VGG-19 of style transfer (`weights.normalised_vgg`) is one, too, and differences from the
    weights of a wheel (`weights.differences`).

    Raises WeightsError where the file is damaged, unsafe, or of another backbone.
    """
    is_ours = is_safetensors(path)
    tensors, metadata = load_safetensors(path) if is_ours else (load_public(path), {})
    base = metadata.get(BASE_KEY)
    if base is not None:
        tensors = added(tensors, base)
    check_values(tensors, name=path.name)
    if is_normalised_vgg(tensors):
        mean, deviation = (torch.tensor(bgr[::-1]) / 255 for bgr in (_MEAN, _DEVIATION))
        return torchvision_tensors(tensors, mean, deviation)
    if not is_ours:
        return tensors
    written = metadata.get(GRID_KEY, base)
    if written != backbone:
        raise WeightsError(
            f"weights {path.name!r} are of {written or 'another network'}, extract.grid_backbone "
            f"is {backbone!r}; name weights of the latter, or correct extract.grid_backbone"
        )
    return tensors


@cache  # several checks ask
def grid_width(config: ExtractConfig, side: int | None = None) -> int:
    """Return F, the channels of the layer; ConfigError without it, or for a side not taken."""
    fields = "encoder.side to another, or to null" if side else "extract.grid_backbone to another"
    with torch.device("meta"):
        network = grid_network(config)
        side = side or input_of(network)[0]
        try:
            return _channels(network, config, side)
        except (AssertionError, RuntimeError) as error:
            problem = f"{config.grid_backbone} takes no images of {side} pixels a side: {error}"
            raise ConfigError(f"{problem.rstrip('.')}; set {fields}") from error


def grid_parameters(config: ExtractConfig) -> int:
    """Return the numbers of the backbone up to the layer."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in grid_network(config).parameters())


def grid_network(config: ExtractConfig) -> nn.Module:
    """Return the backbone up to the layer, with random weights."""
    return _up_to(_backbone(config.grid_backbone), config.grid_layer).eval()


def _channels(network: nn.Module, config: ExtractConfig, side: int | None = None) -> int:
    """Return the channels of a network's map; ConfigError where it has none."""
    side = side or input_of(network)[0]
    device = next(network.parameters()).device
    with torch.inference_mode():
        feature_map: Tensor = network(torch.zeros(1, 3, side, side, device=device))["map"]
    if feature_map.ndim != 4:
        raise ConfigError(
            f"extract.grid_layer has no spatial map: {config.grid_layer!r} of "
            f"{config.grid_backbone}; name a convolutional layer"
        )
    return feature_map.shape[1]


def _backbone(name: GridBackbone) -> nn.Module:
    if name.startswith(TIMM):
        return TimmBackbone(name)
    if name in LITE:
        return EfficientNetLite(name)
    # torchvision's weights of GoogLeNet were converted from a network with another normalisation
    is_googlenet = name == "googlenet"
    options = {"transform_input": True, "init_weights": False} if is_googlenet else {}
    return cast(nn.Module, torchvision_module("models").get_model(name, weights=None, **options))


def _module(backbone: nn.Module) -> nn.Module:
    """Return the module that has the tensors of a backbone by the names of their files."""
    return backbone.network if isinstance(backbone, TimmBackbone) else backbone


def _fitting(
    backbone: nn.Module, weights: Mapping[str, Tensor], name: str, *, file: str = ""
) -> Mapping[str, Tensor]:
    """Return the tensors of a state dict that count; WeightsError for another network."""
    tensors = _module(backbone).state_dict()
    omitted = getattr(backbone, "classifiers", _CLASSIFIERS)
    expected = {key: value for key, value in tensors.items() if not key.startswith(omitted)}
    expected = {key: value for key, value in expected.items() if not key.endswith(_UNUSED)}
    fits = {key: weights[key] for key in expected if key in weights}
    wrong = [key for key, value in fits.items() if value.shape != expected[key].shape]
    # a deeper network of the same family has every tensor of this one, and more
    unknown = () if isinstance(backbone, EfficientNetLite) else weights.keys() - tensors.keys()
    if problems := sorted(expected.keys() - fits.keys()) or wrong or sorted(unknown):
        raise WeightsError(
            f"weights{file} do not fit {name}: {len(problems):,} tensors are missing, unknown or "
            f"of another shape, first {problems[0]}; name its state dict, or correct "
            "extract.grid_backbone"
        )
    return fits


def _up_to(backbone: nn.Module, layer: str) -> nn.Module:
    """Return the backbone up to a layer, with its output as "map"."""
    if isinstance(backbone, _OF_ONE_SIDE):
        return backbone
    extraction = torchvision_module("models.feature_extraction")
    try:
        # the auxiliary classifiers of GoogLeNet are of training alone
        made = extraction.create_feature_extractor(
            backbone, {layer: "map"}, suppress_diff_warning=True
        )
        return cast(nn.Module, made)
    except ValueError as error:
        layers = [name for name, module in backbone.named_modules() if name and "." not in name]
        raise ConfigError(
            f"the backbone has no layer {layer!r} (extract.grid_layer); name one such as "
            f"{', '.join(repr(name) for name in layers[:-1])}, or one below it"
        ) from error
