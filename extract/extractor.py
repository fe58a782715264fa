"""Bottom-up features (Anderson et al. 2018, section 3.1): regions of an image with their features.

Regions are proposals of a detector, or given boxes. Their features belong to the boxes as proposed,
not refined by class, as in bottom-up-attention @514e561.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig, stated_settings
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import CHUNK, Detector, RegionPredictions
from a2cap.extract.detector.fused import fuse
from a2cap.extract.detector.input import (
    BATCH,
    Pixels,
    ScaledSize,
    batches_of_like_size,
    batches_of_one_size,
    scaled_batch,
)
from a2cap.extract.detector.mixed_precision import (
    SelectionHeads,
    resolve_precision,
    warn_about_emulation,
)
from a2cap.extract.detector.padding import maps_of_each, padded_batch
from a2cap.extract.detector.proposals import SMALLEST_REGION, batch_rois
from a2cap.extract.detector.selection import select_regions
from a2cap.extract.grid import GridExtractor, load_grid_weights
from a2cap.extract.record import ExtractorRecord
from a2cap.extract.weights.load import load_detector, save_detector

MARGIN = 8
"""Proposals, beside a tenth of the regions, that are computed exactly and may be rejected."""

logger = logging.getLogger(__name__)

Boxes = NDArray[np.float32]


@dataclass(frozen=True)
class Predictions:
    """Outputs of the heads for K regions in the memory of the CPU.

    boxes: (K, 4) in scaled pixels; features: (K, F); probabilities: (K, classes); attributes:
    (K, 2) of id and probability, or (K, 0) without an attribute head. All float32.
    """

    boxes: Boxes
    features: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    attributes: NDArray[np.float32]

    @classmethod
    def on_cpu(cls, rois: Tensor, found: RegionPredictions, meta: DetectorMeta) -> Self:
        """Copy predictions at once, because each copy waits for a GPU. rois: (K, 5)."""
        parts = [rois[:, 1:], found.features, _probabilities(found.class_logits), rois[:, :0]]
        if (logits := found.attribute_logits) is not None:
            # airsplay leaves "no attribute" out of the softmax: the same attribute, with a higher
            # probability
            is_foreground = meta.attribute_softmax == "foreground"
            each = logits[:, :-1].softmax(dim=1) if is_foreground else _probabilities(logits)
            ids = logits[:, :-1].argmax(dim=1)
            parts[3] = torch.stack([ids.float(), each.amax(dim=1)], dim=1)
        columns = torch.cat(parts, dim=1).cpu().numpy()
        widths = np.cumsum([part.shape[1] for part in parts[:-1]])
        return cls(*np.split(columns, widths, axis=1))

    def rows(self, rows: NDArray[np.int64]) -> "Predictions":
        """Return some of the regions."""
        return Predictions(*(values[rows] for values in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence["Predictions"]) -> Self:
        """Return the regions of all parts."""
        return cls(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


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
        warn_about_emulation(config, self.device)
        precision = resolve_precision(config, self.device)
        self.config = config.model_copy(update={"precision": precision})
        # a CPU is filled by the regions of one image
        self.batch = BATCH if self.device.type == "cuda" else 1
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

        Images of equal size with given boxes pass the network together, and on a GPU those of like
        size whose regions are detected pass the backbone together, padded. The results equal single
        ones to float32 rounding. Raises InputError as a single call does.
        """
        found: dict[int, Regions] = {}
        with_boxes: dict[int, Pixels] = {}
        without: dict[int, Pixels] = {}
        with torch.inference_mode():
            for index, (image, given) in enumerate(zip(images, boxes, strict=True)):
                if given is None:
                    without[index] = image
                else:
                    _check_boxes(given, height=image.shape[0], width=image.shape[1])
                    with_boxes[index] = image
            for batch in batches_of_one_size(with_boxes):
                given_boxes = [np.asarray(boxes[index], np.float32) for index in batch]
                extracted = self._extract([images[index] for index in batch], given_boxes)
                found.update(zip(batch, extracted, strict=True))
            for batch in batches_of_like_size(without, most=self.batch):
                detected = self._detect_many([images[index] for index in batch])
                found.update(zip(batch, detected, strict=True))
        return [found[index] for index in range(len(images))]

    def _extract(self, images: Sequence[Pixels], boxes: Sequence[Boxes]) -> list[Regions]:
        """Return the regions of given boxes of images that have one size."""
        blob, sizes = self._blob(images)
        factors = np.tile(np.array(sizes[0].factors, np.float32), 2)
        scaled = [torch.from_numpy(given * factors) for given in boxes]
        found = self._predict(self._network(blob), batch_rois(scaled).to(self.device))
        ends = np.cumsum([len(given) for given in boxes])
        return [
            _regions(given, found.rows(np.arange(end - len(given), end)), image)
            for given, end, image in zip(boxes, ends, images, strict=True)
        ]

    def _detect_many(self, images: Sequence[Pixels]) -> list[Regions]:
        if self.config.boxes == "given":
            raise InputError(
                "no boxes for the image, but extract.boxes is 'given'; "
                "supply boxes, or set extract.boxes=detect"
            )
        blob, sizes = self._blob(images)
        maps = maps_of_each(self._network, blob, sizes)
        return [
            self._detect(image, features, size)
            for image, features, size in zip(images, maps, sizes, strict=True)
        ]

    def _detect(self, image: Pixels, features: Tensor, size: ScaledSize) -> Regions:
        """Return the regions of an image; features: its map, (1, C, h, w)."""
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
        rois = batch_rois([proposals])
        factors = np.tile(np.array(size.factors, np.float32), 2)
        # no first pass if the margin leaves out none of the proposals
        if self._selection is None or len(rois) <= _with_margin(self.config.min_regions):
            found = self._predict_in_chunks(features, rois)
            boxes = found.boxes / factors
            chosen = self._choose(boxes, found.probabilities)
            return _regions(boxes[chosen], found.rows(chosen), image)
        rough = self._selection.class_logits(features, rois, roi_size=self.config.roi_size)
        scored: Boxes = torch.cat([proposals, _probabilities(rough)], dim=1).cpu().numpy()
        boxes = np.divide(scored[:, :4], factors, dtype=np.float32)
        chosen, found = self._select_exactly(features, rois, boxes, scored[:, 4:])
        return _regions(boxes[chosen], found, image)

    def _select_exactly(
        self, features: Tensor, rois: Tensor, boxes: Boxes, probabilities: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], Predictions]:
        """Return the indices of the selected proposals and the float32 predictions for them.

        probabilities: (N, classes) of a rough computation, which are overwritten.
        """
        # The rough ones decide which proposals have a chance; float32 decides among those and the
        # ones that overtake them, until all that are chosen are exact.
        missing = self._choose(boxes, probabilities, with_margin=True)
        known = np.zeros(len(rois), bool)
        found: dict[int, Predictions] = {}
        while len(missing):
            some = rois[torch.from_numpy(missing).to(self.device)]
            exact = self._predict_in_chunks(features, some)
            probabilities[missing] = exact.probabilities
            found |= {index: exact.rows(np.array([row])) for row, index in enumerate(missing)}
            known[missing] = True
            chosen = self._choose(boxes, probabilities)
            missing = chosen[~known[chosen]]
        return chosen, Predictions.joined([found[index] for index in chosen])

    def _choose(
        self, boxes: Boxes, probabilities: NDArray[np.float32], *, with_margin: bool = False
    ) -> NDArray[np.int64]:
        """Return the indices of the selected regions; with_margin: and of the next best ones."""
        fewest, most = self.config.min_regions, self.config.max_regions
        return select_regions(
            boxes,
            probabilities,
            confidence=self.config.confidence,
            min_regions=_with_margin(fewest) if with_margin else fewest,
            max_regions=_with_margin(most) if with_margin else most,
        )

    def _predict(self, features: Tensor, rois: Tensor) -> Predictions:
        found = self._network.predict(features, rois, roi_size=self.config.roi_size)
        return Predictions.on_cpu(rois, found, self.meta)

    def _predict_in_chunks(self, features: Tensor, rois: Tensor) -> Predictions:
        """Predict whole chunks only, so that features do not depend on the number of regions."""
        # a convolution of few regions adds in another order, on a GPU too, where chunks are larger
        missing = -len(rois) % CHUNK if self.device.type == "cpu" else 0
        found = self._predict(features, torch.cat([rois, rois[-1:].expand(missing, -1)]))
        return found.rows(np.arange(len(rois)))

    def _blob(self, images: Sequence[Pixels]) -> tuple[Tensor, list[ScaledSize]]:
        """Return the detector's input, (B, 3, H', W') float32, padded, and sizes without that."""
        scale = self.config.min_side, self.config.max_side
        blobs, sizes = scaled_batch(images, scale=scale, meta=self.meta)
        tensor = padded_batch(blobs)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        tensor = tensor.to(self.device, non_blocking=True)
        return tensor.contiguous(memory_format=torch.channels_last), sizes


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


def _with_margin(regions: int) -> int:
    return regions + MARGIN + regions // 10


def _probabilities(class_logits: Tensor) -> Tensor:
    """Return (K, classes) in [0, 1]: a softmax over all rows, without the background's."""
    return class_logits.softmax(dim=1)[:, :-1]


def _regions(boxes: Boxes, found: Predictions, image: Pixels) -> Regions:
    has_attributes = found.attributes.shape[1] > 0
    return Regions(
        boxes=boxes,
        features=found.features,
        scores=found.probabilities.max(axis=1),
        class_ids=found.probabilities.argmax(axis=1).astype(np.int32),
        attribute_ids=found.attributes[:, 0].astype(np.int32) if has_attributes else None,
        attribute_scores=found.attributes[:, 1] if has_attributes else None,
        width=image.shape[1],
        height=image.shape[0],
    )
