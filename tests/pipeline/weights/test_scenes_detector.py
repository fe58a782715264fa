"""The bundled detector finds the objects of scenes that it was not trained on."""

import pytest

from a2cap.data.detection.coco import read_coco
from a2cap.data.scenes.generate import write_scenes
from a2cap.data.scenes.objects import COLOURS, MUTED, SIZES, TEXTURES
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.training.detector.validation import detector_figures
from a2cap.pipeline.weights.detectors import BUNDLED

CONFIG = "configs/detector-scenes.yaml"
UNSEEN = 5151
"""Seed of the scenes; those of training and validation are in the config's header."""
FAMILIES = ((*COLOURS, *MUTED), TEXTURES, tuple(SIZES))
GOALS = (0.97, 0.95, 0.90)
"""Least accuracy of colours, textures and sizes of the objects that are found."""


@pytest.fixture(scope="module")
def detector():
    return load_detector(BUNDLED["scenes"].path)


def test_the_bundled_detector_has_the_architecture_of_its_config(detector, request):
    config = load_config(request.config.rootpath / CONFIG).detector
    architecture, meta = detector.architecture, detector.meta
    assert (architecture.depth, architecture.width) == (config.depth, config.width)
    assert meta.scale == (config.min_side, config.max_side)
    assert meta.last_stage == config.last_stage
    assert meta.region_pooling == config.region_pooling
    assert len(meta.anchors) == len(config.anchor_sizes) * len(config.anchor_ratios)


@pytest.mark.slow
def test_the_bundled_detector_generalises_to_unseen_scenes(detector, request, tmp_path):
    config = load_config(request.config.rootpath / CONFIG).detector
    write_scenes(tmp_path / "scenes", count=60, seed=UNSEEN, side=config.min_side)
    data = read_coco(tmp_path / "scenes" / "instances.json", tmp_path / "scenes" / "images")
    figures = detector_figures(detector, data, config)
    assert figures["AP50"] >= 0.90
    assert figures["proposal_recall"]["36"] >= 0.95
    families = [figures["attribute_accuracy"]["/".join(names)] for names in FAMILIES]
    assert len(families) == len(config.attribute_families)
    for accuracy, goal in zip(families, GOALS, strict=True):
        assert accuracy >= goal
