"""GCN-LSTM (Yao et al. 2018) against its equations in numpy and float64, and its spatial graph."""

import math

import numpy as np
import pytest
import torch

from a2cap.model.captioners.gcn_lstm import spatial_relations
from a2cap.model.decoding.ensemble import Ensemble
from tests.model.captioners.recurrent import test_up_down
from tests.model.kinds import FUSIONS, make, refusal
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


def spatial(first, second):
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


def predicted(first, second):
    """Return the predicted label of one region to another: by its number, after box and area."""
    return int(first[6 + int(second[5])])


def convolve(captioner, regions, boxes):
    relation = predicted if captioner.config.graph == "semantic" else spatial
    weights = Weights(captioner, "encoder")
    convolved = []
    for i, region in enumerate(regions):
        # Eq. 3 and 4, of the region itself
        total = sigmoid(weights.linear(region, "gate")) * weights.linear(region, "itself")
        for way, name in enumerate(("to_object", "to_subject")):
            messages = []
            for j, other in enumerate(regions):
                label = relation(*(boxes[i], boxes[j])[:: -1 if way else 1])
                if i != j and label:
                    gate = (
                        weights["edge_gates.weight"][way] @ other + weights["gate_bias"][label - 1]
                    )
                    message = weights[f"{name}.weight"] @ other + weights["bias"][label - 1]
                    messages.append(sigmoid(gate) * message)
            divisor = max(1, len(messages)) if captioner.config.neighbours == "mean" else 1
            total = total + sum(messages) / divisor
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


@pytest.mark.parametrize("graph", ["spatial", "semantic"])
def test_with_the_mean_of_neighbours_both_passes_equal_the_equations_too(related, graph):
    captioner = make("gcn-lstm", graph=graph, relations=3, neighbours="mean")
    assert_equal_to_transcription(captioner, related, log_probs)


@pytest.fixture
def related(images):
    """Add relations to the images, by region number, with a label of each to none, some or all."""
    numbers = torch.arange(4.0, dtype=torch.float64).expand(3, 4)[..., None]
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 4, (3, 4, 4), generator=generator) * (1 - torch.eye(4)).long()
    assert {0, 1, 2, 3} == {*labels.flatten().tolist()}
    images.boxes = torch.cat((images.boxes, numbers, labels.double()), dim=2)
    return images


def semantic(**fields):
    return make("gcn-lstm", graph="semantic", relations=3, **fields)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_over_the_semantic_graph_equal_the_equations(related, fusion):
    assert_equal_to_transcription(semantic(alignment={"fusion": fusion}), related, log_probs)


def test_both_graphs_are_fused_as_in_the_paper(related):
    captioners = [make("gcn-lstm"), semantic()]
    fed = related.captions[:, :1, :3]
    ensemble = Ensemble(captioners, weights=(0.7, 0.3))
    fused = ensemble.forward(related.encoded(ensemble), fed)[0, 0].exp()
    # Eq. 11: p = 0.7 p_spatial + 0.3 p_semantic
    first, second = (c.forward(related.encoded(c), fed)[0, 0].exp() for c in captioners)
    assert torch.allclose(fused, 0.7 * first + 0.3 * second, rtol=0, atol=1e-12)
    assert not torch.allclose(first, second, rtol=0, atol=1e-3)


def test_relations_stay_with_their_regions_in_another_order_and_with_padding(related):
    captioner, order = semantic(), torch.tensor([2, 0, 3, 1])
    expected = captioner.score(related.encoded(captioner), related.captions).log_probs
    padding = torch.full((3, 1, 10), torch.nan, dtype=torch.float64)
    boxes = torch.cat((related.boxes[:, order], padding), dim=1)
    features = torch.cat((related.features[:, order], padding[..., :6]), dim=1)
    mask = torch.cat((related.region_mask[:, order], torch.zeros(3, 1, dtype=torch.bool)), dim=1)
    changed = captioner.score(captioner.encode(features, boxes, mask), related.captions).log_probs
    assert torch.allclose(changed, expected, rtol=0, atol=1e-10)


def test_other_captioners_leave_relations_out(related):
    captioner = make("transformer")
    with_relations = related.encoded(captioner).states
    related.boxes = related.boxes[..., :5]
    assert related.encoded(captioner).states.equal(with_relations)
    assert refusal(related.encoded, semantic()) == (
        "the regions have no relations, which model.graph=semantic needs; add them to the features "
        "with a2 convert --relations FILE, or set model.graph=spatial"
    )


def test_a_label_above_the_number_of_relations_is_rejected(related):
    assert refusal(related.encoded, make("gcn-lstm", graph="semantic", relations=2)) == (
        "a relation has the label 3, model.relations is 2; set model.relations to at least 3"
    )
