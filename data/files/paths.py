"""Files and folders that configuration fields name."""

from pathlib import Path

from a2cap.data.config import DataConfig
from a2cap.data.errors import ConfigError, InputError


def named_file(path: Path | None, field: str) -> Path:
    """The file that `field` names; ConfigError where it names none, InputError where none is."""
    if path is None:
        raise ConfigError(f"{field} is not set; name the file with --set {field}=FILE")
    if not path.is_file():
        raise InputError(f"file of {field} not found: {str(path)!r}; check the path")
    return path


def image_folder(config: DataConfig) -> Path:
    """The folder of data.images; ConfigError where there is none."""
    images = config.images
    if images is None:
        raise ConfigError("data.images is not set; name the folder with --set data.images=DIR")
    if not images.is_dir():
        raise ConfigError(f"data.images is no folder: {str(images)!r}; check the path")
    return images
