"""Folders of trained captioners: the bundled ones by name, and those that a setting names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.pipeline.engine.artifact_names import CAPTIONER


@dataclass(frozen=True)
class BundledCaptioner:
    """A folder without `weights.safetensors`.

    weights: `extract.weights` of its regions. beam_size: beams unless a setting names a number.
    """

    folder: Path
    weights: str
    beam_size: int


BUNDLED: Mapping[str, BundledCaptioner] = {
    name: BundledCaptioner(
        Path(str(files("a2cap.pipeline.weights") / f"{name}_captioner")), weights, beams
    )
    # 3 beams caption photographs better than 5 (docs/photos.md)
    for name, weights, beams in (("photos", "efficientnet-lite2", 3), ("scenes", "scenes", 5))
}
"""Of photographs (docs/photos.md) and of generated scenes (docs/scenes-detector.md)."""

DEFAULT = "photos"
"""The bundled captioner that is used where none is named."""


def captioner_name(models: Sequence[Path]) -> str:
    """Return the name of a bundled captioner, the path of another, those of an ensemble."""
    bundled = {captioner.folder: name for name, captioner in BUNDLED.items()}
    return " + ".join(bundled.get(model, str(model)) for model in models)


def captioner_folder(path: Path, field: str) -> Path:
    """Return the trained directory in `field`; raise InputError if one of its files is missing."""
    for name in CAPTIONER:
        if not (path / name).is_file():
            raise InputError(
                f"{field} names no trained captioner: {str(path)!r} has no {name}; "
                'name a directory that "a2 train" has finished'
            )
    return path
