"""Inputs of an extraction, and the disk space that its features need."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.errors import InputError, StoreError
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.extraction.images import UnlistedImages
from a2cap.pipeline.runtime.config import RuntimeConfig

GivenBoxes = Mapping[str, Instances]  # by image id


@dataclass(frozen=True)
class ExtractionInputs:
    """Inputs of an extraction; the precision of `config` is the one that is computed."""

    config: ExtractConfig
    weights: Path
    images: UnlistedImages
    boxes: Path | None  # COCO instances with given boxes; None if regions are detected
    runtime: RuntimeConfig


def given_boxes(boxes: Path | None, image_ids: Iterable[str]) -> GivenBoxes | None:
    """Read the boxes of a COCO file, None without one; raise InputError if an image has none."""
    if boxes is None:
        return None
    given = read_instances(boxes)
    none = Instances(np.zeros((0, 4), np.float32), ())
    found = {image_id: given.get(image_id, none) for image_id in image_ids}
    # an image whose only box is bad is skipped with that reason when its turn comes
    missing = sorted(name for name, one in found.items() if not len(one) and one.problem is None)
    if missing:
        raise InputError(
            f"no boxes for {len(missing)} of {len(found)} images: "
            f"{', '.join(missing[:5])}; add them to data.instances, or set extract.boxes=detect"
        )
    return found


def check_feature_space(least: int, most: int, *, free: int) -> str:
    """Return the estimate of a store as text; raise StoreError if `least` exceeds `free` bytes."""
    # only the minimum: a store whose number of regions is not known must not be rejected
    if least > free:
        raise StoreError(
            f"disk too small for the features: at least {least / 1e9:.1f} GB needed, "
            f"{free / 1e9:.1f} GB free; free disk space, or lower extract.min_regions"
        )
    return f"features take {least / 1e9:.1f} to {most / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
