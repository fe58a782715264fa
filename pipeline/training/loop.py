"""Training in epochs, validated and resumable, whatever an update does.

Resume is exact: the order of images, the choice of captions and dropout are functions of the
seed and of what a checkpoint holds, so that an interrupted run ends with the same tensors, bit for
bit, as one that was left alone.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch

from a2cap.data.batches.loader import loader_error
from a2cap.data.errors import A2Error, LoaderError
from a2cap.pipeline.engine.interruption import StopRequest, stop_between_steps
from a2cap.pipeline.engine.progress import format_duration, track
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.distributed import LostProcesses, Processes
from a2cap.pipeline.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    random_states,
    restore_random_states,
    surroundings,
    surroundings_changed,
)
from a2cap.pipeline.training.record import TrainingRecord, training_record
from a2cap.pipeline.training.task import Part, Phase, Update

logger = logging.getLogger(__name__)


@dataclass
class Position:
    """How far a training is; part of every checkpoint.

    sums: of what the updates of this epoch report, by name; amount: what they learnt from, seconds:
    of this epoch; best: the highest score; stale: epochs without a better one.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    amount: int = 0
    seconds: float = 0.0
    best: float = -1.0
    best_step: int | None = None
    stale: int = 0


def run_training(
    phase: Phase[Part], *, processes: Processes, directory: Path, events: EventLog
) -> dict[str, torch.Tensor]:
    """Trains to the end, from the newest checkpoint on; returns the tensors of the best epoch.

    They are the first process's to save, and empty elsewhere. Raises A2Error on a loss that is not
    finite, Interrupted after saving.
    """
    recorded = training_record(directory, events) if processes.leads else nullcontext()
    with recorded as record, stop_between_steps() as stop:
        training = Training(phase, processes=processes, directory=directory, record=record)
        training.resume()
        while not training.finished:
            try:
                training.run_epoch(stop)
            except (RuntimeError, LostProcesses, LoaderError) as error:
                # a signal to the process group may end loaders and other processes before this one
                # comes to look at it, and then this one fails wherever it is; nothing more is saved
                stop.raise_if_pending()
                raise (loader_error(error) or error) from error.__cause__
        best = training.best_tensors() if processes.leads else {}
        stop.raise_if_pending()  # no process waits for this one any more
        return best


