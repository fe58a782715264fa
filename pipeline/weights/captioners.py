"""Captioners that come with this package, by name."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

BUNDLED: Mapping[str, Path] = {
    "scenes": Path(str(files("a2cap.pipeline.weights") / "scenes_captioner"))
}
"""Folders of a captioner without `weights.safetensors`: its regions are those of the bundled
detector of the same name (docs/scenes-detector.md)."""
