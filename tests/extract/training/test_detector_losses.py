"""The losses against the same written out with loops, float64 and no torch."""

import math

import numpy as np
import pytest
import torch

from a2cap.extract.training.detector_losses import AttributeLoss, DetectorLosses, mean_by_image
from tests.extract.formulas import log_softmax


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape)).float()


def by_image(losses):
    """losses: (image, loss) pairs. Mean of each image's mean."""
    total = 0.0
    for image in range(3):
        own = [loss for of, loss in losses if of == image]
        total += sum(own) / len(own) if own else 0.0
    return total / 3


def test_attribute_loss_averages_the_attributes_of_each_region_and_ignores_regions_without():
    logits = random(4, 4)
    attribute_ids = [[0, 2], [-1, -1], [1, -1], [2, 1]]
    images = [0, 0, 0, 2]
    losses = []
    for k, image in enumerate(images):
        own = [log_softmax(logits[k].tolist())[a] for a in attribute_ids[k] if a >= 0]
        if own:
            losses.append((image, -sum(own) / len(own)))
    loss = AttributeLoss()(logits, torch.tensor(attribute_ids), torch.tensor(images), count=3)
    assert loss.item() == pytest.approx(by_image(losses), rel=1e-5)


@pytest.mark.parametrize("target", ["sigmoid", "families"])
def test_attributes_are_learnt_one_by_one_or_by_family(target):
    logits, families = random(3, 6), [(0, 3), (1, 2)]  # attribute 4 has no family
    attribute_ids, images = [[0, 2], [1, 4], [3, -1]], [0, 1, 1]
    losses = []
    for k, image in enumerate(images):
        values, given = logits[k].tolist(), [a for a in attribute_ids[k] if a >= 0]
        if target == "sigmoid":
            signs = [1 if a in given else -1 for a in range(5)]
            total = sum(math.log1p(math.exp(-s * v)) for s, v in zip(signs, values, strict=False))
        else:
            total = sum(
                -log_softmax([values[a] for a in ids])[ids.index(given_one)]
                for ids in families
                for given_one in given
                if given_one in ids
            )
        losses.append((image, total / len(given)))
    loss = AttributeLoss(target, families)
    value = loss(logits, torch.tensor(attribute_ids), torch.tensor(images), count=3)
    assert value.item() == pytest.approx(by_image(losses), rel=1e-5)


@pytest.mark.parametrize("target", ["softmax", "sigmoid", "families"])
@pytest.mark.parametrize("width", [0, 2])
def test_attribute_loss_is_zero_without_known_attributes(width, target):
    logits = random(3, 4).requires_grad_()
    unknown = torch.full((3, width), -1)
    loss = AttributeLoss(target, [(0, 1)])(logits, unknown, torch.tensor([0, 0, 1]), count=2)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0


def test_parts_of_a_batch_average_to_the_whole():
    losses, images = random(6), torch.tensor([0, 0, 0, 1, 1, 2])
    whole = mean_by_image(losses, images, count=4)
    first = mean_by_image(losses[:5], images[:5], count=2)
    second = mean_by_image(losses[5:], images[5:] - 2, count=2)
    torch.testing.assert_close((first + second) / 2, whole)


def test_the_total_weighs_the_attributes():
    losses = DetectorLosses(*torch.tensor([1.0, 2, 4, 8, 16]))
    assert losses.total(attribute_weight=0.5) == 23
    assert list(losses.named()) == [
        "objectness",
        "proposal_boxes",
        "classes",
        "boxes",
        "attributes",
    ]
