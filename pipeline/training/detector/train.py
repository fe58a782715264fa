"""Training of a detector on labelled images (stage train-detector)."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.data.batches.dataset import ItemKey
from a2cap.data.batches.loader import Batches, Share
from a2cap.data.batches.sampling import is_mirrored
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.errors import WeightsError
from a2cap.data.files.json_file import write_json
from a2cap.extract.detector.conventions import DetectorMeta, custom_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.image import read_image
from a2cap.extract.training.batch import LabelledBatch, labelled_batch
from a2cap.extract.training.detector_losses import AttributeLoss
from a2cap.extract.training.trainable import Sampling, TrainableDetector
from a2cap.extract.weights.initial import initialise_from, random_detector, resnet_tensors
from a2cap.extract.weights.load import load_detector, save_detector
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.pipeline.engine.artifact_names import DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES
from a2cap.pipeline.runtime.device import prepare_device, require_double
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.training_precision import forward_precision
from a2cap.pipeline.training.checkpoints import derived_seed
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.detector.labelled_images import DetectorData, read_detector_data
from a2cap.pipeline.training.detector.validation import (
    DetectorValidation,
    detector_figures,
    family_ids,
)
from a2cap.pipeline.training.loop import TrainingTask, run_training
from a2cap.pipeline.training.training_parts import cosine_rate, decaying_groups
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.training.updates import Updater

logger = logging.getLogger(__name__)

_TORCHVISION_KEYS = ("conv1.weight", "layer1.0.conv1.weight")  # in all of its ResNets


@dataclass(frozen=True)
class LabelledItem:
    """An image, (H, W, 3) uint8 BGR, and its labels."""

    pixels: NDArray[np.uint8]
    labels: LabelledImage


@dataclass(frozen=True)
class DetectorPart:
    """A part of a batch, with the ids of its images."""

    image_ids: tuple[str, ...]
    batch: LabelledBatch


class DetectorDataset:
    """Labelled images by (epoch, index), half of them mirrored if `flip` is set."""

    def __init__(self, data: DetectionData, *, flip: bool, seed: int) -> None:
        self.images = data.images
        self._flip = flip
        self._seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def sizes(self) -> dict[str, int]:
        """Return the number of images."""
        return {"images": len(self.images)}

    def __getitem__(self, key: ItemKey) -> LabelledItem:
        epoch, index = key  # an item depends only on these and the seed, so that a resume is exact
        labels = self.images[index]
        item = LabelledItem(read_image(labels.file), labels)
        if self._flip and is_mirrored(seed=self._seed, epoch=epoch, index=index):
            return mirrored(item)
        return item


def mirrored(item: LabelledItem) -> LabelledItem:
    """Return the image and its boxes with left and right exchanged."""
    width = item.pixels.shape[1]
    boxes = item.labels.boxes.copy()
    # x1 becomes width - x2, so that x1 <= x2 still
    boxes[:, [0, 2]] = width - item.labels.boxes[:, [2, 0]]
    pixels = np.ascontiguousarray(item.pixels[:, ::-1])  # torch takes no negative strides
    return LabelledItem(pixels, replace(item.labels, boxes=boxes))


def collate(items: Sequence[LabelledItem], *, meta: DetectorMeta) -> DetectorPart:
    """Return a part of at least one image, scaled as the detector's meta states."""
    batch = labelled_batch(
        [item.pixels for item in items], [item.labels for item in items], meta=meta
    )
    return DetectorPart(tuple(item.labels.image_id for item in items), batch)


def train_detector(config: DetectorConfig, run: TrainingRun) -> DetectorData:
    """Train a detector; write it, its figures, checkpoints and `metrics.jsonl`.

    Every rank calls this; only the main rank writes. Returns the data it was trained on. Raises
    A2Error for unusable data or weights and on a loss that is not finite, Interrupted after saving.
    """
    device, ranks = prepare_device(run.runtime), Ranks.current()
    require_double(device, "the detector")
    torch.manual_seed(config.seed)  # nothing draws from it, but its state is in each checkpoint
    data = read_detector_data(config)
    families = family_ids(config, data.training.attributes)
    detector = TrainableDetector(
        new_detector(config, data.training),
        learns_norms=config.norms == "learnt",
        attribute_loss=AttributeLoss(config.attribute_loss, tuple(families.values())),
    ).to(device)
    ranks.broadcast_tensors(detector.state_dict().values())
    # the layout in which convolutions are fastest
    detector.to(memory_format=torch.channels_last)
    if ranks.is_main:
        _log_data(data)
    batches = Batches(
        DetectorDataset(data.training, flip=config.flip, seed=config.seed),
        partial(collate, meta=detector.meta),
        config.batch_size,
        config.seed,
        share=Share(ranks.rank, ranks.count, config.accumulate),
        workers=run.runtime.workers,
    )
    steps = config.epochs * len(batches)
    updater = DetectorUpdater(detector, config, steps=steps, ranks=ranks)
    validation = DetectorValidation(detector, data.validation, config, ranks)
    task = TrainingTask(
        "detector", "a2 detector train", "images", config, detector, batches, updater, validation
    )
    best = run_training(task, run)
    if ranks.is_main:
        detector.load_state_dict(best)
        _save(detector, config, data, run.folder)
    return data


