"""The work of stage train-xe: cross-entropy with the mask loss, from an untrained captioner."""

import logging
from pathlib import Path

import torch

from a2cap.data.batches.dataset import CaptionDataset
from a2cap.model.captioners.transformer.compile import compile_layers
from a2cap.model.config import ModelConfig
from a2cap.pipeline.captioning.saved_captioner import (
    ModelDescription,
    new_captioner,
    save_captioner,
)
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import Processes
from a2cap.pipeline.runtime.precision import matrix_precision
from a2cap.pipeline.training.captioner.config import TrainConfig
from a2cap.pipeline.training.captioner.data import read_training_data
from a2cap.pipeline.training.captioner.optimization import CrossEntropyOptimisation
from a2cap.pipeline.training.captioner.task import captioner_phase
from a2cap.pipeline.training.loop import run_training

logger = logging.getLogger(__name__)


def train_captioner(
    config: TrainConfig,
    model: ModelConfig,
    features: Path,
    captions: Path,
    runtime: RuntimeConfig,
    *,
    directory: Path,
    events: EventLog,
) -> None:
    """Fills `directory` with a trained captioner, its checkpoints and `metrics.jsonl`.

    Of processes that train together each calls this; only the first one writes. Raises StoreError
    where images have no features, InputError where vocabulary and captions do not belong
    together, A2Error on a loss that is not finite, Interrupted after saving.
    """
    device = prepare_device(runtime)
    processes = Processes.connected()
    data = read_training_data(features, captions)
    description = ModelDescription(
        model=model,
        region_width=data.store.feature_width,
        vocabulary_size=len(data.vocabulary),
        vocabulary_digest=data.vocabulary.digest,
        max_regions=config.max_regions,
    )
    torch.manual_seed(config.seed)
    captioner = new_captioner(description).to(device)
    processes.make_equal(captioner.state_dict().values())
    if config.compile:
        compile_layers(captioner, warn=logger.warning)
    phase = captioner_phase(
        "train",
        config,
        captioner,
        data,
        CaptionDataset(
            data.store.path,
            data.captions,
            "train",
            captions_per_image=config.captions_per_image,
            max_regions=config.max_regions,
            seed=config.seed,
            grouping=config.grouping,
            skipped=data.skipped,
        ),
        CrossEntropyOptimisation(captioner, config, processes),
        runtime,
        max_regions=config.max_regions,
        processes=processes,
    )
    with matrix_precision(config.precision):
        best = run_training(phase, processes=processes, directory=directory, events=events)
    if processes.leads:
        save_captioner(directory, best, description, data.vocabulary, features=features)
