"""Accuracy of attributes: of found objects, within a family."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from a2cap.data.detection.labels import DetectionData, Label, labelled_image
from a2cap.data.errors import ConfigError
from a2cap.extract.detector.detections import Detections
from a2cap.pipeline.training.detector.attribute_accuracy import attribute_accuracy, family_ids
from a2cap.pipeline.training.detector.config import DetectorConfig
from tests.data.messages import message_of

BOXES = [(0, 0, 20, 20), (40, 0, 60, 20), (0, 40, 20, 60), (40, 40, 60, 60)]
LABELS = [
    Label(BOXES[0], 0, (0, 3)),
    Label(BOXES[1], 0, (1, 2)),
    Label(BOXES[2], 1, (1,)),
    Label(BOXES[3], 0, (0,), crowd=True),
]
IMAGE = labelled_image("a", Path("a.jpg"), width=100, height=100, labels=LABELS)
TRUTH = DetectionData(("ball", "cup"), ("red", "blue", "plain", "striped"), (IMAGE,))
FAMILIES = {"colour": [0, 1], "texture": [2, 3]}
# red and striped; red and striped, the second of two at its box; blue, of another class; red, crowd
LOGITS = [[2, 1, 0, 1], [1, 0, 0, 3], [0, 9, 9, 0], [0, 9, 9, 0], [5, 0, 0, 0]]
FOUND = Detections(
    np.array([BOXES[0], BOXES[1], BOXES[1], BOXES[2], BOXES[3]], np.float32),
    np.linspace(0.9, 0.1, 5, dtype=np.float32),
    np.array([0, 0, 0, 0, 0]),
    np.array(LOGITS, np.float32),
)


def test_found_objects_count_once_and_by_family():
    accuracy = attribute_accuracy(TRUTH, {"a": FOUND}, {"colour": [0, 1], "texture": [2, 3]})
    # both boxes are found as red and striped, which is right for the first
    assert accuracy == {"colour": 0.5, "texture": 0.5}


def test_there_is_no_accuracy_without_a_found_object_or_an_attribute_head():
    nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, int))
    assert attribute_accuracy(TRUTH, {"a": nothing}, {"colour": [0, 1]}) == {"colour": None}
    headless = replace(FOUND, attribute_logits=None)
    assert attribute_accuracy(TRUTH, {"a": headless}, {"colour": [0, 1]}) == {"colour": None}


def test_families_are_those_of_the_labels():
    config = DetectorConfig(attribute_families=(("blue", "red"),))
    assert family_ids(config, TRUTH.attributes) == {"blue/red": [1, 0]}
    assert message_of(family_ids, config, ("red",), error=ConfigError) == (
        "detector.attribute_families has an attribute that the labels lack: 'blue'; they have red"
    )


def test_families_without_attributes_and_repeated_attributes_are_rejected():
    twice = DetectorConfig(attribute_families=(("red",), ("red",)))
    assert message_of(family_ids, twice, ("red",), error=ConfigError) == (
        "detector.attribute_families has 'red' twice; name each attribute once"
    )
    message = "attribute_loss is 'families' without detector.attribute_families; set them"
    with pytest.raises(ValueError, match=message):
        DetectorConfig.model_validate({"attribute_loss": "families"})