class Training(Generic[Part]):
    """One phase of training over its epochs, from its newest checkpoint on.

    record: None in a process that does not write.
    """

    def __init__(
        self,
        phase: Phase[Part],
        *,
        processes: Processes,
        directory: Path,
        record: TrainingRecord | None,
    ) -> None:
        self._phase = phase
        self._config = phase.settings
        self._processes = processes
        self._network = phase.network
        self._device = next(phase.network.parameters()).device
        self._optimisation = phase.optimisation
        self._checkpoints = Checkpoints(directory / "checkpoints", command=phase.command)
        self._record = record
        self.position = Position()

    @property
    def finished(self) -> bool:
        """Whether the last epoch is done or patience has run out."""
        return (
            self.position.epoch >= self._config.epochs
            or self.position.stale >= self._config.patience
        )

    def resume(self) -> None:
        """Takes up the newest checkpoint that verifies, if there is one."""
        if not self._processes.leads:  # else all processes would drop out the same
            torch.manual_seed(_noise_seed(self._config.seed, self._processes.rank))
        found = self._newest_checkpoint()
        if found is None:
            return
        state: dict[str, Any] = found.state
        self._network.load_state_dict(found.tensors)
        self._optimisation.load_state_dict(state["optimisation"])
        self.position = Position(**state["position"])
        self._restore_noise(state["random"])
        if self._record is None:
            return
        # the killed run may have died before it did so, and this one may be at its end already
        self._checkpoints.drop_old(self.position.best_step)
        self._record.events.write("resume", step=found.step)
        logger.info("train: resuming at step %d, epoch %d", found.step, self.position.epoch + 1)
        changes = surroundings_changed(state["surroundings"], self._surroundings())
        if changes:
            logger.warning(
                "train: %s since the checkpoint; the result will not be that of an uninterrupted "
                "run bit for bit",
                ", ".join(changes),
            )

    def run_epoch(self, stop: StopRequest) -> None:
        """Trains to the end of the epoch, validates, and writes a checkpoint.

        Interrupted where all processes agree to stop: after an update, saved first, or at the end.
        """
        self._network.train()
        what = f"epoch {self.position.epoch + 1}/{self._config.epochs}"
        with track(
            what, total=self._steps, done=self.position.batch, shown=self._processes.leads
        ) as progress:
            started = time.monotonic()
            for parts in self._remaining_batches():
                self._train_step(parts)
                now = time.monotonic()
                self.position.seconds += now - started
                started = now
                progress.advance(1)
                self._say_progress()
                stopping = self._processes.agree_to_stop(stop)
                if self.position.step % self._config.checkpoint_every == 0 or stopping:
                    self._save()
                if stopping:
                    stop.raise_if_pending()
        self._end_epoch()
        if self._processes.agree_to_stop(stop):
            stop.raise_if_pending()

    def best_tensors(self) -> dict[str, torch.Tensor]:
        """The network's tensors at the epoch of the best validation score."""
        best = self.position.best_step
        if best is None:
            raise A2Error(
                "no epoch has ended yet: nothing to save; "
                f"set {self._phase.section}.epochs to 1 or more"
            )
        return self._checkpoints.load(best).tensors

    def _newest_checkpoint(self) -> Checkpoint | None:
        """The one that the first process found; the others read it from the same disk."""
        found = self._checkpoints.latest() if self._processes.leads else None
        step = self._processes.of_first(None if found is None else found.step)
        return found if found is not None or step is None else self._checkpoints.load(step)

    def _restore_noise(self, saved: list[dict[str, Any]]) -> None:
        """Random states by rank; a process that the checkpoint does not know draws other noise."""
        rank = self._processes.rank
        if rank < len(saved):
            restore_random_states(saved[rank])
        else:
            torch.manual_seed(_noise_seed(self._config.seed, rank, self.position.step))

    @property
    def _steps(self) -> int:
        """Updates of an epoch."""
        return len(self._phase.batches)

    def _remaining_batches(self) -> Iterator[list[Part]]:
        return self._phase.batches.of_epoch(self.position.epoch, start=self.position.batch)

    def _say_progress(self) -> None:
        if self._record is not None:
            total = self._config.epochs * self._steps
            self._record.progress(self.position.step, total=total)

    def _train_step(self, parts: list[Part]) -> None:
        """One update; A2Error where it, or one before it, was not made of numbers."""
        found = self._optimisation.step(parts, self.position.step + 1)
        self._take_in(found)
        self.position.step += 1
        self.position.batch += 1

    def _take_in(self, updates: Sequence[Update]) -> None:
        """Adds what updates measured to the epoch's sums."""
        position = self.position
        for update in updates:
            self._require_finite(update)
            for name, value in update.reported().items():
                position.sums[name] = position.sums.get(name, 0.0) + value
            position.amount += update.amount
            if self._record is not None:
                self._record.update(update)

    def _require_finite(self, update: Update) -> None:
        if update.finite:
            return
        shares = self._processes.gathered(update.image_ids)
        images = ", ".join(name for share in shares for name in share)
        raise A2Error(
            f"loss is not finite at step {update.number}: {update.in_words()} "
            f"(images {images}); the last good checkpoint is kept, "
            f"lower {self._phase.section}.lr and train again"
        )

    def _end_epoch(self) -> None:
        """Validates, writes the epoch's line and a checkpoint, and says how it went."""
        position, validation = self.position, self._phase.validation
        self._take_in(self._optimisation.read())
        self._network.eval()
        figures = validation.figures()
        score = figures[validation.score]
        speed = position.amount / max(position.seconds, 1e-9)
        line = {
            "epoch": position.epoch + 1,
            "step": position.step,
            **{name: total / self._steps for name, total in position.sums.items()},
            **figures,
            f"{self._phase.unit}_per_second": round(speed),
        }
        if self._record is not None:
            self._record_epoch(self._record, line, figures)
            validation.warn(line)
        better = score > position.best
        if better:
            position.best, position.best_step = score, position.step
        self.position = Position(
            step=position.step,
            epoch=position.epoch + 1,
            best=position.best,
            best_step=position.best_step,
            stale=0 if better else position.stale + 1,
        )
        self._save()
        self._say_epoch(line, better=better, seconds=position.seconds)

    def _record_epoch(
        self, record: TrainingRecord, line: dict[str, float], figures: dict[str, float]
    ) -> None:
        step, speed = self.position.step, f"{self._phase.unit}_per_second"
        record.epoch(line)
        record.scalars("train", {speed: line[speed]}, step)
        record.scalars("validation", {**figures, **self._phase.validation.scalars()}, step)

    def _say_epoch(self, line: dict[str, float], *, better: bool, seconds: float) -> None:
        score, unit = self._phase.validation.score, self._phase.unit
        logger.info(
            "epoch %d/%d: loss %.3f, validation %s %.3f%s, %s %s/s, at most %s left",
            self.position.epoch,
            self._config.epochs,
            line["loss"],
            score,
            line[score],
            " (best)" if better else "",
            f"{line[f'{unit}_per_second']:,.0f}",
            unit,
            format_duration((self._config.epochs - self.position.epoch) * seconds),
        )

    def _save(self) -> None:
        """Writes a checkpoint; no process goes on before it is there."""
        self._take_in(self._optimisation.read())
        random = self._processes.gathered(random_states())
        if self._record is not None:
            self._checkpoints.save(
                self.position.step,
                tensors=self._network.state_dict(),
                state={
                    "optimisation": self._optimisation.state_dict(),
                    "position": asdict(self.position),
                    "random": random,
                    "surroundings": self._surroundings(),
                },
                best_step=self.position.best_step,
            )
            self._record.events.write("checkpoint", step=self.position.step)
        self._processes.gathered(None)

    def _surroundings(self) -> dict[str, str]:
        return surroundings(self._device, processes=self._processes.count)


def _noise_seed(seed: int, rank: int, step: int = 0) -> int:
    """What seeds the dropout of a process other than the first; 64 bits."""
    sequence = np.random.SeedSequence(seed, spawn_key=(rank, step))
    return int(sequence.generate_state(1, np.uint64)[0])
