"""GCN-LSTM (Yao et al. 2018) against its equations in numpy and float64, and its spatial graph."""

import math

import numpy as np
import pytest
import torch

from a2cap.model.captioners.gcn_lstm import spatial_relations
from tests.model.captioners.recurrent import test_up_down
from tests.model.kinds import FUSIONS, make
from tests.model.transcription import Weights, assert_equal_to_transcription, sigmoid

PLACES = [
    ((0.2, 0.2, 0.3, 0.3), (0.1, 0.1, 0.5, 0.5), 1),  # inside
    ((0.1, 0.1, 0.5, 0.5), (0.2, 0.2, 0.3, 0.3), 2),  # cover
    ((0.1, 0.1, 0.5, 0.5), (0.15, 0.1, 0.55, 0.5), 3),  # IoU 7/9
    ((0.4, 0.4, 0.5, 0.5), (0.6, 0.39, 0.7, 0.49), 4),  # right, a little above: up to 45 degrees
    ((0.4, 0.4, 0.5, 0.5), (0.41, 0.1, 0.51, 0.2), 5),  # above, a little right: up to 90
    ((0.4, 0.4, 0.5, 0.5), (0.39, 0.1, 0.49, 0.2), 6),
    ((0.4, 0.4, 0.5, 0.5), (0.1, 0.39, 0.2, 0.49), 7),
    ((0.4, 0.4, 0.5, 0.5), (0.1, 0.41, 0.2, 0.51), 8),
    ((0.4, 0.4, 0.5, 0.5), (0.39, 0.8, 0.49, 0.9), 9),
    ((0.4, 0.4, 0.5, 0.5), (0.41, 0.8, 0.51, 0.9), 10),
    ((0.4, 0.4, 0.5, 0.5), (0.6, 0.41, 0.7, 0.51), 11),
    ((0.4, 0.4, 0.5, 0.5), (0.6, 0.4, 0.7, 0.5), 11),  # 0 degrees are 360
    ((0.0, 0.0, 0.1, 0.1), (0.9, 0.9, 1.0, 1.0), 0),  # beyond half the diagonal
]


@pytest.mark.parametrize(("first", "second", "label"), PLACES)
def test_relations_are_those_of_the_paper(first, second, label):
    boxes = torch.tensor([[*first, 0.0], [*second, 0.0], [0, 0, 1, 1, 1]])[None]
    mask = torch.tensor([[True, True, False]])
    labels = spatial_relations(boxes, mask)[0]
    assert labels[0, 1] == label
    assert labels.diagonal().tolist() == [0, 0, 0]
    assert not labels[2].any()  # padding
    assert not labels[:, 2].any()


def relation(first, second):
    """Return the label of one box to another, written once more."""
    (a, b, c, d), (e, f, g, h) = first[:4], second[:4]
    if a >= e and b >= f and c <= g and d <= h:
        return 1
    if e >= a and f >= b and g <= c and h <= d:
        return 2
    shared = max(min(c, g) - max(a, e), 0) * max(min(d, h) - max(b, f), 0)
    if shared >= 0.5 * ((c - a) * (d - b) + (g - e) * (h - f) - shared):
        return 3
    x, y = (e + g - a - c) / 2, (b + d - f - h) / 2
    if math.hypot(x, y) > math.sqrt(2) / 2:
        return 0
    angle = math.degrees(math.atan2(y, x)) % 360
    return 3 + math.ceil((angle or 360) / 45)


def convolve(captioner, regions, boxes):
    weights = Weights(captioner, "encoder")
    convolved = []
    for i, region in enumerate(regions):
        # Eq. 3 and 4, of the region itself
        total = sigmoid(weights.linear(region, "gate")) * weights.linear(region, "itself")
        for j, other in enumerate(regions):
            outgoing = ("to_object", 0, relation(boxes[i], boxes[j]))
            incoming = ("to_subject", 1, relation(boxes[j], boxes[i]))
            for name, way, label in (outgoing, incoming):
                if i != j and label:
                    gate = (
                        weights["edge_gates.weight"][way] @ other + weights["gate_bias"][label - 1]
                    )
                    message = weights[f"{name}.weight"] @ other + weights["bias"][label - 1]
                    total = total + sigmoid(gate) * message
        added = region if captioner.config.residual else 0
        convolved.append(np.maximum(total + added, 0))
    return np.array(convolved)


def log_probs(captioner, align, regions, fed):
    return test_up_down.log_probs(captioner, align, convolve(captioner, regions, align.boxes), fed)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    captioner = make("gcn-lstm", alignment={"fusion": fusion})
    assert_equal_to_transcription(captioner, images, log_probs)


def test_without_the_residual_both_passes_equal_the_equations_too(images):
    assert_equal_to_transcription(make("gcn-lstm", residual=False), images, log_probs)
