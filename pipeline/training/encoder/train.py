"""Training of an image encoder on captioned images (stage train-encoder)."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.batches.loader import Batches, Share
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.files.atomic import discard
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.grid import grid_width, load_grid_weights
from a2cap.extract.trainable_encoder import TrainableEncoder
from a2cap.pipeline.engine.artifact_names import CAPTIONS, ENCODER, VOCABULARY
from a2cap.pipeline.extraction.images import LISTING, Images
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.training_precision import forward_precision
from a2cap.pipeline.training.checkpoints import training_disk
from a2cap.pipeline.training.encoder.captioned_images import (
    CaptionedImages,
    EncoderPart,
    SquareImages,
    collate,
    unreadable,
)
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from a2cap.pipeline.training.encoder.objectives import (
    Objective,
    WordObjective,
    make_objective,
    trained_parameters,
)
from a2cap.pipeline.training.encoder.validation import EncoderInTraining, EncoderValidation
from a2cap.pipeline.training.loop import TrainingTask, run_training
from a2cap.pipeline.training.training_parts import cosine_rate, decaying_groups
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.training.updates import Updater

logger = logging.getLogger(__name__)


def train_encoder(
    config: EncoderConfig, extract: ExtractConfig, weights: Path, images: Images, run: TrainingRun
) -> Sequence[SkippedItem]:
    """Train an encoder; write it, its checkpoints and `metrics.jsonl` into the run's folder.

    weights: those to start from. images: all of the experiment.
    Every rank calls this; only the main rank writes. Returns the images that cannot be read. Raises
    A2Error for unusable data or weights and on a loss that is not finite, Interrupted after saving.
    """
    device, ranks = prepare_device(run.runtime), Ranks.current()
    folder = run.inputs["captions"].path
    captions, vocabulary = CaptionFile(folder / CAPTIONS), Vocabulary.load(folder / VOCABULARY)
    torch.manual_seed(config.seed)  # of the initial tensors, then of the main rank's dropout
    tensors = load_grid_weights(weights, extract.grid_backbone)
    encoder = TrainableEncoder(tensors, extract, share=config.trained)
    side = config.side or encoder.side
    spared = training_disk(trained_parameters(config, extract, vocabulary=len(vocabulary)))
    squares = SquareImages(images, side, config.crop, run.folder / "small", spared)
    skipped, names = _usable(config, captions, squares, run)
    width = grid_width(extract)
    objective = make_objective(config, captions, names["train"], vocabulary, width=width)
    network = EncoderInTraining(encoder, objective).to(device)
    ranks.broadcast_tensors(network.state_dict().values())
    encoder.to(memory_format=torch.channels_last)
    if ranks.is_main:
        _log(objective, names, side)
    batches = Batches(
        CaptionedImages(squares, captions, names["train"], config),
        partial(collate, pinned=device.type == "cuda"),
        config.batch_size,
        config.seed,
        share=Share(ranks.rank, ranks.count, config.accumulate),
        workers=run.runtime.workers,
    )
    updater = EncoderUpdater(network, config, steps=config.epochs * len(batches), ranks=ranks)
    whole = CaptionedImages(squares, captions, names["val"])
    validation = EncoderValidation(network, whole, config, ranks, run.runtime.workers)
    task = TrainingTask(
        "encoder",
        "a2 train --task encoder",
        objective.unit,
        config,
        network,
        batches,
        updater,
        validation,
    )
    best = run_training(task, run)
    if ranks.is_main:
        network.load_state_dict(best)
        encoder.save(run.folder / ENCODER)
        (run.folder / LISTING).unlink(missing_ok=True)
        discard(squares.folder)
    return skipped


def _usable(
    config: EncoderConfig, captions: CaptionFile, images: SquareImages, run: TrainingRun
) -> tuple[list[SkippedItem], dict[str, list[str]]]:
    """Return the images that cannot be read, and the others with captions by split."""
    ranks = Ranks.current()
    names = {split: captions.image_ids(split) for split in ("train", "val")}
    names["val"] = names["val"][: config.max_validation_images]
    image_ids = [name for split in names.values() for name in split]
    rank_ids = image_ids[ranks.rank :: ranks.count]
    seen = unreadable(images, rank_ids, workers=run.runtime.workers, shown=ranks.is_main)
    shares = ranks.all_gather(([(item.image_id, item.reason) for item in seen[0]], seen[1]))
    reasons = dict(item for items, _ in shares for item in items)
    skipped = [SkippedItem(name, reasons[name]) for name in image_ids if name in reasons]
    check_skip_limit(skipped, len(image_ids), "images")
    names = {split: [n for n in ids if n not in reasons] for split, ids in names.items()}
    for split, left in names.items():
        if not left:
            raise InputError(f"split {split!r} has no images; check the annotations")
    smallest = min(share[1] for share in shares)
    if smallest < images.side and ranks.is_main:
        logger.warning(
            "images have as few as %d pixels a side and are scaled up to encoder.side, %d; "
            "lower it if most are so small",
            smallest,
            images.side,
        )
    return skipped, names


def _log(objective: Objective, names: dict[str, list[str]], side: int) -> None:
    training, validation = (len(names[split]) for split in ("train", "val"))
    logger.info(
        "encoder: %d images of %d x %d pixels, %d to validate", training, side, side, validation
    )
    if not isinstance(objective, WordObjective):
        return
    words = len(objective.ids)
    logger.info("encoder: predicts %d words", words)
    if training < words:
        logger.warning(
            "fewer images than words: %d and %d; an encoder learns the images by heart, raise "
            "encoder.min_images, or leave the encoder as it is",
            training,
            words,
        )


class EncoderUpdater(Updater[EncoderPart]):
    """Updates of an encoder by AdamW."""

    names = ("loss",)
    waits_seldom = True
    smaller = "raise encoder.accumulate, or lower encoder.batch_size or encoder.side"

    def __init__(
        self,
        network: EncoderInTraining,
        config: EncoderConfig,
        *,
        steps: int,
        ranks: Ranks = SINGLE,
    ) -> None:
        parameters = [p for p in network.parameters() if p.requires_grad]
        encoder = [p for p in network.encoder.parameters() if p.requires_grad]
        groups = decaying_groups(encoder, config.weight_decay)
        for group in decaying_groups(list(network.objective.parameters()), config.weight_decay):
            groups.append({**group, "rate": network.objective.rate})
        optimiser = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98))
        super().__init__([(parameters, optimiser)], config, ranks)
        self._network, self._config, self._steps = network, config, steps
        if ranks.count == 1:  # halves were computed, down to one image
            self.smaller = "lower encoder.side"

    def losses(self, part: EncoderPart, number: int, index: int) -> tuple[Tensor, Tensor]:
        """Return the loss of a part, twice."""
        with forward_precision(self._config.precision, self._device):
            loss = self._network.objective.loss(self._network.cells(part.pixels), part.tokens)
        return loss, loss.detach().float()[None]

    def count(self, part: EncoderPart) -> int:
        """Return the images or tokens of a part, over which its loss is a mean."""
        return self._network.objective.count(part.tokens)

    def halves(self, part: EncoderPart) -> list[EncoderPart]:
        """Return the halves of a part of at least two images."""
        return part.halves()

    def lr(self, number: int) -> float:
        """Return the rate of the schedule."""
        config = self._config
        return cosine_rate(config.lr, number, warmup=config.warmup, steps=self._steps)
