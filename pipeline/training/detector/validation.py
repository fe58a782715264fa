"""How well a detector finds what is labelled: average precision, and recall of its proposals."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.extract.detector.detections import BATCH, Detections, detect_objects, propose_regions
from a2cap.extract.detector.detector import Detector
from a2cap.extract.image import read_image
from a2cap.extract.training.trainable import TrainableDetector
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.runtime.distributed import Processes
from a2cap.pipeline.training.detector.average_precision import (
    DetectionMetrics,
    detection_metrics,
    proposal_recall,
)
from a2cap.pipeline.training.detector.config import DetectorConfig

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

RECALL_AT = (10, 36, 100)
"""Numbers of proposals of which the recall is told."""


class DetectorValidation:
    """AP50 on the validation images, by which the best epoch is told."""

    score = "AP50"

    def __init__(
        self,
        detector: TrainableDetector,
        data: DetectionData,
        config: DetectorConfig,
        processes: Processes,
    ) -> None:
        self._data = data
        self._detector = detector
        self._config = config
        self._processes = processes

    def figures(self) -> dict[str, float]:
        """Each process looks at a share of the images, the first one scores them all."""
        processes = self._processes
        mine = self._data.images[processes.rank :: processes.count]
        found = detections_of(self._detector.frozen(), mine, self._config, shown=processes.leads)
        shares = processes.gathered([(name, _plain(things)) for name, things in found.items()])
        if not processes.leads:
            return processes.of_first({})
        everything = {name: _detections(plain) for share in shares for name, plain in share}
        metrics = detection_metrics(self._data, everything)
        return processes.of_first(
            {"AP": metrics.ap, self.score: metrics.ap50, "AP75": metrics.ap75}
        )

    def scalars(self) -> dict[str, float]:
        """Nothing more."""
        return {}

    def warn(self, line: Mapping[str, float]) -> None:
        """One line where nothing at all was found."""
        if line[self.score] == 0:
            logger.warning(
                "no labelled thing is found yet: AP50 is 0; where that stays, check "
                "detector.labels and detector.anchor_sizes, or lower detector.lr"
            )


def detector_figures(
    detector: Detector, data: DetectionData, config: DetectorConfig
) -> dict[str, object]:
    """Everything that is told of a detector, as JSON has it.

    AP over all overlaps, at one, by size and by class, and the recall of proposals, each a share in
    [0, 1], or None where no box is of such a size; and how it was looked for.
    """
    found = detections_of(detector, data.images, config)
    recall = proposal_recall(data, _proposals_of(detector, data.images), counts=RECALL_AT)
    return {
        **_named(detection_metrics(data, found)),
        "proposal_recall": {str(count): share for count, share in recall.items()},
        "pictures": len(data.images),
        "proposals": config.validation_proposals,
        "roi_size": config.roi_size,
    }


def _named(metrics: DetectionMetrics) -> dict[str, object]:
    return {
        "AP": metrics.ap,
        "AP50": metrics.ap50,
        "AP75": metrics.ap75,
        "AP_small": metrics.ap_small,
        "AP_medium": metrics.ap_medium,
        "AP_large": metrics.ap_large,
        "AP50_of_class": dict(metrics.per_class),
    }


def detections_of(
    detector: Detector,
    images: Sequence[LabelledImage],
    config: DetectorConfig,
    *,
    shown: bool = True,
) -> dict[str, Detections]:
    """Image id -> what is found in the image. InputError where one cannot be read.

    shown: as of `track`.
    """
    detect = partial(
        detect_objects, detector, proposals=config.validation_proposals, roi_size=config.roi_size
    )
    return _of_each("detect", images, detect, shown=shown)


def _proposals_of(
    detector: Detector, images: Sequence[LabelledImage]
) -> dict[str, NDArray[np.float32]]:
    propose = partial(propose_regions, detector, count=max(RECALL_AT))
    return _of_each("propose", images, propose)


def _of_each(
    what: str,
    images: Sequence[LabelledImage],
    find: Callable[[list[NDArray[np.uint8]]], list[Found]],
    *,
    shown: bool = True,
) -> dict[str, Found]:
    """Image id -> what `find` finds in its pixels, of a few images together."""
    found: dict[str, Found] = {}
    with track(what, total=len(images), shown=shown) as progress:
        for start in range(0, len(images), BATCH):
            some = images[start : start + BATCH]
            things = find([read_image(image.file) for image in some])
            found.update(zip([image.image_id for image in some], things, strict=True))
            progress.advance(len(some))
    return found


def _plain(things: Detections) -> list[torch.Tensor]:
    """As tensors, which processes can exchange; attributes are not scored."""
    return [torch.from_numpy(part) for part in (things.boxes, things.scores, things.class_ids)]


def _detections(plain: Sequence[torch.Tensor]) -> Detections:
    boxes, scores, class_ids = (part.numpy() for part in plain)
    return Detections(boxes, scores, class_ids, attribute_ids=None)