def new_detector(config: DetectorConfig, data: DetectionData) -> Detector:
    """Return the initial detector; raise WeightsError if `start` cannot be used or does not fit."""
    # labels without attributes train a detector without that head
    with_attributes = config.attribute_head and bool(data.attributes)
    architecture = Architecture(
        depth=config.depth,
        width=config.width,
        classes=len(data.classes),
        attributes=len(data.attributes) if with_attributes else 0,
        anchors=len(config.anchor_sizes) * len(config.anchor_ratios),
        proposal_width=config.proposal_width,
        embedding_width=config.embedding_width if with_attributes else 0,
        attribute_width=config.attribute_width if with_attributes else 0,
    )
    meta = custom_meta(
        origin="trained by a2 detector train",
        classes=len(data.classes),
        sizes=config.anchor_sizes,
        ratios=config.anchor_ratios,
        scale=(config.min_side, config.max_side),
        last_stage=config.last_stage,
        region_pooling=config.region_pooling,
        roi_size=config.roi_size,
        proposals=config.validation_proposals,
    )
    generator = torch.Generator().manual_seed(config.seed)
    detector = random_detector(architecture, meta, generator=generator)
    if config.start is not None:
        initialise_from(detector, start_tensors(config.start), name=config.start.name)
    return detector


def start_tensors(path: Path) -> dict[str, Tensor]:
    """Load a ResNet of torchvision or a detector by the detector's keys, or raise WeightsError."""
    try:
        tensors = load_torch_file(path)
    except WeightsError:  # caffemodels and safetensors are not torch files
        tensors = {}
    if all(key in tensors for key in _TORCHVISION_KEYS):
        return resnet_tensors(tensors)
    return dict(load_detector(path).state_dict())


def _log_data(data: DetectorData) -> None:
    for purpose, part in (("train on", data.training), ("validate on", data.validation)):
        boxes = sum(len(image.boxes) for image in part.images)
        logger.info("%s %d images with %d boxes", purpose, len(part.images), boxes)
        for reason, count in part.dropped.items():
            if count:
                logger.info("%s: left out %d %s", purpose, count, reason)


def _save(
    detector: TrainableDetector, config: DetectorConfig, data: DetectorData, directory: Path
) -> None:
    path = directory / DETECTOR
    save_detector(detector.frozen(), path, dtype=getattr(torch, config.dtype))
    # figures of the stored weights, which may be rounded to float16
    stored = load_detector(path).to(next(detector.parameters()).device)
    write_json(directory / DETECTOR_FIGURES, detector_figures(stored, data.validation, config))
    names = {"classes": data.training.classes, "attributes": data.training.attributes}
    write_json(directory / DETECTOR_NAMES, names)


class DetectorUpdater(Updater[DetectorPart]):
    """Updates of a detector.

    Only the sampled anchors and regions and the statistics of learnt normalisations, each of one
    part, depend on the number of parts and ranks.
    """

    names = ("loss", "objectness", "proposal_boxes", "classes", "boxes", "attributes")

    def __init__(
        self,
        detector: TrainableDetector,
        config: DetectorConfig,
        *,
        steps: int,
        ranks: Ranks = SINGLE,
    ) -> None:
        parameters = [p for p in detector.parameters() if p.requires_grad]
        super().__init__([(parameters, _torch_optimizer(parameters, config))], config, ranks)
        self._detector = detector
        self._config = config
        self._steps = steps
        self._statistics = list(_running_statistics(detector))
        self._sampling = Sampling(
            anchors=config.anchors,
            anchor_positives=config.anchor_positives,
            proposals=config.proposals,
            regions=config.regions,
            region_positives=config.region_positives,
            roi_size=config.roi_size,
        )

    def losses(self, part: DetectorPart, number: int, index: int) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the five losses of a part, and all six."""
        seed = derived_seed(self._config.seed, self.ranks.rank, number, index)
        generator = torch.Generator().manual_seed(seed >> 1)  # 63 bits
        with forward_precision(self._config.precision, self._device):
            losses = self._detector.losses(
                part.batch.to(self._device), sampling=self._sampling, generator=generator
            )
        total = losses.total(attribute_weight=self._config.attribute_weight)
        by_name = losses.named()
        measurements = torch.stack([total, *(by_name[name] for name in self.names[1:])])
        return total, measurements.detach().float()

    def count(self, part: DetectorPart) -> int:
        """Return the images of a part."""
        return len(part.batch)

    def lr(self, number: int) -> float:
        """Return the rate of the schedule."""
        config = self._config
        return cosine_rate(config.lr, number, warmup=config.warmup, steps=self._steps)

    def end(self) -> None:
        """Average the running statistics: they have no gradient to share."""
        if self.ranks.count > 1:
            for statistic in self._statistics:
                statistic.copy_(self.ranks.sum(statistic) / self.ranks.count)


def _torch_optimizer(
    parameters: Sequence[nn.Parameter], config: DetectorConfig
) -> torch.optim.Optimizer:
    groups = decaying_groups(parameters, config.weight_decay)
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9)  # as published
    return torch.optim.AdamW(groups, lr=0.0)


def _running_statistics(detector: TrainableDetector) -> Iterator[Tensor]:
    for name, tensor in detector.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            yield tensor
