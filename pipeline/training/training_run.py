"""Where a training runs."""

from dataclasses import dataclass
from pathlib import Path

from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig


@dataclass(frozen=True)
class TrainingRun:
    """Where a training runs; only the main rank writes into `folder` and `events`."""

    folder: Path
    inputs: Inputs
    events: EventLog
    runtime: RuntimeConfig
