"""Region pooling against caffe's kernel written out with loops."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torchvision.ops import roi_pool as torchvision_roi_pool

from a2cap.data.errors import A2Error
from a2cap.extract.detector.pooled_cells import FEWEST
from a2cap.extract.detector.roi_pool import roi_pool
from tests.extract.tiny import seeded


def reference(maps, rois, *, size, scale):
    """Pool as roi_pooling_layer.cpp of caffe: float32, one cell and one region at a time."""
    pooled = np.zeros((len(rois), maps.shape[1], size, size), np.float32)
    pixel, half = np.float32(1), np.float32(0.5)
    for k, (image, *box) in enumerate(rois.numpy()):
        corners = [side * np.float32(scale) for side in box]
        x1, y1, x2, y2 = (int(np.sign(c) * np.floor(np.float64(abs(c)) + half)) for c in corners)
        width = np.float32(max(x2 - x1 + 1, 1)) / np.float32(size)
        height = np.float32(max(y2 - y1 + 1, 1)) / np.float32(size)
        for row in range(size):
            top, bottom = np.floor(row * height), np.ceil((row + pixel) * height)
            for column in range(size):
                left, right = np.floor(column * width), np.ceil((column + pixel) * width)
                y = slice(max(int(top) + y1, 0), max(int(bottom) + y1, 0))
                x = slice(max(int(left) + x1, 0), max(int(right) + x1, 0))
                cells = maps[int(image), :, y, x].flatten(1)
                if cells.shape[1]:
                    pooled[k, :, row, column] = cells.amax(dim=1)
    return pooled


def pooled_regions(maps, rois, *, size, chunk=7):
    with torch.inference_mode():
        return torch.cat(list(roi_pool(maps, rois, size=size, scale=1 / 16, chunk=chunk)))


def some_regions(count, *, images, seed):
    """Return regions of maps of 11 x 17 cells: within, beyond, thin, of no area, at half cells."""
    corners = (torch.rand(count, 2, 2, generator=seeded(seed)) * 1.4 - 0.2).sort(dim=1).values
    boxes = (corners * torch.tensor([272.0, 176.0])).reshape(count, 4)
    boxes[::3] = (boxes[::3] / 8).round() * 8  # halves of a cell of 16 pixels
    boxes[1] = boxes[1, [0, 1, 0, 1]]
    boxes[2] = torch.tensor([300.0, 200, 400, 300])
    indices = torch.arange(count) * images // count
    return torch.cat([indices[:, None].float(), boxes], dim=1)


@pytest.mark.parametrize("count", [3, 2 * FEWEST + 6], ids=["few", "many"])
@pytest.mark.parametrize(("images", "size"), [(1, 14), (1, 1), (2, 7)])
def test_pooling_equals_caffes_loops_bit_for_bit(count, images, size):
    maps = torch.randn(images, 3, 11, 17, generator=seeded(size))
    rois = some_regions(count, images=images, seed=count)
    pooled = pooled_regions(maps, rois, size=size)
    assert pooled.shape == (count, 3, size, size)
    assert np.array_equal(pooled, reference(maps, rois, size=size, scale=1 / 16))


def test_an_image_of_a_batch_may_have_no_regions():
    maps = torch.randn(3, 2, 11, 17, generator=seeded())
    rois = some_regions(4 * FEWEST, images=2, seed=0)
    rois[:, 0] *= 2
    pooled = pooled_regions(maps, rois, size=3)
    assert torch.equal(pooled, torchvision_roi_pool(maps, rois, 3, 1 / 16))


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
        "from a2cap.extract.detector.suppression import nms\n"
        "from a2cap.extract.detector.roi_pool import roi_pool\n"
        "with torch.inference_mode():\n"
        "    kept = nms(torch.zeros(1, 4), torch.zeros(1), threshold=0.5, most=1)\n"
        "    maps, rois = torch.ones(1, 1, 4, 4), torch.zeros(99, 5)\n"
        "    next(roi_pool(maps, rois, size=1, scale=1, chunk=9))\n"
        "assert kept.tolist() == [0]\n"
        "assert 'torchvision' not in sys.modules\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr
