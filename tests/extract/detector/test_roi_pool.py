"""Region pooling against caffe's kernel written out with loops."""

import numpy as np
import pytest
import torch
from torchvision.ops import roi_pool as torchvision_roi_pool

from a2cap.extract.detector.operators import roi_pool
from a2cap.extract.detector.roi_pool import FEWEST
from tests.extract.tiny import seeded


def reference(maps, rois, *, size, scale):
    """Pool as roi_pooling_layer.cpp of caffe: float32, one cell and one region at a time."""
    pooled = np.zeros((len(rois), maps.shape[1], size, size), np.float32)
    one, half = np.float32(1), np.float32(0.5)
    for k, (image, *box) in enumerate(rois.numpy()):
        corners = [side * np.float32(scale) for side in box]
        x1, y1, x2, y2 = (int(np.sign(c) * np.floor(np.float64(abs(c)) + half)) for c in corners)
        width = np.float32(max(x2 - x1 + 1, 1)) / np.float32(size)
        height = np.float32(max(y2 - y1 + 1, 1)) / np.float32(size)
        for row in range(size):
            top, bottom = np.floor(row * height), np.ceil((row + one) * height)
            for column in range(size):
                left, right = np.floor(column * width), np.ceil((column + one) * width)
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
