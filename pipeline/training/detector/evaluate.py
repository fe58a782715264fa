"""How well a detector that is there finds the labelled things of other images."""

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
    """Figures of the detector of these weights on the images of validation.

    Raises WeightsError for weights that cannot be used, ConfigError where they know other classes
    than the labels, InputError for files that are not there or cannot be read.
    """
    device = prepare_device(runtime)
    path = require_file(resolve_weights(weights), "--weights")
    data = read_validation_data(config)
    detector = load_detector(path).to(device)
    known = detector.architecture.classes
    if known != len(data.classes):
        raise ConfigError(
            f"weights {weights!r} know {known:,} classes, the labels {len(data.classes):,}; "
            "name the labels that they were trained with"
        )
    _require_same_names(path, data)
    return detector_figures(detector, data, config)


def _require_same_names(path: Path, data: DetectionData) -> None:
    """ConfigError where the names that lie beside the weights are not those of the labels."""
    names = path.with_name(DETECTOR_NAMES)
    if not names.is_file():
        return
    found = read_json(names)
    known = found.get("classes") if isinstance(found, dict) else None
    if not isinstance(known, list) or len(known) != len(data.classes):
        return
    differing = [pair for pair in zip(known, data.classes, strict=True) if pair[0] != pair[1]]
    if differing:
        theirs, ours = differing[0]
        raise ConfigError(
            f"the classes of {str(path)!r} are others than those of the labels, {theirs!r} "
            f"stands for {ours!r}; name the labels that they were trained with"
        )
