"""Average precision and attributes of the bundled detector on unseen scenes.

Average precision is computed by pycocotools, its interval by a bootstrap over images.
"""

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from a2cap.data.detection.coco import read_coco
from a2cap.data.detection.labels import DetectionData
from a2cap.data.scenes.generate import write_scenes
from a2cap.extract.detector.detections import Detections
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.config import load_config
from a2cap.pipeline.training.detector.average_precision import detection_metrics
from a2cap.pipeline.training.detector.validation import RECALL_AT, detections_of, detector_figures
from a2cap.pipeline.weights.detectors import resolve_weights
from benchmarks.measure import print_machine, print_table

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "detector-scenes.yaml"

UNSEEN, SEED = 500, 1009
"""Number of scenes and their seed, which differs from training, validation and the demo."""


@click.command()
@click.option("--quick", is_flag=True, help="12 scenes and 3 resamples: seconds.")
@click.option("--weights", default="scenes", show_default=True, help="Weights of the detector.")
def main(quick: bool, weights: str) -> None:
    """Draw scenes and detect their objects."""
    print_machine()
    logging.disable(logging.WARNING)
    path = resolve_weights(weights)
    resamples = 3 if quick else 100
    with tempfile.TemporaryDirectory() as folder:
        data = _drawn(Path(folder) / "scenes", 12 if quick else UNSEEN)
        config = load_config(RECIPE).detector
        detector = load_detector(path)
        figures: Any = detector_figures(detector, data, config)
        low, high = _interval(data, detections_of(detector, data.images, config), resamples)
    recalls = [f"recall of {count}" for count in RECALL_AT]
    header = ["unseen scenes", "AP50", "95 % interval", "AP", "AP75", *recalls]
    values = [figures["AP50"], figures["AP"], figures["AP75"], *figures["proposal_recall"].values()]
    ap50, *others = (f"{value:.3f}" for value in values)
    rows = [[str(len(data.images)), ap50, f"{low:.3f}-{high:.3f}", *others]]
    print_table("detected objects", header, rows)
    attributes = [[name, _share(share)] for name, share in figures["attribute_accuracy"].items()]
    print_table("attributes of found objects", ["family", "accuracy"], attributes)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _drawn(folder: Path, count: int) -> DetectionData:
    side = load_config(RECIPE).detector.min_side
    write_scenes(folder, count=count, seed=SEED, side=side)
    return read_coco(folder / "instances.json", folder / "images")


def _interval(
    data: DetectionData, found: Mapping[str, Detections], resamples: int
) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % quantiles of AP50 over bootstrap samples of the images."""
    draws = np.random.default_rng(0)
    values = []
    for _ in range(resamples):
        chosen = draws.integers(len(data.images), size=len(data.images))
        images, detections = [], {}
        for copy, index in enumerate(chosen):
            image = data.images[index]
            name = f"{image.image_id} {copy}"
            images.append(replace(image, image_id=name))
            detections[name] = found[image.image_id]
        values.append(detection_metrics(replace(data, images=tuple(images)), detections).ap50)
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    main()
