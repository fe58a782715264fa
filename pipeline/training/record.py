"""What a training says of itself as it goes: metrics.jsonl, TensorBoard, progress events."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from a2cap.data.files.atomic import write_durably
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.training.task import Update

BOARD_EVERY = 20
"""Updates between TensorBoard scalars."""
_SECONDS_BETWEEN_EVENTS = 10.0
"""Least time between two progress events."""


class TrainingRecord:
    """The record of one training, written by its first process."""

    def __init__(self, directory: Path, events: EventLog, board: Any) -> None:
        self._metrics = directory / "metrics.jsonl"
        self._board = board
        self._last_event = time.monotonic()
        self.events = events

    def epoch(self, line: Mapping[str, float]) -> None:
        """Adds an epoch's line, replacing that of a run that died between line and checkpoint."""
        lines = self._metrics.read_text().splitlines() if self._metrics.exists() else []
        kept = [json.dumps(line)]
        before = [text for text in lines if json.loads(text)["epoch"] < line["epoch"]]
        write_durably(self._metrics, "".join(f"{text}\n" for text in before + kept).encode())

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Writes TensorBoard's scalars `group`/name."""
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def update(self, update: Update) -> None:
        """Writes what an update measured, if it is the turn of one."""
        if update.number % BOARD_EVERY == 0:
            self.scalars("train", update.scalars(), update.number)

    def progress(self, step: int, *, total: int) -> None:
        """Writes an event now and then; the engine writes those of start and end."""
        now = time.monotonic()
        if now - self._last_event >= _SECONDS_BETWEEN_EVENTS:
            self._last_event = now
            self.events.write("progress", step=step, total=total)


@contextmanager
def training_record(directory: Path, events: EventLog) -> Iterator[TrainingRecord]:
    """The record of a training, with a TensorBoard writer below the stage's directory."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory / "tensorboard")) as board:
        yield TrainingRecord(directory, events, board)
