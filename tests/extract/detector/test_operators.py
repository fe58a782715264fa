import subprocess
import sys
from functools import partial

import pytest
import torch
import torchvision

from a2cap.data.errors import A2Error
from a2cap.extract.detector.operators import nms, roi_pool
from tests.extract.tiny import seeded


def test_nms_returns_indices_by_falling_score():
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]])
    kept = partial(nms, boxes, torch.tensor([0.1, 0.5, 0.9]), threshold=0.7)
    assert kept(most=9).tolist() == [2, 1]
    assert kept(most=1).tolist() == [2]
    assert kept(most=0).tolist() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_nms_equals_torchvisions(dtype, threshold):
    # corners of whole pixels: many equal boxes and scores, overlaps at the threshold, no area
    corners = torch.randint(0, 12, (400, 2, 2), generator=seeded()).to(dtype).sort(dim=1).values
    boxes, scores = corners.flatten(1), torch.randint(0, 50, (400,), generator=seeded(1)).to(dtype)
    kept = nms(boxes, scores, threshold=threshold, most=400)
    assert torch.equal(kept, torchvision.ops.nms(boxes, scores, threshold))


def test_pooling_has_a_gradient():
    maps = torch.arange(16.0).reshape(1, 1, 4, 4).requires_grad_()
    rois = torch.tensor([[0.0, 0, 0, 39, 39], [0, 0, 0, 20, 20], [0, 0, 0, 39, 39]])
    (pooled,) = roi_pool(maps, rois, size=1, scale=1 / 16, chunk=3)
    pooled.sum().backward()
    assert maps.grad is not None
    expected = torch.zeros(4, 4)
    expected[2, 2], expected[1, 1] = 2, 1
    assert torch.equal(maps.grad[0, 0], expected)


def test_an_incompatible_torchvision_is_reported_in_one_line(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torchvision":
                raise RuntimeError("operator torchvision::nms does not exist")

    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(A2Error) as error:
        next(roi_pool(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5), size=1, scale=1, chunk=1))
    assert str(error.value) == (
        f"torchvision does not fit torch {torch.__version__}: "
        "operator torchvision::nms does not exist; "
        "install both from the same index, both for CPU or both for the same CUDA"
    )


@pytest.mark.slow
def test_detection_on_a_cpu_does_not_import_torchvision():
    script = (
        "import sys, torch\n"
        "from a2cap.extract.detector.operators import nms, roi_pool\n"
        "with torch.inference_mode():\n"
        "    kept = nms(torch.zeros(1, 4), torch.zeros(1), threshold=0.5, most=1)\n"
        "    maps, rois = torch.ones(1, 1, 4, 4), torch.zeros(99, 5)\n"
        "    next(roi_pool(maps, rois, size=1, scale=1, chunk=9))\n"
        "assert kept.tolist() == [0]\n"
        "assert 'torchvision' not in sys.modules\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr
