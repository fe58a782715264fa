import pytest
import torch
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, Matcher
from torchvision.ops import box_iou

from a2cap.extract.training.matching import (
    ANCHOR_RULE,
    BACKGROUND,
    IGNORED,
    REGION_RULE,
    match,
    sample,
)
from tests.extract.tiny import seeded

NONE = torch.zeros(0, 4)


def test_in_a_crowd_nothing_is_background():
    crowds = torch.tensor([[20.0, 0, 60, 40]])
    within, half_out, outside = [30.0, 5, 50, 25], [0.0, 0, 39, 40], [70.0, 0, 90, 20]
    true = torch.tensor([[0.0, 0, 10, 10]])
    regions = torch.cat([torch.tensor([within, half_out, outside]), true])
    matches = match(true, regions, crowds=crowds, rule=REGION_RULE)
    assert matches.tolist() == [IGNORED, BACKGROUND, BACKGROUND, 0]
    everything = torch.tensor([[0.0, 0, 300, 300]])
    assert match(true, true, crowds=everything, rule=REGION_RULE).tolist() == [0]


MATCHES = torch.tensor([0, BACKGROUND, IGNORED, 3] * 25)


def taken(*, count):
    rows = sample(MATCHES, count=count, positive_fraction=0.25, generator=seeded())
    return rows, MATCHES[rows]


def nine(generator):
    return sample(MATCHES, count=9, positive_fraction=0.5, generator=generator)


def test_few_negatives_make_a_small_sample():
    _, matches = taken(count=100)
    assert (matches >= 0).sum() == 25
    assert (matches == BACKGROUND).sum() == 25


def test_sampling_depends_on_and_advances_the_generator():
    again, generator = seeded(), seeded()
    first, second = (nine(generator) for _ in range(2))
    assert torch.equal(nine(again), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("rule", [ANCHOR_RULE, REGION_RULE], ids=["anchors", "regions"])
@pytest.mark.parametrize("seed", range(5))
def test_matches_and_samples_equal_those_of_torchvision(rule, seed):
    corners = torch.rand(66, 2, 2, generator=seeded(seed)).mul(8).round().sort(dim=1).values
    boxes, regions = (corners.reshape(-1, 4) * 10).split([6, 60])
    boxes[:, 2:] += 10
    matcher = Matcher(rule.foreground, rule.background, allow_low_quality_matches=rule.keeps_best)
    matches = match(boxes, regions, crowds=NONE, rule=rule)
    assert torch.equal(matches, matcher(box_iou(boxes, regions)))
    torch.manual_seed(seed)
    labels = torch.where(matches >= 0, 1, matches - BACKGROUND)
    (positives,), (negatives,) = BalancedPositiveNegativeSampler(20, 0.3)([labels])
    sampled = sample(matches, count=20, positive_fraction=0.3, generator=seeded(seed))
    assert torch.equal(sampled, (positives | negatives).nonzero()[:, 0])
