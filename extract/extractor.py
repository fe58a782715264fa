"""Bottom-up features (Anderson et al. 2018, section 3.1): regions of an image with their features.

Regions are proposals of a detector, or given boxes. Their features belong to the boxes as proposed,
not refined by class, as in bottom-up-attention @514e561.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig, stated_settings
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector, RegionPredictions
from a2cap.extract.detector.fused import fuse
from a2cap.extract.detector.input import Pixels, ScaledSize, batches_of_one_size, scaled_batch
from a2cap.extract.detector.mixed_precision import SelectionHeads, chosen_precision
from a2cap.extract.detector.proposals import SMALLEST_REGION, batch_rois
from a2cap.extract.detector.selection import select_regions
from a2cap.extract.grid import GridExtractor, load_grid_weights
from a2cap.extract.record import ExtractorRecord
from a2cap.extract.weights.load import load_detector, save_detector

MARGIN = 8
"""Proposals, beside a tenth of the regions, that are computed exactly and may be rejected."""

logger = logging.getLogger(__name__)

Boxes = NDArray[np.float32]


class Extractor:
    """A detector that turns an image, and boxes if they are given, into Regions.

    Equal images give equal regions, whatever was extracted before.
    """

    def __init__(self, detector: Detector, *, config: ExtractConfig, device: str = "cpu") -> None:
        self.detector = detector
        self.device = torch.device(device)
        if conflict := config.conflict(stated_settings(detector.meta.model_dump())):
            logger.warning("%s", conflict)
        procedure, own = config.procedure, detector.meta
        self.meta = own if procedure == "weights" else own.with_procedure(procedure)
        if config.backend == "native":
            network = fuse(detector)
        else:
            from a2cap.extract.detectron2_backend import rebuild

            network = rebuild(detector)
        self._network = network.to(self.device)
        precision = chosen_precision(config, self._network, self.device)
        self.config = config.model_copy(update={"precision": precision})
        self._selection = SelectionHeads(self._network) if precision == "mixed" else None

    def __call__(self, image: Pixels, boxes: Boxes | None = None) -> Regions:
        """Return the regions of one image: the given boxes in their order, or detected ones.

        image: (H, W, 3) uint8 BGR; boxes: (R, 4) x1 y1 x2 y2 in pixels of it, or None.
        Features are float32. Raises InputError where the image is too small or thin, or where
        boxes are required and missing, empty, unordered or outside the image.
        """
        return self.extract_many([image], [boxes])[0]

    @property
    def feature_width(self) -> int:
        """F, numbers per region."""
        return self.detector.architecture.feature_width

    def save(self, path: Path) -> None:
        """Write the detector's weights, from which `load_extractor` makes an equal extractor."""
        save_detector(self.detector, path)

    def record(self, weights: Path) -> ExtractorRecord:
        """Return what determines the features; weights: the file that `save` wrote."""
        architecture, meta = self.detector.architecture, self.detector.meta
        return ExtractorRecord.create(
            weights,
            self.config,
            device=self.device,
            summary=f"ResNet-{architecture.depth}, {meta.origin}, {self.config.boxes} boxes",
            feature_width=self.feature_width,
            architecture=asdict(architecture),
            meta=meta.model_dump(mode="json"),
        )

    def extract_many(
        self, images: Sequence[Pixels], boxes: Sequence[Boxes | None]
    ) -> list[Regions]:
        """Return the regions of several images, in order, equal to those of each image alone.

        Images of equal size with given boxes pass the network together; the results equal single
        ones to float32 rounding, and bit for bit where that was tried (torch 2.15, CPU with
        AVX-512). Raises InputError as a single call does.
        """
        found: dict[int, Regions] = {}
        with_boxes: dict[int, Pixels] = {}
        with torch.inference_mode():
            for index, (image, given) in enumerate(zip(images, boxes, strict=True)):
                if given is None:
                    found[index] = self._detect(image)
                else:
                    _check_boxes(given, height=image.shape[0], width=image.shape[1])
                    with_boxes[index] = image
            for batch in batches_of_one_size(with_boxes):
                given_boxes = [np.asarray(boxes[index], np.float32) for index in batch]
                extracted = self._extract([images[index] for index in batch], given_boxes)
                found.update(zip(batch, extracted, strict=True))
        return [found[index] for index in range(len(images))]

    def _extract(self, images: Sequence[Pixels], boxes: Sequence[Boxes]) -> list[Regions]:
        """Return the regions of given boxes of images that have one size."""
        blob, size = self._blob(images)
        factors = np.tile(np.array(size.factors, np.float32), 2)
        scaled = [torch.from_numpy(given * factors) for given in boxes]
        predictions = self._predict(self._network(blob), batch_rois(scaled).to(self.device))
        ends = np.cumsum([len(given) for given in boxes])
        return [
            _regions(given, predictions[end - len(given) : end], image, self.meta)
            for given, end, image in zip(boxes, ends, images, strict=True)
        ]

    def _detect(self, image: Pixels) -> Regions:
        if self.config.boxes == "given":
            raise InputError(
                "no boxes for the image, but extract.boxes is 'given'; "
                "supply boxes, or set extract.boxes=detect"
            )
        blob, size = self._blob([image])
        features = self._network(blob)
        (proposals,) = self._network.proposal_generator(
            features, sizes=[size], count=self.config.proposals, meta=self.meta
        )
        if len(proposals) < self.config.min_regions:
            raise InputError(
                f"too few regions of {SMALLEST_REGION} x {SMALLEST_REGION} pixels: "
                f"{len(proposals)} proposed in an image of {image.shape[1]} x "
                f"{image.shape[0]}, extract.min_regions is {self.config.min_regions}; "
                "lower it, or leave the image out"
            )
        boxes = (proposals / proposals.new_tensor(size.factors).repeat(2)).cpu().numpy()
        rois = batch_rois([proposals])
        if self._selection is None:
            predictions = self._predict(features, rois)
            chosen = self._choose(boxes, predictions.class_logits)
            predictions = predictions[torch.from_numpy(chosen).to(self.device)]
        else:
            rough = self._selection.class_logits(features, rois, roi_size=self.config.roi_size)
            chosen, predictions = self._select_exactly(features, rois, boxes, rough)
        return _regions(boxes[chosen], predictions, image, self.meta)

    def _select_exactly(
        self, features: Tensor, rois: Tensor, boxes: Boxes, rough: Tensor
    ) -> tuple[NDArray[np.int64], RegionPredictions]:
        """Return the indices of the selected proposals and the float32 predictions for them."""
        # Rough logits, (N, C) in bfloat16, decide which proposals have a chance; float32 decides
        # among those, so that close decisions are exact.
        likely = torch.from_numpy(self._choose(boxes, rough, with_margin=True)).to(self.device)
        predictions = self._predict(features, rois[likely])
        chosen = self._choose(boxes, rough.index_copy(0, likely, predictions.class_logits))
        rows = {proposal: row for row, proposal in enumerate(likely.tolist())}
        # rarely, float32 lowers likely ones so far that others overtake them
        if rows.keys() >= set(chosen.tolist()):
            indices = torch.tensor([rows[proposal] for proposal in chosen.tolist()])
            return chosen, predictions[indices.to(self.device)]
        return chosen, self._predict(features, rois[torch.from_numpy(chosen).to(self.device)])

    def _choose(
        self, boxes: Boxes, class_logits: Tensor, *, with_margin: bool = False
    ) -> NDArray[np.int64]:
        """Return the indices of the selected regions; with_margin: and of the next best ones."""
        fewest, most = self.config.min_regions, self.config.max_regions
        return select_regions(
            boxes,
            _probabilities(class_logits).cpu().numpy(),
            confidence=self.config.confidence,
            min_regions=fewest + (MARGIN + fewest // 10 if with_margin else 0),
            max_regions=most + (MARGIN + most // 10 if with_margin else 0),
        )

    def _predict(self, features: Tensor, rois: Tensor) -> RegionPredictions:
        return self._network.predict(features, rois, roi_size=self.config.roi_size)

    def _blob(self, images: Sequence[Pixels]) -> tuple[Tensor, ScaledSize]:
        """Return the detector's input for images of one size: (B, 3, H', W') float32."""
        scale = self.config.min_side, self.config.max_side
        blobs, sizes = scaled_batch(images, scale=scale, meta=self.meta)
        tensor = torch.from_numpy(np.stack(blobs)).to(self.device)
        return tensor.contiguous(memory_format=torch.channels_last), sizes[0]


AnyExtractor = Extractor | GridExtractor
"""Both are called with an image and return its regions."""


def load_extractor(
    weights: Path, *, config: ExtractConfig, device: str = "cpu", strict: bool = False
) -> AnyExtractor:
    """Load the extractor that a configuration asks for, a detector or a grid.

    Raises WeightsError where the weights are not what the configuration needs, and if strict
    ConfigError for settings that contradict their conventions, which otherwise is a warning.
    """
    if config.boxes == "grid":
        tensors = load_grid_weights(weights, config.grid_backbone)
        return GridExtractor(tensors, config=config, device=device)
    detector = load_detector(weights)
    if strict and (conflict := config.conflict(stated_settings(detector.meta.model_dump()))):
        raise ConfigError(conflict)
    return Extractor(detector, config=config, device=device)


def _check_boxes(boxes: Boxes, *, height: int, width: int) -> None:
    if boxes.ndim != 2 or boxes.shape[1:] != (4,) or len(boxes) == 0:
        raise InputError(
            f"boxes of an image have shape {boxes.shape}, not (R, 4) with R of at least 1; "
            "give every image a box, or leave it out"
        )
    x1, y1, x2, y2 = boxes.T
    ordered = np.isfinite(boxes).all(axis=1) & (x1 <= x2) & (y1 <= y2)
    inside = (x1 < width) & (y1 < height) & (x2 >= 0) & (y2 >= 0)
    wrong = np.flatnonzero(~(ordered & inside))
    if len(wrong):
        raise InputError(
            f"box {wrong[0]} is not in the image of {width} x {height} pixels: "
            f"{boxes[wrong[0]].tolist()}; boxes are x1 y1 x2 y2 with x1 <= x2 and y1 <= y2"
        )


def _probabilities(class_logits: Tensor) -> Tensor:
    """Return (K, classes) in [0, 1]: a softmax over all rows, without the background's."""
    return class_logits.softmax(dim=1)[:, :-1]


def _regions(
    boxes: Boxes, predictions: RegionPredictions, image: Pixels, meta: DetectorMeta
) -> Regions:
    scores, class_ids = _probabilities(predictions.class_logits).max(dim=1)
    attribute_ids = attribute_scores = None
    logits = predictions.attribute_logits
    if logits is not None:
        # airsplay leaves "no attribute" out of the softmax: the same attribute, surer of itself
        is_foreground = meta.attribute_softmax == "foreground"
        found = logits[:, :-1].softmax(dim=1) if is_foreground else _probabilities(logits)
        attribute_scores = found.amax(dim=1).cpu().numpy()
        attribute_ids = logits[:, :-1].argmax(dim=1).cpu().numpy().astype(np.int32)
    return Regions(
        boxes=boxes,
        features=predictions.features.cpu().numpy(),
        scores=scores.cpu().numpy(),
        class_ids=class_ids.cpu().numpy().astype(np.int32),
        attribute_ids=attribute_ids,
        attribute_scores=attribute_scores,
        width=image.shape[1],
        height=image.shape[0],
    )
