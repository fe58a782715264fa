"""The record of a training: metrics.jsonl, TensorBoard and progress events."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from a2cap.data.files.atomic import write_durably
from a2cap.pipeline.engine.artifacts import EPOCHS, TENSORBOARD
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.training.task import Update

_BOARD_EVERY = 20  # updates between TensorBoard scalars
_SECONDS_BETWEEN_EVENTS = 10.0


class TrainingRecord:
    """The record of one training, written by the main rank."""

    def __init__(self, directory: Path, events: EventLog, board: Any) -> None:
        self._metrics = directory / EPOCHS
        self._board = board
        self._last_event = time.monotonic()
        self.events = events

    def epoch(self, line: Mapping[str, float]) -> None:
        """Append an epoch's line to metrics.jsonl."""
        # replaces the line of a run that died between this line and its checkpoint
        lines = self._metrics.read_text().splitlines() if self._metrics.exists() else []
        kept = [text for text in lines if json.loads(text)["epoch"] < line["epoch"]]
        content = "".join(f"{text}\n" for text in (*kept, json.dumps(line)))
        write_durably(self._metrics, content.encode())

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Write TensorBoard's scalars `group`/name."""
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def update(self, update: Update) -> None:
        """Write the figures of every 20th update to TensorBoard."""
        if update.number % _BOARD_EVERY == 0:
            norm = {"gradient_norm": update.gradient_norm}
            self.scalars("train", {**update.scalars, **norm}, update.number)

    def progress(self, step: int, *, total: int) -> None:
        """Write a progress event at most every 10 seconds."""
        now = time.monotonic()
        if now - self._last_event >= _SECONDS_BETWEEN_EVENTS:
            self._last_event = now
            self.events.write("progress", step=step, total=total)


@contextmanager
def training_record(directory: Path, events: EventLog) -> Iterator[TrainingRecord]:
    """Open the record of a training, with a TensorBoard writer in `directory`."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory / TENSORBOARD)) as board:
        yield TrainingRecord(directory, events, board)
