"""Evaluation of a trained detector on the validation images."""

from pathlib import Path

from a2cap.data.detection.labels import DetectionData
from a2cap.data.errors import ConfigError
from a2cap.data.files.json_file import read_json
from a2cap.data.files.paths import require_file
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.engine.artifacts import DETECTOR_NAMES
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.training.detector.config import DetectorConfig
from a2cap.pipeline.training.detector.data import read_validation_data
from a2cap.pipeline.training.detector.validation import detector_figures
from a2cap.pipeline.weights.detectors import resolve_weights


def evaluate_detector(
    config: DetectorConfig, runtime: RuntimeConfig, weights: str
) -> dict[str, object]:
    """Return the figures of a detector on the validation images.

    Raises WeightsError and InputError for unusable files, ConfigError for different classes.
    """
    device = prepare_device(runtime)
    path = require_file(resolve_weights(weights), "--weights")
    data = read_validation_data(config)
    detector = load_detector(path).to(device)
    classes = detector.architecture.classes
    if classes != len(data.classes):
        raise ConfigError(
            f"weights {weights!r} have {classes:,} classes, the labels {len(data.classes):,}; "
            "use the labels they were trained with"
        )
    _require_same_names(path, data)
    return detector_figures(detector, data, config)


def _require_same_names(path: Path, data: DetectionData) -> None:
    """Raise ConfigError if the class names beside the weights differ from the labels'."""
    names = path.with_name(DETECTOR_NAMES)
    found = read_json(names) if names.is_file() else None  # published weights have no such file
    known = found.get("classes") if isinstance(found, dict) else None
    if not isinstance(known, list) or len(known) != len(data.classes):
        return
    for theirs, ours in zip(known, data.classes, strict=True):
        if theirs != ours:
            raise ConfigError(
                f"classes of {str(path)!r} and of the labels differ: {theirs!r} and {ours!r}; "
                "use the labels they were trained with"
            )
