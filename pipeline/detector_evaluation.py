"""How well a detector that is there finds the labelled things of other pictures."""

from a2.data.errors import ConfigError
from a2.extract.weights import load_detector
from a2.pipeline.config import RuntimeConfig
from a2.pipeline.detector_checkpoints import resolve_weights
from a2.pipeline.detector_config import DetectorConfig
from a2.pipeline.detector_data import read_validation_data
from a2.pipeline.detector_validation import detector_figures
from a2.pipeline.device import prepare_device


def evaluate_detector(
    config: DetectorConfig, runtime: RuntimeConfig, weights: str
) -> dict[str, object]:
    """Figures of the detector of these weights on the pictures of validation.

    Raises WeightsError for weights that cannot be used, ConfigError where they know another number
    of classes than the labels, InputError for pictures or labels that cannot be read.
    """
    device = prepare_device(runtime)
    data = read_validation_data(config)
    if config.validation_pictures is not None:
        data = data.only([p.image_id for p in data.pictures[: config.validation_pictures]])
    detector = load_detector(resolve_weights(weights)).to(device)
    if detector.architecture.classes != len(data.classes):
        raise ConfigError(
            f"weights {weights!r} know {detector.architecture.classes:,} classes, the labels "
            f"{len(data.classes):,}; name the labels that they were trained with"
        )
    return detector_figures(detector, data, config)
