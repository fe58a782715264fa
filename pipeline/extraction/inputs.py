"""Inputs of an extraction, and the disk space that its features need."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.errors import StoreError
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.runtime.config import RuntimeConfig


@dataclass(frozen=True)
class ExtractionInputs:
    """Inputs of an extraction."""

    config: ExtractConfig
    weights: Path
    images: Mapping[str, Path | None]  # by image id; None if the file is missing
    boxes: Path | None  # COCO instances with given boxes; None if regions are detected
    runtime: RuntimeConfig
    unreadable: Collection[Path] = ()  # files that could not be read for the digest in the key


def check_feature_space(least: int, most: int, *, free: int) -> str:
    """Return the estimate of a store as text; raise StoreError if `least` exceeds `free` bytes."""
    # only the minimum: a store whose number of regions is not known must not be rejected
    if least > free:
        raise StoreError(
            f"disk too small for the features: at least {least / 1e9:.1f} GB needed, "
            f"{free / 1e9:.1f} GB free; free disk space, or lower extract.min_regions"
        )
    return f"features take {least / 1e9:.1f} to {most / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
