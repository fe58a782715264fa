"""Cross-entropy training of a captioner, with the mask loss (stage train-xe).

The captioner's parameters follow the caption loss alone and the mask network's the mask loss alone
(Eq. 4 and 11 of the A2 paper).
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from a2cap.data.batches.collate import Batch
from a2cap.model.captioner import Teaching
from a2cap.model.captioners.compile import compile_captioner
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.losses import TwoLosses, two_losses
from a2cap.model.scheduled_sampling import scheduled_inputs
from a2cap.pipeline.captioning.model_description import (
    ModelDescription,
)
from a2cap.pipeline.captioning.saved_captioner import (
    load_model,
    new_captioner,
)
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.precision import forward_precision
from a2cap.pipeline.training.captioner.config import CrossEntropyJob, TrainConfig
from a2cap.pipeline.training.captioner.data import read_training_data, require_kind_of_regions
from a2cap.pipeline.training.captioner.start import start_from, warn_of_another_extractor
from a2cap.pipeline.training.captioner.task import (
    CaptionValidation,
    train_and_save,
    training_batches,
)
from a2cap.pipeline.training.optimizer import Optimizer, Update, optimised_sides

logger = logging.getLogger(__name__)

_GPU_READ_INTERVAL = 20  # updates on a GPU between two reads of their measurements


def train_captioner(
    job: CrossEntropyJob, runtime: RuntimeConfig, *, directory: Path, events: EventLog
) -> None:
    """Train a new captioner; write it, its checkpoints and `metrics.jsonl` into `directory`.

    Every rank calls this; only the main rank writes. Raises A2Error for unusable inputs and on a
    loss that is not finite, Interrupted after saving.
    """
    config, ranks, device = job.train, Ranks.current(), prepare_device(runtime)
    data = read_training_data(job.features, job.captions)
    require_kind_of_regions(job.model, data.store, max_regions=config.max_regions)
    description = ModelDescription(
        model=job.model,
        region_width=data.store.feature_width,
        vocabulary_size=len(data.vocabulary),
        vocabulary_digest=data.vocabulary.digest,
        max_regions=config.max_regions,
        trained_on=data.captions.dataset or None,
    )
    torch.manual_seed(config.seed)  # of the initial tensors, then of the main rank's dropout
    captioner = new_captioner(description)
    if captioner.standardisation is not None:
        captioner.standardisation.measure(data.sample_features())
    captioner.to(device)
    # ranks on different machines may initialise differently
    ranks.broadcast_tensors(captioner.state_dict().values())
    if config.start is not None:
        warn_of_another_extractor(config.start, job.features)
        start = load_model(config.start, device=device)
        start_from(start, captioner, description.model, data.vocabulary)
    compile_captioner(captioner, config.compile, warn=logger.warning)
    validation = CaptionValidation(captioner, data, config, description, ranks)
    batches = training_batches(
        validation, runtime, grouping=config.grouping, max_words=config.max_words
    )
    optimizer = CrossEntropyOptimizer(captioner, config, ranks, steps_per_epoch=len(batches))
    train_and_save("train", optimizer, batches, validation, directory=directory, events=events)


@dataclass(frozen=True)
class _PendingUpdate:
    """An update whose measurements have not been read yet."""

    number: int
    image_ids: tuple[str, ...]
    values: Tensor  # (M,) float32, this rank's share of the means over tokens
    tokens: int
    lr: float
    gradient_norm: Tensor  # a scalar, of all ranks


class CrossEntropyOptimizer(Optimizer[Batch]):
    """Updates of a captioner and its mask network, each by its own loss and its own Adam."""

    def __init__(
        self,
        captioner: EncoderDecoder,
        config: TrainConfig,
        ranks: Ranks = SINGLE,
        *,
        steps_per_epoch: int = 1,
    ) -> None:
        sides = (captioner.caption_parameters(), captioner.mask_parameters())
        optimised = optimised_sides(sides, partial(_optimiser, config))
        super().__init__(optimised, config, ranks, ema=config.ema)
        self._steps_per_epoch = steps_per_epoch
        self._captioner = captioner
        self._config = config
        self._read_interval = _read_interval(self._device)
        self._pending: list[_PendingUpdate] = []

    def step(self, parts: Sequence[Batch], number: int) -> list[Update]:
        """Make update `number` by this rank's parts of a batch, tokens (B, K, L).

        Returns the updates read by now: each one on a CPU, every 20 on a GPU.
        """
        self._captioner.schedule_step.fill_(number)  # s of Eq. 8
        self._zero_grad()
        # counted before the parts are on a GPU, so that nothing waits for it
        counts = [int((_tokens(part) != self._captioner.special.pad).sum()) for part in parts]
        tokens = int(self._ranks.sum(torch.tensor(sum(counts))))
        values = torch.zeros(len(self._names), device=self._device)
        rate = sampling_rate(self._config, number, steps_per_epoch=self._steps_per_epoch)
        for part, count in zip(self._overlapped(parts), counts, strict=True):
            # losses are means over tokens, so parts count by their share of the tokens
            values += self._backward(part, count / max(tokens, 1), sampling_rate=rate)
        lr = learning_rate(
            self._config,
            number,
            width=self._captioner.config.width,
            steps_per_epoch=self._steps_per_epoch,
        )
        for average in self._captioner.moving_averages:
            # equal on all ranks, as a checkpoint holds that of rank 0
            average.copy_(self._ranks.sum(average.clone()) / self._ranks.count)
        image_ids = tuple(name for part in parts for name in part.image_ids)
        norm = self._reduce_gradients()
        self._pending.append(_PendingUpdate(number, image_ids, values, tokens, lr, norm))
        updates = self.flush() if len(self._pending) >= self._read_interval else []
        # on a GPU an update that is not finite is applied, but found before the next checkpoint
        if all(update.finite for update in updates):
            self._apply(lr)
        return updates

    def flush(self) -> list[Update]:
        """Read the measurements of the updates that have not been read yet."""
        if not self._pending:
            return []
        pending, self._pending = self._pending, []
        values = self._ranks.sum(torch.stack([update.values for update in pending])).tolist()
        norms = torch.stack([update.gradient_norm for update in pending]).tolist()
        updates = []
        for update, measured, norm in zip(pending, values, norms, strict=True):
            found = dict(zip(self._names, measured, strict=True))
            means = {"loss": found["caption_loss"], "mask_loss": found.get("mask_loss", 0.0)}
            others = ("mean_mask", *self._penalty_names)
            means |= {name: found[name] for name in others if name in found}
            scalars = {**found, "lr": update.lr}
            updates.append(
                Update(update.number, update.image_ids, update.tokens, means, scalars, norm)
            )
        return updates

    @property
    def _penalty_names(self) -> tuple[str, ...]:
        smoothing = ("label_smoothing",) if self._config.label_smoothing else ()
        return (*self._captioner.penalty_names, *smoothing)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the measurements, equal on a rank without a part of the batch."""
        losses = ("caption_loss", *self._penalty_names)
        if not self._captioner.has_masks:
            return losses
        gated = self._captioner.config.alignment.fusion == "gate"
        masks = ("mask_loss", "mean_mask", "mask_penalty", "delta_nll")
        return (*losses, *masks, *(("mean_gate",) if gated else ()))

    def _backward(self, part: Batch, weight: float, *, sampling_rate: float) -> Tensor:
        """Add the gradients of a part; return its weighted measurements, (M,) float32."""
        batch = part.to(self._device, non_blocking=True)
        captioner = self._captioner
        with forward_precision(self._config.precision, self._device, captioner):
            memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
            inputs = None
            if sampling_rate:
                inputs = scheduled_inputs(captioner, memory, _tokens(batch), rate=sampling_rate)
            teaching = Teaching(inputs, self._config.label_smoothing, batch.positions)
            losses = two_losses(captioner, memory, _tokens(batch), teaching=teaching)
        # one backward pass: the two losses share no parameter
        torch.autograd.backward(losses.total() * weight)
        return torch.stack(_measurements(losses)).float() * weight


