"""Training in epochs, validated and resumable, for any training task.

Resume is exact: the order of images, the choice of captions and dropout depend only on the seed
and on the checkpoint, so an interrupted run ends with the same tensors, bit for bit, as an
uninterrupted one.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic

import torch

from a2cap.data.batches.loader import loader_error
from a2cap.data.errors import A2Error, LoaderError
from a2cap.pipeline.engine.artifacts import CHECKPOINTS
from a2cap.pipeline.engine.interruption import StopRequest, stop_between_steps
from a2cap.pipeline.engine.progress import format_duration, track
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.distributed import RankError, Ranks
from a2cap.pipeline.runtime.precision import (
    deterministic_operations,
    matrix_precision,
    warn_about_emulation,
)
from a2cap.pipeline.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    environment,
    environment_changes,
    restore_rng_states,
    rng_states,
    seed_rngs,
)
from a2cap.pipeline.training.optimizer import Part, Update, derived_seed
from a2cap.pipeline.training.record import TrainingRecord, training_record
from a2cap.pipeline.training.task import TrainingTask

logger = logging.getLogger(__name__)


@dataclass
class Position:
    """Progress of a training, part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of this epoch, like the next three
    sums: dict[str, float] = field(default_factory=dict)  # of `Update.means`
    amount: int = 0
    seconds: float = 0.0
    best: float = -1.0  # the highest validation score
    best_step: int | None = None
    stale: int = 0  # epochs since the best one


def run_training(
    task: TrainingTask[Part], *, ranks: Ranks, directory: Path, events: EventLog
) -> dict[str, torch.Tensor]:
    """Train from the newest checkpoint; return the best epoch's tensors, on the main rank only.

    Raises A2Error on a loss that is not finite, Interrupted after saving a checkpoint.
    """
    recorded = training_record(directory, events) if ranks.is_main else nullcontext()
    precision = matrix_precision(task.config.precision)
    device = next(task.network.parameters()).device
    is_fixed = task.config.deterministic
    switch = deterministic_operations(device) if is_fixed else nullcontext()
    with precision, switch, recorded as record, stop_between_steps() as stop:
        training = Training(task, ranks=ranks, directory=directory, record=record)
        training.resume()
        while not training.finished:
            try:
                training.run_epoch(stop)
            except (RuntimeError, RankError, LoaderError) as error:
                # A signal to the process group may end loaders and other ranks before this rank
                # handles it; then any operation fails here, and nothing more can be saved.
                stop.raise_if_pending()
                raise (loader_error(error) or error) from error.__cause__
        best = training.best_tensors() if ranks.is_main else {}
        stop.raise_if_pending()  # safe alone: no rank waits for this one any more
        return best


