"""Inputs of an extraction, passed as one value to every function that reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.runtime.config import RuntimeConfig


@dataclass(frozen=True)
class ExtractionInputs:
    """Inputs of an extraction.

    images: image id -> file, None if it is missing; boxes: the COCO instances file with given
    boxes, None if regions are detected.
    """

    config: ExtractConfig
    weights: Path
    images: Mapping[str, Path | None]
    boxes: Path | None
    runtime: RuntimeConfig
