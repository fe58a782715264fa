"""Bottom-up features (Anderson et al. 2018, section 3.1): regions of an image with their features.

Regions are proposals of a detector, or given boxes. Their features belong to the boxes as proposed,
not refined by class, as in bottom-up-attention @514e561.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.regions import Regions
from a2cap.extract.detector.detector import Classify, Detector, fuse, probabilities
from a2cap.extract.detector.input import (
    BATCH,
    BUCKET,
    Blob,
    Boxes,
    Pixels,
    ScaledSize,
    batches_of_one_size,
    check_boxes,
    padded,
    scaled_batch,
)
from a2cap.extract.detector.packed_regions import packed, packed_regions, unpacked
from a2cap.extract.detector.proposal_precision import (
    MixedPrecision,
    resolve_proposal_precision,
    warn_about_mixed_precision,
)
from a2cap.extract.detector.proposals import batch_rois
from a2cap.extract.detector.region_selection import RegionSelection
from a2cap.extract.detector.started_batches import Pending, StartedBatches, copied, moved
from a2cap.extract.extract_config import ExtractConfig, stated_settings
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.extract.grid import GridExtractor, load_grid_weights
from a2cap.extract.weights.differences import file_of_differences
from a2cap.extract.weights.load import load_detector, save_detector

logger = logging.getLogger(__name__)


class Extractor:
    """A detector that turns an image, and boxes if they are given, into Regions.

    Equal images give equal regions, whatever was extracted before.
    """

    def __init__(self, detector: Detector, *, config: ExtractConfig, device: str = "cpu") -> None:
        self.detector = detector
        self.device = torch.device(device)
        if conflict := config.conflict(stated_settings(detector.meta.model_dump())):
            logger.warning("%s", conflict)
        warn_about_mixed_precision(config, self.device)
        self.config = config.model_copy(
            update={"precision": resolve_proposal_precision(config, self.device)}
        )
        self._network = _network(detector, config).to(self.device)
        self._classify: Classify = Detector.classify
        if self.config.precision == "mixed":
            self._classify = MixedPrecision(self._network)
        fields = ("proposals", "roi_size", "confidence", "min_regions", "max_regions")
        self._selection = RegionSelection(**config.model_dump(include=set(fields)))
        self._batches = StartedBatches()

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

        Images of equal size with given boxes pass the network together, and on a GPU with `mixed`
        those of about one size without boxes. Their results equal single ones to float32 rounding;
        all others are equal bit for bit. Raises InputError as a single call does.
        """
        return self.start(images, boxes)()

    def start(self, images: Sequence[Pixels], boxes: Sequence[Boxes | None]) -> Pending:
        """Start `extract_many`; the returned function waits for the device and returns its result.

        On a GPU, the images that follow can be started before. Both functions raise InputError.
        """
        detected: dict[int, Pixels] = {}
        with_boxes: dict[int, Pixels] = {}
        for index, (image, image_boxes) in enumerate(zip(images, boxes, strict=True)):
            if image_boxes is None:
                detected[index] = image
            else:
                check_boxes(image_boxes, height=image.shape[0], width=image.shape[1])
                with_boxes[index] = image
        # on a CPU a convolution of several images adds in another order, and is no faster
        size = 1 if self.device.type == "cpu" else BATCH
        # by the ratio of sides, which gives the scaled size
        alike = sorted(detected, key=lambda i: detected[i].shape[0] / detected[i].shape[1])
        batches = [alike[first : first + size] for first in range(0, len(alike), size)]

        def begin(indices: Sequence[int]) -> Pending:
            batch = [images[index] for index in indices]
            regions = [np.asarray(b, np.float32) for i in indices if (b := boxes[i]) is not None]
            return self._extract(batch, regions) if regions else self._detect_many(batch)

        return self._batches.start([*batches, *batches_of_one_size(with_boxes)], begin)

    def _detect_many(self, images: Sequence[Pixels]) -> Pending:
        """Start the detection of regions; on a CPU of a single image."""
        if self.config.boxes == "given":
            raise InputError(
                "no boxes for the image, but extract.boxes is 'given'; "
                "supply boxes, or set extract.boxes=detect"
            )
        if self.device.type != "cpu":
            return self._detect_padded(images)
        [image] = images
        return partial(list, [self._detect(image)])

    def _detect(self, image: Pixels) -> Regions:
        """Detect the regions of one image, waiting for the device where values decide."""
        with torch.inference_mode():
            scaled, (size,) = self._scaled([image])
            selection, classify = self._selection, self._classify
            detected = self._network(scaled, size=size, selection=selection, classify=classify)
            return self._unpacked(copied(packed_regions(detected)[0])(), image)

    def _detect_padded(self, images: Sequence[Pixels]) -> Pending:
        """Start the detection of regions without waiting for the device.

        With `exact` each image passes the backbone alone, so that its features do not depend on the
        other images; with `mixed`, images of about one size pass it together, padded.
        """
        blobs, sizes = self._blobs(images)
        most = BATCH if self.config.precision == "mixed" else 1
        batches = list(batches_of_one_size(dict(enumerate(blobs)), most=most, multiple=BUCKET))
        order = [index for batch in batches for index in batch]
        regions, counts = self._network.detect_padded(
            [
                (self._input([blobs[i] for i in batch]), [sizes[i] for i in batch])
                for batch in batches
            ],
            moved(torch.tensor([sizes[index].factors * 2 for index in order]), self.device),
            selection=replace(self._selection, waits=False),
            classify=self._classify,
        )
        columns = packed_regions(regions)
        # one copy: the counts are exact in float32
        wait = copied(torch.cat([columns.flatten(1), counts.float()], dim=1))

        def finish() -> list[Regions]:
            flat = wait()
            arrays = flat[:, : -counts.shape[1]].reshape(columns.shape)
            of_image: dict[int, Regions] = {}
            for index, array, facts in zip(order, arrays, flat, strict=True):
                proposed, count, is_final = (int(fact) for fact in facts[-counts.shape[1] :])
                if is_final:
                    self._selection.require(proposed, sizes[index])
                    of_image[index] = self._unpacked(array[:count], images[index])
                else:
                    of_image[index] = self._detect(images[index])
            return [of_image[index] for index in range(len(images))]

        return finish

    def _extract(self, images: Sequence[Pixels], boxes: Sequence[Boxes]) -> Pending:
        """Start the regions of given boxes of images that have one size."""
        network = self._network
        scaled, sizes = self._scaled(images)
        factors = np.tile(np.array(sizes[0].factors, np.float32), 2)
        rois = moved(batch_rois([torch.from_numpy(b * factors) for b in boxes]), self.device)
        features = network.backbone(scaled)
        predicted = network.predict(features, rois, roi_size=self.config.roi_size)
        parts = rois[:, 1:], predicted.features, probabilities(predicted.class_logits)
        wait = copied(packed(*parts, network.attributes_of(predicted)))
        ends = np.cumsum([len(b) for b in boxes])

        def finish() -> list[Regions]:
            columns = wait()
            return [
                replace(self._unpacked(columns[end - len(b) : end], image), boxes=b)
                for b, end, image in zip(boxes, ends, images, strict=True)
            ]

        return finish

    def _unpacked(self, columns: NDArray[np.float32], image: Pixels) -> Regions:
        return unpacked(columns, image, feature_width=self.feature_width)

    def _scaled(self, images: Sequence[Pixels]) -> tuple[Tensor, list[ScaledSize]]:
        """Return images of one size as the detector's input, (B, 3, H', W') float32."""
        blobs, sizes = self._blobs(images)
        return self._input(blobs), sizes

    def _blobs(self, images: Sequence[Pixels]) -> tuple[list[Blob], list[ScaledSize]]:
        scale = self.config.min_side, self.config.max_side
        return scaled_batch(images, scale=scale, meta=self._network.meta)

    def _input(self, blobs: Sequence[Blob]) -> Tensor:
        """Return images as the detector's input, (B, 3, H', W') float32, smaller ones padded."""
        tensor = moved(torch.from_numpy(padded(blobs)), self.device)
        return tensor.contiguous(memory_format=torch.channels_last)