class Training(Generic[Part]):
    """One training over its epochs; record: None on ranks that do not write."""

    def __init__(
        self,
        task: TrainingTask[Part],
        *,
        ranks: Ranks,
        directory: Path,
        record: TrainingRecord | None,
    ) -> None:
        self._task = task
        self._config = task.config
        self._ranks = ranks
        self._device = next(task.network.parameters()).device
        if ranks.is_main:
            warn_about_emulation(task.config.precision, self._device)
        self._environment = environment(self._device, ranks=ranks.count)
        self._checkpoints = Checkpoints(directory / CHECKPOINTS, command=task.command)
        self._record = record
        self.position = Position()

    @property
    def finished(self) -> bool:
        """Return True after the last epoch, or when patience has run out."""
        return (
            self.position.epoch >= self._config.epochs
            or self.position.stale >= self._config.patience
        )

    def resume(self) -> None:
        """Restore the newest checkpoint that verifies, if there is one."""
        seed_rngs(self._config.seed)
        if not self._ranks.is_main:  # otherwise all ranks would draw the same dropout
            torch.manual_seed(derived_seed(self._config.seed, self._ranks.rank, 0))
        found = self._newest_checkpoint()
        if found is None:
            return
        state: dict[str, Any] = found.state
        self._task.network.load_state_dict(found.tensors)
        self._task.optimizer.load_state_dict(state["optimisation"])
        self.position = Position(**state["position"])
        self._restore_rng(state["random"])
        if self._record is None:
            return
        # the killed run may have died before its own clean-up, and this one may be at its end
        self._checkpoints.drop_old(self.position.best_step)
        self._record.events.write("resume", step=found.step)
        logger.info("train: resuming at step %d, epoch %d", found.step, self.position.epoch + 1)
        changes = environment_changes(state["surroundings"], self._environment)
        if changes:
            logger.warning(
                "train: %s since the checkpoint; the result will not equal that of an "
                "uninterrupted run bit for bit",
                ", ".join(changes),
            )

    def run_epoch(self, stop: StopRequest) -> None:
        """Train to the end of the epoch, validate, and write a checkpoint.

        Raises Interrupted when all ranks agree to stop: after an update, which is saved first, or
        at the end.
        """
        self._task.network.train()
        title = f"epoch {self.position.epoch + 1}/{self._config.epochs}"
        steps, batch = len(self._task.batches), self.position.batch
        with track(title, total=steps, done=batch, shown=self._ranks.is_main) as progress:
            started = time.monotonic()
            for parts in self._task.batches.epoch(self.position.epoch, start=batch):
                self._add(self._task.optimizer.step(parts, self.position.step + 1))
                self.position.step += 1
                self.position.batch += 1
                now = time.monotonic()
                self.position.seconds += now - started
                started = now
                progress.advance(1)
                if self._record is not None:
                    self._record.progress(self.position.step, total=self._config.epochs * steps)
                # a rank that stopped alone would leave the others waiting for its gradients
                stopping = self._ranks.agree_to_stop(stop)
                if self.position.step % self._config.checkpoint_every == 0 or stopping:
                    self._save()
                if stopping:
                    stop.raise_if_pending()
        self._end_epoch()
        if self._ranks.agree_to_stop(stop):
            stop.raise_if_pending()

    def best_tensors(self) -> dict[str, torch.Tensor]:
        """Return the network's tensors after the epoch with the best validation score."""
        best = self.position.best_step
        if best is None:
            raise A2Error(
                "no epoch has ended yet: nothing to save; "
                f"set {self._task.section}.epochs to 1 or more"
            )
        return self._checkpoints.load(best).tensors

    def _newest_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that the main rank chooses; all ranks read it from one disk."""
        found = self._checkpoints.latest() if self._ranks.is_main else None
        step = self._ranks.broadcast(None if found is None else found.step)
        return found if found is not None or step is None else self._checkpoints.load(step)

    def _restore_rng(self, saved: list[dict[str, Any]]) -> None:
        """Restore this rank's RNG states; seed a rank that the checkpoint does not contain."""
        rank = self._ranks.rank
        if rank < len(saved):
            restore_rng_states(saved[rank])
        else:
            torch.manual_seed(derived_seed(self._config.seed, rank, self.position.step))

    def _add(self, updates: Sequence[Update]) -> None:
        """Add measurements to the epoch's sums; raise A2Error if one is not finite."""
        for update in updates:
            if not update.finite:
                # the images of all ranks, since losses are summed before anyone reads them
                shares = self._ranks.all_gather(update.image_ids)
                images = ", ".join(name for share in shares for name in share)
                raise A2Error(
                    f"loss is not finite at step {update.number}: {update.summary()} "
                    f"(images {images}); the last good checkpoint is kept, "
                    f"lower {self._task.section}.lr and train again"
                )
            for name, value in update.means.items():
                self.position.sums[name] = self.position.sums.get(name, 0.0) + value
            self.position.amount += update.amount
            if self._record is not None:
                self._record.update(update)

    def _end_epoch(self) -> None:
        """Validate, write the epoch's line and a checkpoint, and log the result."""
        task, position = self._task, self.position
        self._add(task.optimizer.flush())
        task.network.eval()  # `run_epoch` switches back
        with task.optimizer.averaged():
            figures = task.validation.figures()
        speed = f"{task.unit}_per_second"
        line = {
            "epoch": position.epoch + 1,
            "step": position.step,
            **{name: total / len(task.batches) for name, total in position.sums.items()},
            **figures,
            speed: round(position.amount / max(position.seconds, 1e-9)),
        }
        if self._record is not None:
            # before the checkpoint: a run that dies in between writes the line again
            self._record.epoch(line)
            self._record.scalars("train", {speed: line[speed]}, position.step)
            with task.optimizer.averaged():
                board = {**figures, **task.validation.scalars()}
            self._record.scalars("validation", board, position.step)
            task.validation.warn(line)
        score = figures[task.validation.score]
        better = score > position.best  # strictly: the first of equal epochs stays the best
        self.position = Position(
            step=position.step,
            epoch=position.epoch + 1,
            best=score if better else position.best,
            best_step=position.step if better else position.best_step,
            stale=0 if better else position.stale + 1,
        )
        self._save()
        left = (self._config.epochs - self.position.epoch) * position.seconds
        logger.info(
            "epoch %d/%d: %s%s",
            self.position.epoch,
            self._config.epochs,
            _format_epoch(line, task, better=better),
            f", at most {format_duration(left)} left" if left else "",
        )

    def _save(self) -> None:
        """Write a checkpoint; all ranks wait until it is on disk."""
        self._add(self._task.optimizer.flush())
        random = self._ranks.all_gather(rng_states())  # each rank has its own dropout
        if self._record is not None:
            with self._task.optimizer.averaged():
                self._checkpoints.save(
                    self.position.step,
                    tensors=self._task.network.state_dict(),
                    # the names of an earlier version, kept so that its checkpoints still resume
                    state={
                        "optimisation": self._task.optimizer.state_dict(),
                        "position": asdict(self.position),
                        "random": random,
                        "surroundings": self._environment,
                    },
                    best_step=self.position.best_step,
                )
            self._record.events.write("checkpoint", step=self.position.step)
        self._ranks.all_gather(None)  # a barrier: other ranks may read the checkpoint next


def _format_epoch(line: Mapping[str, float], task: TrainingTask[Part], *, better: bool) -> str:
    """Format the losses, the score beside that before the training, and the speed."""
    means = [f"{name} {line[name]:.3f}" for name in ("loss", "reward", "baseline") if name in line]
    name, start = task.validation.score, task.validation.start
    score = f"validation {name} {line[name]:.3f}{' (best)' if better else ''}"
    before = [] if start is None else [f"started at {start:.3f}"]
    speed = f"{line[f'{task.unit}_per_second']:,.0f} {task.unit}/s"
    return ", ".join([*means, score, *before, speed])
