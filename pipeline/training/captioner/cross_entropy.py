"""Cross-entropy training of a captioner, with the mask loss (stage train-xe).

The captioner's parameters follow the caption loss alone and the mask network's the mask loss alone
(Eq. 4 and 11 of the A2 paper).
"""

import logging
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from a2cap.data.batches.collate import FEW_SHAPES, Batch, token_positions
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.identities import shared_images
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import FUSIONS
from a2cap.model.captioner import Teaching
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.model.losses import TwoLosses, two_losses
from a2cap.model.plug_ins import plug_in_of
from a2cap.model.scheduled_sampling import scheduled_inputs
from a2cap.pipeline.captioning.model_description import EXTRACTOR, ModelDescription
from a2cap.pipeline.captioning.saved_captioner import (
    LoadedCaptioner,
    load_model,
    new_captioner,
    save_captioner,
)
from a2cap.pipeline.runtime.device import compiles_updates, prepare_device
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.training_precision import forward_precision
from a2cap.pipeline.training.captioner.caption_validation import (
    CaptionValidation,
    start_score,
    training_batches,
)
from a2cap.pipeline.training.captioner.train_config import TrainConfig
from a2cap.pipeline.training.captioner.training_data import (
    NamedRegions,
    TrainingData,
    read_training_data,
    require_kind_of_regions,
    require_same_attributes,
    unseen_attributes,
)
from a2cap.pipeline.training.compiled_pass import CompiledPass
from a2cap.pipeline.training.loop import TrainingTask, run_training
from a2cap.pipeline.training.training_parts import GravesRmsprop
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.training.updates import Updater
from a2cap.pipeline.weights.captioners import captioner_folder

logger = logging.getLogger(__name__)


def train_captioner(config: TrainConfig, model: ModelConfig, run: TrainingRun) -> None:
    """Train a new captioner; write it, its checkpoints and `metrics.jsonl` into the run's folder.

    Every rank calls this; only the main rank writes. Raises A2Error for unusable inputs and on a
    loss that is not finite, Interrupted after saving.
    """
    features, device = run.inputs["features"].path, prepare_device(run.runtime)
    ranks = Ranks.current()
    data = read_training_data(features, run.inputs["captions"].path)
    if ranks.is_main:
        _warn_of_data(model, data)
    require_kind_of_regions(model, data.store, max_regions=config.max_regions)
    description = ModelDescription(
        model=model,
        region_width=data.store.feature_width,
        vocabulary_size=len(data.vocabulary),
        vocabulary_digest=data.vocabulary.digest,
        max_regions=config.max_regions,
        trained_on=data.captions.dataset or None,
        plug_in=plug_in_of(model.kind),
    )
    torch.manual_seed(config.seed)  # of the initial tensors, then of the main rank's dropout
    captioner = new_captioner(description)
    if captioner.standardisation is not None:
        captioner.standardisation.measure(data.sample_features())
    if config.frequency_bias:
        start_from_frequencies(captioner, data)
    captioner.to(device)
    # ranks on different machines may initialise differently
    ranks.broadcast_tensors(captioner.state_dict().values())
    if config.start is not None:
        folder = captioner_folder(config.start, "train.start")
        warn_of_another_extractor(folder, features)
        start = load_model(folder, device=device)
        start_from(start, captioner, description.model, data.vocabulary)
    validation = CaptionValidation(captioner, data, config, description, ranks)
    if config.start is not None:
        validation = replace(validation, start=start_score(validation))
    batches = training_batches(
        validation, run.runtime, grouping=config.grouping, max_words=config.max_words
    )
    supervision = None
    if config.supervision:
        supervision = NamedRegions.read(run.inputs["instances"].path, data.vocabulary)
    compiles = compiles_updates(run.runtime, device, deterministic=config.deterministic)
    updater = CrossEntropyUpdater(
        captioner,
        config,
        ranks,
        steps_per_epoch=len(batches),
        supervision=supervision,
        compiles=compiles,
    )
    task = TrainingTask(
        "train", "a2 train", "tokens", config, captioner, batches, updater, validation
    )
    best = run_training(task, run)
    if ranks.is_main:
        save_captioner(run.folder, best, description, data.vocabulary, features=features)


def start_from_frequencies(captioner: EncoderDecoder, data: TrainingData) -> None:
    """Set the output bias to the log-frequency of each token."""
    bias = getattr(captioner.decoder.output, "bias", None)
    if bias is None:
        raise InputError(
            "train.frequency_bias is true, but the output layer of "
            f"model.kind={captioner.config.kind} has no bias; set train.frequency_bias=false"
        )
    counts = data.token_counts() + 1  # a token that no caption contains stays possible
    bias.data.copy_((counts / counts.max()).log())


