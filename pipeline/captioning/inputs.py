"""The files and folders that config fields name, and what is said where one is not there."""

from pathlib import Path

from a2cap.data.config import DataConfig
from a2cap.data.errors import ConfigError, InputError, WeightsError
from a2cap.extract.config import CALIBRATED_RANDOM, ExtractConfig
from a2cap.pipeline.stages.extract import NO_WEIGHTS
from a2cap.pipeline.stages.train_xe import OUTPUTS
from a2cap.pipeline.weights.detectors import resolve_weights


def named_file(path: Path | None, field: str) -> Path:
    """The file that `field` names; ConfigError where it names none, InputError where none is."""
    if path is None:
        raise ConfigError(f"{field} is not set; name the file with --set {field}=FILE")
    if not path.is_file():
        raise InputError(f"file of {field} not found: {str(path)!r}; check the path")
    return path


def captioner_folder(path: Path, field: str) -> Path:
    """The result of a training that `field` names; InputError where one of its files is missing."""
    for name in OUTPUTS:
        if not (path / name).is_file():
            raise InputError(
                f"{field} names no trained captioner: {str(path)!r} has no {name}; "
                'name a directory that "a2 train" has finished'
            )
    return path


def image_folder(config: DataConfig) -> Path:
    """The folder of data.images; ConfigError where there is none."""
    images = config.images
    if images is None:
        raise ConfigError("data.images is not set; name the folder with --set data.images=DIR")
    if not images.is_dir():
        raise ConfigError(f"data.images is no folder: {str(images)!r}; check the path")
    return images


def weights_file(config: ExtractConfig) -> Path | None:
    """The file of the detector's weights, None for calibrated-random ones.

    They are named by a path or by the name of a fetched checkpoint. WeightsError where none are
    named or the checkpoint is not there, InputError where the file is not.
    """
    if config.weights is None:
        raise WeightsError(NO_WEIGHTS)
    if config.weights == CALIBRATED_RANDOM:
        return None
    return named_file(resolve_weights(config.weights), "extract.weights")
