import pytest
import torch
import torchvision

from a2cap.extract.detector.proposals import nms
from tests.extract.tiny import seeded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_nms_equals_torchvisions(dtype, threshold):
    # corners of whole pixels: many equal boxes and scores, overlaps at the threshold, no area
    corners = torch.randint(0, 12, (400, 2, 2), generator=seeded()).to(dtype).sort(dim=1).values
    boxes, scores = corners.flatten(1), torch.randint(0, 50, (400,), generator=seeded(1)).to(dtype)
    kept = nms(boxes, scores, threshold=threshold, most=400)
    assert torch.equal(kept, torchvision.ops.nms(boxes, scores, threshold))
