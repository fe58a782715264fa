"""Folders of trained captioners: the bundled ones by name, and those that a setting names."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.pipeline.engine.artifacts import CAPTIONER

BUNDLED: Mapping[str, Path] = {
    "scenes": Path(str(files("a2cap.pipeline.weights") / "scenes_captioner"))
}
"""Folders of a captioner without `weights.safetensors`: its regions come from the bundled
detector of the same name (docs/scenes-detector.md)."""


def captioner_folder(path: Path, field: str) -> Path:
    """Return the trained directory in `field`; raise InputError if one of its files is missing."""
    for name in CAPTIONER:
        if not (path / name).is_file():
            raise InputError(
                f"{field} names no trained captioner: {str(path)!r} has no {name}; "
                'name a directory that "a2 train" has finished'
            )
    return path
