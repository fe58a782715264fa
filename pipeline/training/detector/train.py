"""The work of stage train-detector: labelled images to a detector's weights."""

import logging
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.batches.loader import Share
from a2cap.data.detection.labels import DetectionData
from a2cap.data.errors import WeightsError
from a2cap.data.files.json_file import write_json
from a2cap.extract.detector.conventions import meta_for
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.training.trainable import TrainableDetector
from a2cap.extract.weights.imagenet import resnet_tensors
from a2cap.extract.weights.initial import begin_with, random_detector
from a2cap.extract.weights.load import load_detector, save_detector
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.pipeline.engine.artifacts import DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import Processes
from a2cap.pipeline.runtime.precision import matrix_precision
from a2cap.pipeline.training.detector.batches import DetectorBatches, DetectorDataset, DetectorPart
from a2cap.pipeline.training.detector.config import DetectorConfig
from a2cap.pipeline.training.detector.data import DetectorData, read_detector_data
from a2cap.pipeline.training.detector.optimization import DetectorOptimisation
from a2cap.pipeline.training.detector.validation import DetectorValidation, detector_figures
from a2cap.pipeline.training.loop import run_training
from a2cap.pipeline.training.task import Phase

logger = logging.getLogger(__name__)

_IMAGENET = ("conv1.weight", "layer1.0.conv1.weight")
"""Keys by which torchvision's ResNets are known."""


def train_detector(
    config: DetectorConfig, runtime: RuntimeConfig, *, directory: Path, events: EventLog
) -> DetectorData:
    """Fills `directory` with a trained detector, its figures, checkpoints and `metrics.jsonl`.

    Of processes that train together each calls this; only the first one writes. Returns what it was
    trained on. Raises InputError and ConfigError for data that cannot be used, WeightsError where
    `start` does not fit, A2Error on a loss that is not finite, Interrupted after saving.
    """
    device = prepare_device(runtime)
    processes = Processes.connected()
    data = read_detector_data(config)
    detector = TrainableDetector(
        new_detector(config, data.training), learns_norms=config.norms == "learnt"
    ).to(device)
    processes.make_equal(detector.state_dict().values())
    detector.to(memory_format=torch.channels_last)
    if processes.leads:
        _say(data)
    phase = _phase(config, runtime, detector, data, processes)
    with matrix_precision(config.precision):
        best = run_training(phase, processes=processes, directory=directory, events=events)
    if processes.leads:
        detector.load_state_dict(best)
        _save(detector, config, data, directory)
    return data


def new_detector(config: DetectorConfig, data: DetectionData) -> Detector:
    """The detector as training begins with it; equal configurations give equal ones.

    Raises WeightsError where `start` does not fit depth and width, or is of no known layout.
    """
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
    meta = meta_for(
        origin="trained by a2 detector train",
        classes=len(data.classes),
        sizes=config.anchor_sizes,
        ratios=config.anchor_ratios,
        scale=(config.min_side, config.max_side),
        last_stage=config.last_stage,
        region_pooling=config.region_pooling,
    )
    generator = torch.Generator().manual_seed(config.seed)
    detector = random_detector(architecture, meta, generator=generator)
    if config.start is not None:
        begin_with(detector, start_tensors(config.start), name=config.start.name)
    return detector


def start_tensors(path: Path) -> dict[str, Tensor]:
    """What training begins with: torchvision's ResNet or a detector, by the detector's keys.

    Raises WeightsError where the file is neither.
    """
    try:
        tensors = load_torch_file(path)
    except WeightsError:
        tensors = {}
    if all(key in tensors for key in _IMAGENET):
        return resnet_tensors(tensors)
    return dict(load_detector(path).state_dict())


def _phase(
    config: DetectorConfig,
    runtime: RuntimeConfig,
    detector: TrainableDetector,
    data: DetectorData,
    processes: Processes,
) -> Phase[DetectorPart]:
    batches = DetectorBatches(
        DetectorDataset(data.training, flip=config.flip, seed=config.seed),
        config,
        detector.meta,
        share=Share(processes.rank, processes.count, config.accumulate),
        workers=runtime.workers,
    )
    return Phase(
        section="detector",
        command="a2 detector train",
        unit="images",
        settings=config,
        network=detector,
        batches=batches,
        optimisation=DetectorOptimisation(
            detector, config, steps=config.epochs * len(batches), processes=processes
        ),
        validation=DetectorValidation(detector, data.validation, config, processes),
    )


def _say(data: DetectorData) -> None:
    for purpose, part in (("train on", data.training), ("validate on", data.validation)):
        boxes = sum(len(image.boxes) for image in part.images)
        logger.info("%s %d images with %d boxes", purpose, len(part.images), boxes)
        for what, count in part.dropped.items():
            if count:
                logger.info("%s: left out %d %s", purpose, count, what)


def _save(
    detector: TrainableDetector, config: DetectorConfig, data: DetectorData, directory: Path
) -> None:
    """Weights as they are stored, and the figures of just these."""
    path = directory / DETECTOR
    save_detector(detector.frozen(), path, dtype=getattr(torch, config.dtype))
    stored = load_detector(path).to(next(detector.parameters()).device)
    write_json(directory / DETECTOR_FIGURES, detector_figures(stored, data.validation, config))
    names = {"classes": data.training.classes, "attributes": data.training.attributes}
    write_json(directory / DETECTOR_NAMES, names)
