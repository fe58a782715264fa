"""Training of a detector on labelled images (stage train-detector)."""

import logging
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.batches.loader import Share
from a2cap.data.detection.labels import DetectionData
from a2cap.data.errors import WeightsError
from a2cap.data.files.json_file import write_json
from a2cap.extract.detector.conventions import custom_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.training.losses import AttributeLoss
from a2cap.extract.training.trainable import TrainableDetector
from a2cap.extract.weights.imagenet import resnet_tensors
from a2cap.extract.weights.initial import initialise_from, random_detector
from a2cap.extract.weights.load import load_detector, save_detector
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.pipeline.engine.artifacts import DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.training.detector.attribute_accuracy import family_ids
from a2cap.pipeline.training.detector.batches import DetectorDataset, DetectorPart, collate
from a2cap.pipeline.training.detector.config import DetectorConfig
from a2cap.pipeline.training.detector.data import DetectorData, read_detector_data
from a2cap.pipeline.training.detector.optimization import DetectorOptimizer
from a2cap.pipeline.training.detector.validation import DetectorValidation, detector_figures
from a2cap.pipeline.training.loop import TrainingTask, run_training
from a2cap.pipeline.training.task import Batches, TrainingRun

logger = logging.getLogger(__name__)

_TORCHVISION_KEYS = ("conv1.weight", "layer1.0.conv1.weight")  # in all of its ResNets


def train_detector(config: DetectorConfig, run: TrainingRun) -> DetectorData:
    """Train a detector; write it, its figures, checkpoints and `metrics.jsonl`.

    Every rank calls this; only the main rank writes. Returns the data it was trained on. Raises
    A2Error for unusable data or weights and on a loss that is not finite, Interrupted after saving.
    """
    device, ranks = prepare_device(run.runtime), run.ranks
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
    best = run_training(_task(config, run, detector, data), run)
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


def _task(
    config: DetectorConfig, run: TrainingRun, detector: TrainableDetector, data: DetectorData
) -> TrainingTask[DetectorPart]:
    ranks = run.ranks
    batches = Batches(
        DetectorDataset(data.training, flip=config.flip, seed=config.seed),
        partial(collate, meta=detector.meta),
        config,
        share=Share(ranks.rank, ranks.count, config.accumulate),
        workers=run.runtime.workers,
    )
    return TrainingTask(
        section="detector",
        command="a2 detector train",
        unit="images",
        config=config,
        network=detector,
        batches=batches,
        optimizer=DetectorOptimizer(
            detector, config, steps=config.epochs * len(batches), ranks=ranks
        ),
        validation=DetectorValidation(detector, data.validation, config, ranks),
    )


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
