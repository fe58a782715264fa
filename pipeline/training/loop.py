"""Training in epochs, validated and resumable, for any training task.

    load the newest checkpoint: network, optimisers, RNG states, position
    for epoch, while epochs are left and validation has improved within `patience`:
        for parts in the batches from the position on:
            updater.step(parts)                  # pipeline/training/updates.py
            add the losses to the epoch's means; stop with an error if one is not finite
            every `checkpoint_every` updates, and before an interruption: save a checkpoint
        validate the network with averaged weights
        write the epoch's line of metrics.jsonl and TensorBoard
        keep the position of the best epoch; save a checkpoint
    return the tensors of the best epoch

Resume is exact: the order of images, the choice of captions and dropout depend only on the seed
and on the checkpoint, so an interrupted run ends with the same tensors, bit for bit, as an
uninterrupted one.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, Generic

from torch import Tensor, nn

from a2cap.data.batches.loader import Batches
from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.artifact_names import CHECKPOINTS
from a2cap.pipeline.engine.interruption import StopRequest, stop_between_steps
from a2cap.pipeline.engine.progress import format_duration, track
from a2cap.pipeline.runtime.device_errors import device_failure
from a2cap.pipeline.runtime.distributed import RankError
from a2cap.pipeline.runtime.training_precision import (
    deterministic_operations,
    matrix_precision,
    warn_about_bf16,
)
from a2cap.pipeline.training.checkpoints import Checkpoints, Position, SavedTraining
from a2cap.pipeline.training.summary import TrainingSummary, zero_warning
from a2cap.pipeline.training.training_config import TrainingConfig
from a2cap.pipeline.training.training_parts import Part, TrainingRecord, Update, Validation
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.training.updates import Updater

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingTask(Generic[Part]):
    """One training: the network, its data, its updates and its validation."""

    section: str  # of the configuration; for error messages, like the command
    command: str
    unit: str  # of `Update.amount`, for the reported speed
    config: TrainingConfig
    network: nn.Module
    batches: Batches[Any, Part]
    updater: Updater[Part]
    validation: Validation


def run_training(task: TrainingTask[Part], run: TrainingRun) -> dict[str, Tensor]:
    """Train from the newest checkpoint; return the best epoch's tensors, on the main rank only.

    Raises A2Error on a loss that is not finite, Interrupted after saving a checkpoint.
    """
    ranks, config = task.updater.ranks, task.config
    recorded = closing(TrainingRecord(run.folder, run.events)) if ranks.is_main else nullcontext()
    device = next(task.network.parameters()).device
    switch = deterministic_operations(device) if config.deterministic else nullcontext()
    if ranks.is_main:
        warn_about_bf16(config.precision, device)
    with (
        matrix_precision(config.precision),
        switch,
        recorded as record,
        stop_between_steps() as stop,
    ):
        checkpoints = Checkpoints(run.folder / CHECKPOINTS, task.command)
        saved = SavedTraining(task.network, task.updater, config.seed, device, run, checkpoints)
        position = saved.resume()
        training = TrainingLoop(task, record, saved, position)
        start = task.validation.start
        if record is not None and start is not None and not position.step:
            record.epoch({"epoch": 0, "step": 0, task.validation.selected_by: start})
        while position.epoch < config.epochs and position.selection.stale < config.patience:
            try:
                training.run_epoch(stop)
            except (RuntimeError, RankError) as error:
                # A signal to the process group may end other ranks before this rank handles it;
                # then any operation fails here, and nothing more can be saved.
                stop.raise_if_pending()
                if failure := device_failure(error, step=training.position.step):
                    raise A2Error(failure) from error
                raise
            position = training.position
        best = saved.best_tensors(position, section=task.section) if ranks.is_main else {}
        if ranks.is_main:
            checkpoints.drop_old(position.selection.step, kept=1)  # to go on from, and the best
            _report_end(task, position, run)
        stop.raise_if_pending()  # safe alone: no rank waits for this one any more
        return best


@dataclass
class TrainingLoop(Generic[Part]):
    """One training over its epochs; record: None on ranks that do not write."""

    task: TrainingTask[Part]
    record: TrainingRecord | None
    saved: SavedTraining
    position: Position

    def run_epoch(self, stop: StopRequest) -> None:
        """Train to the end of the epoch, validate, and write a checkpoint.

        Raises Interrupted when all ranks agree to stop: after an update, which is saved first, or
        at the end.
        """
        task, ranks = self.task, self.task.updater.ranks
        task.network.train()
        title = f"epoch {self.position.epoch + 1}/{self.task.config.epochs}"
        steps, batch = len(task.batches), self.position.batch
        events = self.record.events if self.record else None
        with track(title, total=steps, done=batch, shown=ranks.is_main, events=events) as progress:
            started = time.monotonic()
            for parts in task.batches.epoch(self.position.epoch, start=batch):
                self._add(task.updater.step(parts, self.position.step + 1))
                self.position.step += 1
                self.position.batch += 1
                now = time.monotonic()
                self.position.seconds += now - started
                started = now
                progress.advance(1)
                if self.record is not None:
                    self.record.progress(self.position.step, total=self.task.config.epochs * steps)
                # a rank that stopped alone would leave the others waiting for its gradients
                stopping = ranks.agree_to_stop(stop)
                if self.position.step % self.task.config.checkpoint_every == 0 or stopping:
                    self._save()
                if stopping:
                    stop.raise_if_pending()
        self._end_epoch()
        if ranks.agree_to_stop(stop):
            stop.raise_if_pending()

    def _add(self, updates: Sequence[Update]) -> None:
        """Add measurements to the epoch's sums; raise A2Error if one is not finite."""
        for update in updates:
            if not update.finite:
                # the images of all ranks, since losses are summed before anyone reads them
                shares = self.task.updater.ranks.all_gather(update.image_ids)
                images = ", ".join(name for share in shares for name in share)
                raise A2Error(
                    f"loss is not finite at step {update.number}: {update.summary()} "
                    f"(images {images}); the last good checkpoint is kept, "
                    f"lower {self.task.section}.lr and train again"
                )
            for name, value in update.means.items():
                self.position.sums[name] = self.position.sums.get(name, 0.0) + value
            self.position.amount += update.amount
            if self.record is not None:
                self.record.update(update)

    def _save(self) -> None:
        self._add(self.task.updater.flush())
        self.saved.save(self.position)

    def _end_epoch(self) -> None:
        """Validate, write the epoch's line and a checkpoint, and log the result."""
        task, position = self.task, self.position
        self._add(task.updater.flush())
        task.network.eval()  # `run_epoch` switches back
        with task.updater.averaged():
            figures = task.validation.figures()
        speed = f"{task.unit}_per_second"
        line = {
            "epoch": position.epoch + 1,
            "step": position.step,
            **{name: total / len(task.batches) for name, total in position.sums.items()},
            **figures,
            "lr": task.updater.lr(position.step),
            speed: round(position.amount / max(position.seconds, 1e-9)),
        }
        if self.record is not None:
            # before the checkpoint: a run that dies in between writes the line again
            self.record.epoch(line)
            self.record.scalars("train", {speed: line[speed]}, position.step)
            with task.updater.averaged():
                board = {**figures, **task.validation.scalars()}
            self.record.scalars("validation", board, position.step)
            task.validation.warn(line)
        selection = position.selection.after(
            line, score=task.validation.selected_by, warmup=task.config.warmup_updates
        )
        better = selection.step == position.step
        self.position = Position(step=position.step, epoch=position.epoch + 1, selection=selection)
        self._save()
        left = (self.task.config.epochs - self.position.epoch) * position.seconds
        logger.info(
            "epoch %d/%d: %s%s",
            self.position.epoch,
            self.task.config.epochs,
            _format_epoch(line, task, better=better),
            f", at most {format_duration(left)} left" if left else "",
        )


