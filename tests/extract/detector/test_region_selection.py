"""Selection of regions on tensors equals the slow reference in numpy, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from a2cap.extract.detector.proposals import Proposals
from a2cap.extract.detector.region_selection import (
    DetectedRegions,
    RegionSelection,
    box_overlaps,
    surviving_confidence,
)
from tests.extract.detector import numpy_selection

RULE = RegionSelection(proposals=60, roi_size=7, confidence=0.2, min_regions=5, max_regions=20)
COUNTS = [(5, 20), (36, 36), (1, 60), (58, 60)]


def regions_of(boxes, probabilities, *, proposed=None):
    """Return regions of B images of which only boxes and probabilities are known, from arrays."""
    boxes, probabilities = torch.from_numpy(boxes), torch.from_numpy(probabilities)
    images, count = boxes.shape[:2]
    limits = torch.tensor(proposed or [count] * images)
    is_proposed = torch.arange(count) < limits[:, None]
    proposals = Proposals(boxes, is_proposed, torch.ones(images).bool(), torch.ones(images, 4))
    return DetectedRegions.rough(proposals, probabilities, feature_width=1, has_attributes=False)


def some_images(*, images=3, count=60, classes=13, level=1.0):
    """Return boxes and probabilities, many of them equal, with overlaps at the threshold."""
    random = np.random.default_rng(images)
    corners = np.sort(random.integers(0, 40, (images, count, 2, 2)), axis=2)
    boxes = corners.reshape(images, count, 4).astype(np.float32)
    probabilities = random.integers(0, 9, (images, count, classes)).astype(np.float32)
    return boxes, np.float32(level) * probabilities / np.float32(20)


@pytest.mark.parametrize("level", [1.0, 0.01, 0.0])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("confidence", [0.2, 0.0])
def test_the_selection_equals_the_one_in_numpy(counts, level, confidence):
    fewest, most = counts
    rule = replace(RULE, min_regions=fewest, max_regions=most, confidence=confidence)
    boxes, probabilities = some_images(level=level)
    expected = [
        numpy_selection.numpy_selection(rule, *own).tolist()
        for own in zip(boxes, probabilities, strict=True)
    ]
    for image, rows in enumerate(expected):
        alone = regions_of(boxes[image : image + 1], probabilities[image : image + 1])
        selected, counted = rule(alone)
        assert (selected.tolist(), counted.tolist()) == ([rows], [len(rows)])
    together, counted = replace(rule, waits=False)(regions_of(boxes, probabilities))
    lengths = counted.tolist()
    assert [rows[:n] for rows, n in zip(together.tolist(), lengths, strict=True)] == expected


def test_padding_is_not_selected_and_suppresses_nothing():
    boxes, probabilities = some_images()
    proposed = [60, 41, 3]
    rule = replace(RULE, waits=False)
    rows, counts = rule(regions_of(boxes, probabilities, proposed=proposed))
    for image, most in enumerate(proposed):
        alone = boxes[image, :most], probabilities[image, :most]
        expected = numpy_selection.numpy_selection(RULE, *alone).tolist()
        assert rows[image, : counts[image]].tolist() == expected


@pytest.mark.parametrize("floor", [0.0, 0.1, 0.2])
def test_confidences_and_overlaps_equal_those_in_numpy_bit_for_bit(floor):
    boxes, probabilities = some_images()
    boxes += np.random.default_rng(0).uniform(0, 1, boxes.shape).astype(np.float32)
    overlaps = box_overlaps(torch.from_numpy(boxes))
    everything = torch.ones(len(boxes), boxes.shape[1]).bool()
    best = surviving_confidence(
        torch.from_numpy(probabilities), overlaps >= 0.3, everything, floor=floor
    )
    for image in range(len(boxes)):
        expected = numpy_selection.box_overlaps(boxes[image])
        assert np.array_equal(overlaps[image].numpy(), expected)
        confidences = numpy_selection.surviving_confidence(
            probabilities[image], expected >= 0.3, floor=floor
        )
        assert np.array_equal(best[image].numpy(), confidences)
