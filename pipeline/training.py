"""Training in epochs, validated and resumable, whatever an update does.

Resume is exact: the order of pictures, the choice of captions and dropout are functions of the
seed and of what a checkpoint holds, so that an interrupted run ends with the same tensors, bit for
bit, as one that was left alone.
"""

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from a2.data.batches import (
    Batch,
    Share,
    batches_per_epoch,
    lost_loader,
    picture_batches,
    training_batches,
)
from a2.data.errors import A2Error
from a2.data.vocabulary import Vocabulary
from a2.model.transformer import TransformerCaptioner
from a2.pipeline.alignment_watch import validation_divergences, warn_of_idle_masks
from a2.pipeline.checkpoints import (
    Checkpoint,
    Checkpoints,
    random_states,
    restore_random_states,
    surroundings,
    surroundings_changed,
)
from a2.pipeline.config import RuntimeConfig
from a2.pipeline.decoding import caption_batches
from a2.pipeline.engine.durable import write_durably
from a2.pipeline.engine.stage import EventLog
from a2.pipeline.interruption import StopRequest, stop_between_steps
from a2.pipeline.metrics import cider
from a2.pipeline.phase import Phase, Update
from a2.pipeline.processes import LostProcesses, Processes
from a2.pipeline.progress import duration, track
from a2.pipeline.saved_model import (
    EXTRACTOR,
    EXTRACTOR_WEIGHTS,
    ModelDescription,
    save_model,
)
from a2.pipeline.training_data import TrainingData

logger = logging.getLogger(__name__)

_BOARD_EVERY = 20
"""Steps between TensorBoard scalars."""
_SECONDS_BETWEEN_EVENTS = 10.0
"""Least time between two progress events."""