def _report_end(task: TrainingTask[Part], position: Position, run: TrainingRun) -> None:
    """Write and log what the finished training did."""
    config, selection, selected_by = task.config, position.selection, task.validation.selected_by
    rates = [task.updater.lr(number) for number in (1, position.step)]
    summary = TrainingSummary(
        epochs=position.epoch,
        most_epochs=config.epochs,
        updates=position.step,
        patience=None if position.epoch >= config.epochs else config.patience,
        best_epoch=selection.epoch,
        selected_by=selected_by,
        score=selection.score,
        first_lr=rates[0],
        last_lr=rates[1],
        warmup_updates=min(config.warmup_updates, position.step),
        data=task.batches.dataset.sizes(),
    )
    summary.write(run.folder)
    logger.info("%s: %s", task.section, summary.sentence())
    if selection.is_zero:
        logger.warning("%s", zero_warning(selection, selected_by))


def _format_epoch(line: Mapping[str, float], task: TrainingTask[Part], *, better: bool) -> str:
    """Format the losses, the score beside that before the training, and the speed."""
    means = [f"{name} {line[name]:.3f}" for name in ("loss", "reward", "baseline") if name in line]
    name, start = task.validation.selected_by, task.validation.start
    score = f"validation {name} {line[name]:.3f}{' (best)' if better else ''}"
    before = [] if start is None else [f"started at {start:.3f}"]
    speed = f"{line[f'{task.unit}_per_second']:,.0f} {task.unit}/s"
    return ", ".join([*means, score, *before, speed])