def _optimiser(config: TrainConfig, side: list[nn.Parameter]) -> torch.optim.Optimizer:
    decay = config.weight_decay
    # the rate is set before every step
    if config.optimiser == "sgd":
        return torch.optim.SGD(side, lr=0.0, momentum=0.9, weight_decay=decay)
    if config.optimiser == "rmsprop":
        # Graves adds 1e-4 within the root
        return torch.optim.RMSprop(
            side, lr=0.0, alpha=0.95, eps=1e-2, momentum=0.9, centered=True, weight_decay=decay
        )
    return torch.optim.Adam(side, lr=0.0, betas=config.betas, weight_decay=decay, fused=True)


def _read_interval(device: torch.device) -> int:
    # reading a value waits for a GPU to finish; on a CPU it is there already
    return 1 if device.type == "cpu" else _GPU_READ_INTERVAL


def _tokens(batch: Batch) -> Tensor:
    if batch.tokens is None:
        raise ValueError("batch has no captions; train on batches of a CaptionDataset")
    return batch.tokens


def _measurements(losses: TwoLosses) -> list[Tensor]:
    """Return the measurements in the order of `CrossEntropyOptimizer._names`, detached."""
    found = [losses.caption.detach(), *(one.detach() for one in losses.penalties.values())]
    if losses.mask is not None and losses.statistics is not None:
        masks = losses.statistics
        found += [losses.mask.detach(), masks.keep, masks.penalty, masks.harm]
        if masks.gate is not None:
            found.append(masks.gate)
    return found


def sampling_rate(config: TrainConfig, step: int, *, steps_per_epoch: int) -> float:
    """Return the probability of scheduled sampling at update `step` (1 is the first)."""
    epochs = (step - 1) // steps_per_epoch
    return config.scheduled_sampling * min(1.0, epochs / config.scheduled_sampling_epochs)


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
