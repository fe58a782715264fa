"""Images to regions: scaling, proposals or given boxes, description, selection."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.errors import InputError
from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import DescribedRegions, Detector
from a2cap.extract.detector.fused import fuse
from a2cap.extract.detector.input import ScaledSize, scaled_image
from a2cap.extract.detector.mixed_precision import SelectionHeads, has_bfloat16
from a2cap.extract.detector.proposals import SMALLEST_REGION
from a2cap.extract.detector.selection import select_regions
from a2cap.extract.grid import GridExtractor, load_grid_weights
from a2cap.extract.record import ExtractorRecord
from a2cap.extract.weights.load import load_detector, save_detector

MARGIN = 8
"""Proposals, beside a tenth of the regions, that are described exactly and may be left out."""

logger = logging.getLogger(__name__)

AnnotatedImage = NDArray[np.uint8]
Boxes = NDArray[np.float32]

BATCH = 8
"""Equal-sized images with given boxes that pass the network together. On CPU the gain ends
here, and regions of some 3 boxes per image just fill the heads."""


class Extractor:
    """Turns an image, and boxes if they are given, into Regions.

    Equal images give equal regions, whatever was extracted before.
    """

    def __init__(self, detector: Detector, *, config: ExtractConfig, device: str = "cpu") -> None:
        self.detector = detector
        self.config = config
        self.device = torch.device(device)
        self.meta = _in_use(detector.meta, config)
        self._network = _network(detector, config).to(self.device)
        self._selection = self._selection_heads()

    def __call__(self, image: AnnotatedImage, boxes: Boxes | None = None) -> Regions:
        """Regions of one image: of the given boxes in their order, or of those detected.

        image: (H, W, 3) uint8 BGR; boxes: (R, 4) x1 y1 x2 y2 in pixels of it, or None.
        Features are float32. Raises InputError where the image is too small or thin, or boxes
        are wanted and missing, none, unordered or outside the image.
        """
        return self.extract_many([image], [boxes])[0]

    @property
    def feature_width(self) -> int:
        """F, the numbers per region."""
        return self.detector.architecture.feature_width

    def save(self, path: Path) -> None:
        """Writes the detector's weights, from which `load_extractor` makes an equal extractor."""
        save_detector(self.detector, path)

    def record(self, weights: Path) -> ExtractorRecord:
        """Return what determines the features; weights: the file that `save` wrote."""
        architecture, meta = self.detector.architecture, self.detector.meta
        return ExtractorRecord.create(
            weights,
            self.config,
            summary=f"ResNet-{architecture.depth}, {meta.origin}, {self.config.boxes} boxes",
            feature_width=self.feature_width,
            architecture=asdict(architecture),
            meta=meta.model_dump(mode="json"),
        )

    def extract_many(
        self, images: Sequence[AnnotatedImage], boxes: Sequence[Boxes | None]
    ) -> list[Regions]:
        """Regions of several images, in order, as if each had been alone.

        Images of equal size with given boxes pass the network together, BATCH at a time; the
        results equal single ones to float32 rounding, and bit for bit where that was tried
        (torch 2.15, CPU with AVX-512). Raises InputError as a single call does.
        """
        with torch.inference_mode():
            found: dict[int, Regions] = {}
            groups: dict[tuple[int, int], list[int]] = defaultdict(list)
            for index, (image, given) in enumerate(zip(images, boxes, strict=True)):
                if given is None:
                    found[index] = self._detect(image)
                else:
                    _check_boxes(given, height=image.shape[0], width=image.shape[1])
                    groups[image.shape[0], image.shape[1]].append(index)
            for members in groups.values():
                for start in range(0, len(members), BATCH):
                    batch = members[start : start + BATCH]
                    given_boxes = [np.asarray(boxes[index], np.float32) for index in batch]
                    described = self._describe([images[index] for index in batch], given_boxes)
                    found.update(zip(batch, described, strict=True))
        return [found[index] for index in range(len(images))]

    def _detect(self, image: AnnotatedImage) -> Regions:
        if self.config.boxes == "given":
            raise InputError(
                "no boxes came with the image, but extract.boxes is 'given'; "
                "supply boxes, or set extract.boxes=detect"
            )
        blob, size = self._blob([image])
        features = self._network(blob)
        proposals = self._network.propose(
            features, size=size, count=self.config.proposals, meta=self.meta
        )
        if len(proposals) < self.config.min_regions:
            raise InputError(
                f"too few regions of {SMALLEST_REGION} x {SMALLEST_REGION} pixels: "
                f"{len(proposals)} proposed in an image of {image.shape[1]} x "
                f"{image.shape[0]}, extract.min_regions is {self.config.min_regions}; "
                "lower it, or leave the image out"
            )
        boxes = (proposals / proposals.new_tensor(size.factors).repeat(2)).cpu().numpy()
        chosen, described = self._select(features, _rois([proposals]), boxes)
        return _regions(boxes[chosen], described, image)

    def _select(
        self, features: Tensor, rois: Tensor, boxes: Boxes
    ) -> tuple[NDArray[np.int64], DescribedRegions]:
        """Indices of the proposals that are kept, and what they are.

        rois: (N, 5), the proposals in scaled pixels; boxes: (N, 4), the same in the image's own.
        """
        if self._selection is not None:
            rough = self._selection.class_logits(features, rois, roi_size=self.config.roi_size)
            return self._select_among_the_best(features, rois, boxes, rough)
        described = self._describe_all(features, rois)
        chosen = self._choose(boxes, described.class_logits)
        return chosen, _rows(described, torch.from_numpy(chosen).to(self.device))

    def _select_among_the_best(
        self, features: Tensor, rois: Tensor, boxes: Boxes, rough: Tensor
    ) -> tuple[NDArray[np.int64], DescribedRegions]:
        """As `_select`, where `rough` class logits (N, C) say which proposals have a chance.

        Those are described exactly and chosen among, so that what is close is decided exactly.
        """
        likely = torch.from_numpy(self._choose(boxes, rough, more=True)).to(self.device)
        described = self._describe_all(features, rois[likely])
        chosen = self._choose(boxes, rough.index_copy(0, likely, described.class_logits))
        places = {proposal: place for place, proposal in enumerate(likely.tolist())}
        if places.keys() >= set(chosen.tolist()):
            rows = torch.tensor([places[proposal] for proposal in chosen.tolist()])
            return chosen, _rows(described, rows.to(self.device))
        return chosen, self._describe_all(features, rois[torch.from_numpy(chosen).to(self.device)])

    def _choose(
        self, boxes: Boxes, class_logits: Tensor, *, more: bool = False
    ) -> NDArray[np.int64]:
        """Indices of the regions; more: and of some that would come next."""
        least, most = self.config.min_regions, self.config.max_regions
        return select_regions(
            boxes,
            _probabilities(class_logits).cpu().numpy(),
            confidence=self.config.confidence,
            min_regions=least + (MARGIN + least // 10 if more else 0),
            max_regions=most + (MARGIN + most // 10 if more else 0),
        )

    def _describe_all(self, features: Tensor, rois: Tensor) -> DescribedRegions:
        return self._network.describe(features, rois, roi_size=self.config.roi_size)

    def _selection_heads(self) -> SelectionHeads | None:
        if self.config.precision == "exact":
            return None
        if not has_bfloat16(self.device):
            logger.warning("%s has no bfloat16: extract.precision=mixed runs as exact", self.device)
            return None
        return SelectionHeads(self._network)

    def _describe(self, images: Sequence[AnnotatedImage], boxes: Sequence[Boxes]) -> list[Regions]:
        """Regions of given boxes of images that have one size."""
        blob, size = self._blob(images)
        factors = np.tile(np.array(size.factors, np.float32), 2)
        scaled = [torch.from_numpy(given * factors) for given in boxes]
        described = self._describe_all(self._network(blob), _rois(scaled).to(self.device))
        ends = np.cumsum([len(given) for given in boxes])
        rows = [slice(end - len(given), end) for end, given in zip(ends, boxes, strict=True)]
        return [
            _regions(given, _rows(described, row), image)
            for given, row, image in zip(boxes, rows, images, strict=True)
        ]

    def _blob(self, images: Sequence[AnnotatedImage]) -> tuple[Tensor, ScaledSize]:
        """Detector input of images of one size: (B, 3, H', W') float32."""
        scaled = [
            scaled_image(
                one,
                min_side=self.config.min_side,
                max_side=self.config.max_side,
                meta=self.meta,
            )
            for one in images
        ]
        tensor = torch.from_numpy(np.stack([blob for blob, _ in scaled])).to(self.device)
        return tensor.contiguous(memory_format=torch.channels_last), scaled[0][1]


def _network(detector: Detector, config: ExtractConfig) -> Detector:
    """The modules that compute."""
    if config.backend == "native":
        return fuse(detector)
    from a2cap.extract.detectron2_backend import rebuild

    return rebuild(detector)


def _in_use(meta: DetectorMeta, config: ExtractConfig) -> DetectorMeta:
    """The conventions that are followed; warns where images get another size than in training."""
    if (config.min_side, config.max_side) != meta.scale:
        logger.warning(
            "the weights were made for images of %d to %d pixels, "
            "extract.min_side and extract.max_side are %d and %d",
            *meta.scale,
            config.min_side,
            config.max_side,
        )
    return meta if config.procedure == "weights" else meta.with_procedure(config.procedure)


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


def _rois(boxes: Sequence[Tensor]) -> Tensor:
    """Boxes of several images as (K, 5): index of the image, x1 y1 x2 y2."""
    return torch.cat(
        [
            torch.cat([of_one.new_full((len(of_one), 1), index), of_one], dim=1)
            for index, of_one in enumerate(boxes)
        ]
    )


def _probabilities(class_logits: Tensor) -> Tensor:
    """(K, classes) in [0, 1]: the softmax counts the background, the result leaves it out."""
    return class_logits.softmax(dim=1)[:, :-1]


def _rows(described: DescribedRegions, rows: Tensor | slice) -> DescribedRegions:
    attributes = described.attribute_logits
    return DescribedRegions(
        described.features[rows],
        described.class_logits[rows],
        None if attributes is None else attributes[rows],
    )


def _regions(boxes: Boxes, described: DescribedRegions, image: AnnotatedImage) -> Regions:
    scores, class_ids = _probabilities(described.class_logits).max(dim=1)
    attributes = described.attribute_logits
    return Regions(
        boxes=boxes,
        features=described.features.cpu().numpy(),
        scores=scores.cpu().numpy(),
        class_ids=class_ids.cpu().numpy().astype(np.int32),
        attribute_ids=(
            None
            if attributes is None
            else attributes[:, :-1].argmax(dim=1).cpu().numpy().astype(np.int32)
        ),
        width=image.shape[1],
        height=image.shape[0],
    )


AnyExtractor = Extractor | GridExtractor
"""Both are called with an image and return its regions."""


def load_extractor(weights: Path, *, config: ExtractConfig, device: str = "cpu") -> AnyExtractor:
    """Loads the weights of the file; WeightsError where they are not what the config needs."""
    if config.boxes == "grid":
        tensors = load_grid_weights(weights, config.grid_backbone)
        return GridExtractor(tensors, config=config, device=device)
    return Extractor(load_detector(weights), config=config, device=device)