@dataclass
class Position:
    """How far a training is; part of every checkpoint.

    sums: of what the updates of this epoch report, by name; tokens, seconds: of this epoch;
    stale: epochs without a better CIDEr.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    best_cider: float = -1.0
    best_step: int | None = None
    stale: int = 0


def run_training(
    phase: Phase,
    captioner: TransformerCaptioner,
    data: TrainingData,
    runtime: RuntimeConfig,
    *,
    max_regions: int | None,
    processes: Processes,
    directory: Path,
    events: EventLog,
) -> dict[str, torch.Tensor]:
    """Trains to the end, from the newest checkpoint on; returns the tensors of the best epoch.

    They are the first process's to save, and empty elsewhere. Raises A2Error on a loss that is not
    finite, Interrupted after saving.
    """
    with (
        _board(directory if processes.leads else None) as board,
        stop_between_steps() as stop,
    ):
        training = Training(
            phase,
            captioner,
            data,
            runtime,
            max_regions=max_regions,
            processes=processes,
            directory=directory,
            events=events,
            board=board,
        )
        training.resume()
        while not training.finished:
            try:
                training.run_epoch(stop)
            except (RuntimeError, LostProcesses) as error:
                # a signal to the process group may end loaders and other processes before this one
                # comes to look at it, and then this one fails wherever it is; nothing more is saved
                stop.raise_if_pending()
                raise (lost_loader(error) or error) from error.__cause__
            stop.raise_if_pending()
        return training.best_tensors() if processes.leads else {}


def save_captioner(
    directory: Path,
    tensors: dict[str, torch.Tensor],
    description: ModelDescription,
    vocabulary: Vocabulary,
    *,
    features: Path,
) -> None:
    """Writes all that captions need: captioner, vocabulary, and what made the regions."""
    save_model(directory, tensors=tensors, description=description, vocabulary=vocabulary)
    shutil.copyfile(features / EXTRACTOR, directory / EXTRACTOR)
    _link(features / EXTRACTOR_WEIGHTS, directory / EXTRACTOR_WEIGHTS)


class Training:
    """One phase of training over its epochs, from its newest checkpoint on."""

    def __init__(
        self,
        phase: Phase,
        captioner: TransformerCaptioner,
        data: TrainingData,
        runtime: RuntimeConfig,
        *,
        max_regions: int | None,
        processes: Processes,
        directory: Path,
        events: EventLog,
        board: Any,
    ) -> None:
        self._section = phase.section
        self._config = phase.settings
        self._max_regions = max_regions
        self._processes = processes
        self._captioner = captioner
        self._data = data
        self._workers = runtime.workers
        self._device = next(captioner.parameters()).device
        self._optimisation = phase.optimisation
        self._checkpoints = Checkpoints(directory / "checkpoints")
        self._metrics = directory / "metrics.jsonl"
        self._events = events
        self._board = board
        self._dataset = phase.dataset
        self._batches = batches_per_epoch(self._dataset, batch_size=self._config.batch_size)
        self._last_event = time.monotonic()
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
        self._captioner.load_state_dict(found.tensors)
        self._optimisation.load_state_dict(state["optimisation"])
        self.position = Position(**state["position"])
        self._restore_noise(state["random"])
        if not self._processes.leads:
            return
        # the killed run may have died before it did so, and this one may be at its end already
        self._checkpoints.drop_old(self.position.best_step)
        self._events.write("resume", step=found.step)
        logger.info("train: resuming at step %d, epoch %d", found.step, self.position.epoch + 1)
        changes = surroundings_changed(state["surroundings"], self._surroundings())
        if changes:
            logger.warning(
                "train: %s since the checkpoint; the result will not be that of an uninterrupted "
                "run bit for bit",
                ", ".join(changes),
            )

    def run_epoch(self, stop: StopRequest) -> None:
        """Trains to the end of the epoch, validates, and writes a checkpoint."""
        self._captioner.train()
        what = f"epoch {self.position.epoch + 1}/{self._config.epochs}"
        with track(
            what, total=self._batches, done=self.position.batch, shown=self._processes.leads
        ) as progress:
            started = time.monotonic()
            for parts in self._remaining_batches():
                self._train_step(parts)
                now = time.monotonic()
                self.position.seconds += now - started
                started = now
                progress.advance(1)
                self._say_progress(now)
                self._processes.agree_to_stop(stop)
                if self.position.step % self._config.checkpoint_every == 0 or stop.pending:
                    self._save()
                stop.raise_if_pending()
        self._end_epoch()
        self._processes.agree_to_stop(stop)

    def best_tensors(self) -> dict[str, torch.Tensor]:
        """The captioner's tensors at the epoch of the best validation CIDEr."""
        best = self.position.best_step
        if best is None:
            raise A2Error(
                f"no epoch has ended yet: nothing to save; set {self._section}.epochs to 1 or more"
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

    def _remaining_batches(self) -> Iterator[list[Batch]]:
        return training_batches(
            self._dataset,
            batch_size=self._config.batch_size,
            seed=self._config.seed,
            epoch=self.position.epoch,
            start=self.position.batch,
            share=Share(self._processes.rank, self._processes.count, self._config.accumulate),
            workers=self._workers,
            pin_memory=self._device.type == "cuda",
        )

    def _train_step(self, parts: list[Batch]) -> None:
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
            position.tokens += update.tokens
            if update.number % _BOARD_EVERY == 0 and self._processes.leads:
                self._write_scalars(update)

    def _require_finite(self, update: Update) -> None:
        if update.finite:
            return
        shares = self._processes.gathered(update.image_ids)
        pictures = ", ".join(name for share in shares for name in share)
        raise A2Error(
            f"loss is not finite at step {update.number}: {update.in_words()} "
            f"(pictures {pictures}); the last good checkpoint is kept, "
            f"lower {self._section}.lr and train again"
        )

    def _end_epoch(self) -> None:
        """Validates, writes the epoch's line and a checkpoint, and says how it went."""
        position, config = self.position, self._config
        self._take_in(self._optimisation.read())
        score = self._validate()
        speed = position.tokens / max(position.seconds, 1e-9)
        line = {
            "epoch": position.epoch + 1,
            "step": position.step,
            **{name: total / self._batches for name, total in position.sums.items()},
            "CIDEr": score,
            "tokens_per_second": round(speed),
        }
        if self._processes.leads:
            self._append_metrics(line)
            self._write_epoch(line)
        warn_of_idle_masks(position.sums.get("mean_mask", math.nan) / self._batches)
        better = score > position.best_cider
        if better:
            position.best_cider, position.best_step = score, position.step
        self.position = Position(
            step=position.step,
            epoch=position.epoch + 1,
            best_cider=position.best_cider,
            best_step=position.best_step,
            stale=0 if better else position.stale + 1,
        )
        self._save()
        left = (config.epochs - self.position.epoch) * position.seconds
        logger.info(
            "epoch %d/%d: loss %.3f, validation CIDEr %.3f%s, %s tokens/s, at most %s left",
            self.position.epoch,
            config.epochs,
            line["loss"],
            score,
            " (best)" if better else "",
            f"{speed:,.0f}",
            duration(left),
        )

    def _validate(self) -> float:
        """CIDEr on the validation split, of captions decoded as the evaluation does it.

        Each process decodes a share of the pictures, the first one scores them all.
        """
        self._captioner.eval()
        processes = self._processes
        chosen = self._data.validation[: self._config.validation_pictures]
        decoded = caption_batches(
            self._captioner,
            picture_batches(
                self._data.store.path,
                chosen[processes.rank :: processes.count],
                batch_size=50,
                max_regions=self._max_regions,
            ),
            self._data.vocabulary,
            beam_size=self._config.validation_beam_size,
            max_length=self._config.max_length,
            device=self._device,
        )
        shares = processes.gathered([(name, beams[0].caption) for name, beams in decoded])
        if not processes.leads:
            return processes.of_first(0.0)
        candidates = dict(pair for share in shares for pair in share)
        return processes.of_first(
            cider(candidates, {image_id: self._data.references[image_id] for image_id in chosen})
        )

    def _write_epoch(self, line: dict[str, float]) -> None:
        """TensorBoard's scalars of an epoch; JSD is that of a few validation pictures."""
        step = self.position.step
        self._board.add_scalar("validation/CIDEr", line["CIDEr"], step)
        self._board.add_scalar("train/tokens_per_second", line["tokens_per_second"], step)
        if self._captioner.has_masks:
            found = validation_divergences(
                self._captioner, self._data, max_regions=self._max_regions
            )
            for number, divergence in enumerate(found, start=1):
                self._board.add_scalar(f"validation/JSD/layer_{number}", divergence, step)

    def _save(self) -> None:
        """Writes a checkpoint; no process goes on before it is there."""
        self._take_in(self._optimisation.read())
        random = self._processes.gathered(random_states())
        if self._processes.leads:
            self._checkpoints.save(
                self.position.step,
                tensors=self._captioner.state_dict(),
                state={
                    "optimisation": self._optimisation.state_dict(),
                    "position": asdict(self.position),
                    "random": random,
                    "surroundings": self._surroundings(),
                },
                best_step=self.position.best_step,
            )
            self._events.write("checkpoint", step=self.position.step)
        self._processes.gathered(None)

    def _surroundings(self) -> dict[str, str]:
        return surroundings(self._device, processes=self._processes.count)

    def _append_metrics(self, line: dict[str, float]) -> None:
        """Adds an epoch's line, replacing that of a run that died between line and checkpoint."""
        lines = self._metrics.read_text().splitlines() if self._metrics.exists() else []
        kept = [json.dumps(line)]
        before = [text for text in lines if json.loads(text)["epoch"] < line["epoch"]]
        write_durably(self._metrics, "".join(f"{text}\n" for text in before + kept).encode())

    def _write_scalars(self, update: Update) -> None:
        for name, value in update.scalars().items():
            self._board.add_scalar(f"train/{name}", value, update.number)

    def _say_progress(self, now: float) -> None:
        """Writes an event now and then; the engine writes those of start and end."""
        if self._processes.leads and now - self._last_event >= _SECONDS_BETWEEN_EVENTS:
            self._last_event = now
            total = self._config.epochs * self._batches
            self._events.write("progress", step=self.position.step, total=total)


def _noise_seed(seed: int, rank: int, step: int = 0) -> int:
    """What seeds the dropout of a process other than the first; 64 bits."""
    sequence = np.random.SeedSequence(seed, spawn_key=(rank, step))
    return int(sequence.generate_state(1, np.uint64)[0])


@contextmanager
def _board(directory: Path | None) -> Iterator[Any]:
    """A TensorBoard writer below the stage's directory; None for a process that does not write."""
    if directory is None:
        yield None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory / "tensorboard")) as writer:
        yield writer


def _link(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or a copy where the disk cannot link."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