def _warn_of_data(model: ModelConfig, data: TrainingData) -> None:
    """Log images that two splits share, and attributes that no training caption contains."""
    if shared := shared_images(data.captions.splits, data.store.checksum, "features"):
        logger.warning("%s", shared)
    if unseen := unseen_attributes(model, data):
        logger.warning(
            "no training caption contains %d attributes, whose probability goes to 0: %s",
            *(len(unseen), ", ".join(unseen[:10])),
        )


class CrossEntropyUpdater(Updater[Batch]):
    """Updates of a captioner and its mask network, each by its own loss and its own Adam."""

    waits_seldom = True

    def __init__(
        self,
        captioner: EncoderDecoder,
        config: TrainConfig,
        ranks: Ranks = SINGLE,
        *,
        steps_per_epoch: int = 1,
        supervision: NamedRegions | None = None,
        compiles: bool = False,
    ) -> None:
        sides = map(list, (caption_parameters(captioner), mask_parameters(captioner)))
        optimised = [(side, _optimiser(config, side)) for side in sides if side]
        super().__init__(optimised, config, ranks, ema=config.ema)
        self._steps_per_epoch = steps_per_epoch
        self._supervision = supervision
        self._captioner = captioner
        self._config = config
        terms = {"supervision": config.supervision, "label_smoothing": config.label_smoothing}
        self._penalties = (*captioner.penalty_names, *(name for name, on in terms.items() if on))
        masks: tuple[str, ...] = ()
        if captioner.has_masks:
            is_learned = FUSIONS[captioner.config.alignment.fusion].learned
            gate = ("mean_gate",) if is_learned else ()
            masks = ("mask_loss", "mean_mask", "mask_penalty", "delta_nll", *gate)
        self.names = ("caption_loss", *self._penalties, *masks)
        self._pass = self._forward
        if compiles and config.scheduled_sampling:
            # what the decoder reads changes the graph from update to update
            logger.warning("updates run uncompiled: train.scheduled_sampling is above 0")
        elif compiles:
            self._pass = self.compiled = CompiledPass(self._forward, config, ranks, self._device)

    def losses(self, part: Batch, number: int, index: int) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of a part, tokens (B, K, L), and its measurements."""
        targets = None
        if self._supervision is not None:
            targets = self._supervision.targets(part).to(self._device, non_blocking=True)
        assert part.tokens is not None  # `count` requires them
        self._captioner.check(part.region_mask, part.tokens)
        if self.compiled is not None and part.positions is None:
            part = replace(part, positions=token_positions(part.tokens, FEW_SHAPES))
        batch, config = part.to(self._device, non_blocking=True), self._config
        epochs = (number - 1) // self._steps_per_epoch
        rate = config.scheduled_sampling * min(1.0, epochs / config.scheduled_sampling_epochs)
        assert batch.tokens is not None
        regions = batch.features, batch.boxes, batch.region_mask
        return self._pass(*regions, batch.tokens, batch.positions, targets, rate)

    def _forward(
        self,
        features: Tensor,
        boxes: Tensor,
        region_mask: Tensor,
        tokens: Tensor,
        positions: Tensor | None,
        targets: Tensor | None,
        rate: float,
    ) -> tuple[Tensor, Tensor]:
        """Encode, decode and compute both losses; rate: of scheduled sampling."""
        captioner, config = self._captioner, self._config
        with forward_precision(config.precision, self._device, captioner):
            memory = captioner.encode(features, boxes, region_mask)
            inputs = scheduled_inputs(captioner, memory, tokens, rate=rate) if rate else None
            teaching = Teaching(
                inputs, config.label_smoothing, positions, targets, config.supervision
            )
            losses = two_losses(captioner, memory, tokens, teaching=teaching)
        # one backward pass: the two losses share no parameter
        return losses.total(), torch.stack(_measurements(losses)).float()

    def begin(self, number: int) -> None:
        """Set s of Eq. 8."""
        self._captioner.schedule_step.fill_(number)

    def count(self, part: Batch) -> int:
        """Return the tokens of a part."""
        if part.tokens is None:
            raise ValueError("batch has no captions; train on batches of a CaptionDataset")
        return int((part.tokens != self._captioner.special.pad).sum())

    def halves(self, part: Batch) -> list[Batch]:
        """Return the halves of a part of at least two images."""
        return part.halves()

    def lr(self, number: int) -> float:
        """Return the rate of the schedule."""
        width = self._captioner.config.width
        return learning_rate(
            self._config, number, width=width, steps_per_epoch=self._steps_per_epoch
        )

    def end(self) -> None:
        """Average the moving averages of the ranks: a checkpoint contains those of rank 0."""
        for average in self._captioner.moving_averages:
            average.copy_(self.ranks.sum(average.clone()) / self.ranks.count)

    def report(
        self, measured: dict[str, float], amount: int
    ) -> tuple[int, dict[str, float], dict[str, float]]:
        """Return the tokens, the losses and all measurements."""
        means = {"loss": measured["caption_loss"], "mask_loss": measured.get("mask_loss", 0.0)}
        means |= {n: measured[n] for n in ("mean_mask", *self._penalties) if n in measured}
        return amount, means, measured


def _optimiser(config: TrainConfig, side: list[nn.Parameter]) -> torch.optim.Optimizer:
    decay = config.weight_decay
    # the rate is set before every step
    if config.optimiser == "sgd":
        return torch.optim.SGD(side, lr=0.0, momentum=0.9, weight_decay=decay)
    if config.optimiser == "rmsprop":
        return GravesRmsprop(side, lr=0.0, weight_decay=decay)
    return torch.optim.Adam(side, lr=0.0, betas=config.betas, weight_decay=decay, fused=True)


def _measurements(losses: TwoLosses) -> list[Tensor]:
    """Return the measurements in the order of `CrossEntropyUpdater.names`, detached."""
    measured = [losses.caption.detach(), *(p.detach() for p in losses.penalties.values())]
    if losses.mask is not None and losses.masks is not None:
        masks = losses.masks
        measured += [losses.mask.detach(), masks.keep, masks.penalty, masks.harm]
        if masks.gate is not None:
            measured.append(masks.gate)
    return measured


def learning_rate(config: TrainConfig, step: int, *, width: int, steps_per_epoch: int = 1) -> float:
    """Return the rate of update `step` (1 is the first) for a captioner of model width D."""
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "noam":
        # Vaswani et al. 2017, section 5.3
        noam: float = width**-0.5 * min(step**-0.5, step * config.warmup**-1.5)
        return config.lr * noam
    rate = config.lr * min(1.0, step / config.warmup)
    if config.schedule == "step":
        epochs = (step - 1) // steps_per_epoch
        return rate * config.decay ** (epochs // config.decay_every)
    done = (step - 1) / (config.epochs * steps_per_epoch)
    return rate * (1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


_FREE = ("alignment", "attention", "hard", "doubly_stochastic", "blind", "prophet")
"""Settings that may differ, as rates of dropout may: the other tensors keep their meaning."""
_OF_WORDS = ("decoder.embedding.", "decoder.output.")


def warn_of_another_extractor(start: Path, features: Path) -> None:
    """Log a warning if a saved captioner was trained on regions of another extractor."""
    old, new = (ExtractorRecord.read(folder / EXTRACTOR) for folder in (start, features))
    if different := new.differences(old):
        logger.warning(
            "train.start was trained on regions of another extractor: %s differs in %s; extract "
            "with its weights and configuration, unless the captioner shall learn other regions",
            *(EXTRACTOR, ", ".join(different)),
        )


@torch.no_grad()
def start_from(
    start: LoadedCaptioner[EncoderDecoder],
    captioner: EncoderDecoder,
    model: ModelConfig,
    vocabulary: Vocabulary,
) -> None:
    """Copy the tensors of a saved captioner into a new one with these settings and this vocabulary.

    Words that the saved one does not know and a new alignment keep their initial values. Raises
    InputError naming the first setting or tensor that does not fit.
    """
    for name in ("kind", *type(model).model_fields):
        old, new = (getattr(settings, name) for settings in (start.description.model, model))
        if old != new and name not in _FREE and "dropout" not in name:
            raise InputError(
                f"train.start does not fit: its {name} is {old!r}, model.{name} is {new!r}; "
                f"set model.{name} to {old!r}, or name another captioner"
            )
    require_same_attributes(model, start.vocabulary, vocabulary)
    ids = {token: number for number, token in enumerate(start.vocabulary.words)}
    shared = [number for number, token in enumerate(vocabulary.words) if token in ids]
    rows = [ids[vocabulary.words[number]] for number in shared]
    before, after = start.captioner.state_dict(), captioner.state_dict()
    for name in sorted(before.keys() | after.keys()):
        is_new = name not in before and "alignment" in name
        if is_new or name.startswith("prophet."):  # which serves one training alone
            continue
        old, new = before.get(name), after.get(name)
        is_of_words = name.startswith(_OF_WORDS)
        if old is None or new is None or old.shape[is_of_words:] != new.shape[is_of_words:]:
            shapes = [t if t is None else tuple(t.shape) for t in (old, new)]
            raise InputError(
                f"train.start does not fit: {name!r} has shape {shapes[0]} there and {shapes[1]} "
                "in the new captioner; set the section model as it was, or name another captioner"
            )
        if is_of_words:
            new[shared] = old[rows]
        else:
            new.copy_(old)
    logger.info("train: %d of %d tokens are known from train.start", len(shared), len(vocabulary))
