"""Summary of a detector's weights for people."""

from pathlib import Path

from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.weights.detectors import weights_sha256


def describe_detector(weights: Path) -> dict[str, str]:
    """Return the properties of a weights file by name; raise WeightsError for an unknown layout."""
    detector = load_detector(weights)
    architecture, meta = detector.architecture, detector.meta
    attributes = f"{architecture.attributes:,}" if architecture.attributes else "none"
    conventions = meta.model_dump(mode="json", exclude={"origin", "anchors"})
    return {
        "file": str(weights),
        "sha256": weights_sha256(weights),
        "origin": meta.origin,
        "network": f"ResNet-{architecture.depth}, {architecture.feature_width:,} per region",
        "classes": f"{architecture.classes:,}",
        "attributes": attributes,
        "anchors": str(len(meta.anchors)),
        **{name.replace("_", " "): str(value) for name, value in conventions.items()},
    }
