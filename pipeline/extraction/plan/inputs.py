"""Inputs of a worker of a plan."""

from dataclasses import dataclass
from pathlib import Path

from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.extraction.plan.plan import SHARD_SIZE
from a2cap.pipeline.runtime.config import RuntimeConfig

TIMEOUT = 600.0
"""Seconds without a heartbeat after which a shard is taken over; a heartbeat follows an image."""


@dataclass(frozen=True)
class PlanInputs:
    """Inputs of a worker; images is a path, pattern or URL.

    timeout: seconds without a heartbeat after which a shard is taken over; shard_size: images per
    shard of a new plan.
    """

    images: Path
    weights: Path
    config: ExtractConfig
    runtime: RuntimeConfig
    timeout: float = TIMEOUT
    shard_size: int = SHARD_SIZE
