"""An image to caption, as a user named it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NamedImage:
    """A path to an image; `relative` is its path below the folder that was named instead."""

    path: Path
    relative: Path | None = None