def _network(detector: Detector, config: ExtractConfig) -> Detector:
    """Return the modules that compute, by the conventions of `extract.procedure`."""
    if config.backend == "native":
        network = fuse(detector)
    else:
        from a2cap.extract.detectron2_backend import rebuild

        network = rebuild(detector)
    if config.procedure != "weights":
        network.meta = detector.meta.with_procedure(config.procedure)
    return network


AnyExtractor = Extractor | GridExtractor
"""Both are called with an image and return its regions."""


def load_extractor(
    weights: Path, *, config: ExtractConfig, device: str = "cpu", strict: bool = False
) -> AnyExtractor:
    """Load the extractor that a configuration asks for, a detector or a grid.

    Raises WeightsError where the weights are not what the configuration needs, and if strict
    ConfigError for settings that contradict their conventions, which otherwise is a warning.
    """
    if config.pools_map:
        tensors = load_grid_weights(weights, config.grid_backbone)
        differences = file_of_differences(weights)
        return GridExtractor(tensors, config=config, device=device, differences=differences)
    detector = load_detector(weights)
    if strict and (conflict := config.conflict(stated_settings(detector.meta.model_dump()))):
        raise ConfigError(conflict)
    # an Apple GPU lacks float64, in which non-maximum suppression compares
    return Extractor(detector, config=config, device="cpu" if device == "mps" else device)
