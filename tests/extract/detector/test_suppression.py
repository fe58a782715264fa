import pytest
import torch
import torchvision

from a2cap.extract.detector.suppression import nms, nms_in_rounds
from tests.extract.tiny import seeded


def some_boxes(dtype=torch.float32):
    """Return boxes and scores, many of them equal, with overlaps at the threshold and no area."""
    corners = torch.randint(0, 12, (400, 2, 2), generator=seeded()).to(dtype).sort(dim=1).values
    return corners.flatten(1), torch.randint(0, 50, (400,), generator=seeded(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_nms_equals_torchvisions(dtype, threshold):
    boxes, scores = some_boxes(dtype)
    kept = nms(boxes, scores, threshold=threshold, most=400)
    assert torch.equal(kept, torchvision.ops.nms(boxes, scores, threshold))


@pytest.mark.parametrize("threshold", [0.5, 0.7])
def test_nms_in_rounds_keeps_the_same_boxes(threshold):
    boxes, scores = some_boxes()
    order = scores.argsort(descending=True, stable=True)
    boxes, usable = boxes[order], torch.rand(400, generator=seeded()) > 0.2
    kept, is_final = nms_in_rounds(boxes, usable, threshold=threshold)
    falling = -torch.arange(int(usable.sum()), dtype=torch.float32)
    expected = usable.nonzero()[:, 0][nms(boxes[usable], falling, threshold=threshold, most=400)]
    assert torch.equal(kept.nonzero()[:, 0], expected)
    assert is_final


def test_nms_in_too_few_rounds_is_not_final():
    x = torch.arange(20.0)[:, None]  # each box overlaps its neighbours alone
    boxes = torch.cat([x, 0 * x, x + 1.5, 0 * x + 1], dim=1)
    for rounds, expected in ((18, False), (19, False), (20, True)):
        kept, is_final = nms_in_rounds(boxes, torch.ones(20).bool(), threshold=0.15, rounds=rounds)
        assert bool(is_final) is expected, rounds
    assert kept.tolist() == [True, False] * 10
