"""The extractor that a configuration asks for: a detector, or a grid."""

from pathlib import Path

from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import Extractor
from a2cap.extract.grid import GridExtractor, load_grid_weights
from a2cap.extract.weights.load import load_detector

AnyExtractor = Extractor | GridExtractor
"""Both are called with an image and return its regions."""


def load_extractor(weights: Path, *, config: ExtractConfig, device: str = "cpu") -> AnyExtractor:
    """Loads the weights of the file; WeightsError where they are not what the config needs."""
    if config.boxes == "grid":
        tensors = load_grid_weights(weights, config.grid_backbone)
        return GridExtractor(tensors, config=config, device=device)
    return Extractor(load_detector(weights), config=config, device=device)
