import math

import pytest
import torch

from a2cap.model.attention.relational import pair_geometry


def test_pairs_tell_left_from_right():
    left, right = [0.0, 0.4, 0.2, 0.6, 0.04], [0.8, 0.4, 1.0, 0.6, 0.04]
    there, back = pair_geometry(torch.tensor([[left, right]]))[0][[0, 1], [1, 0]]
    assert there.tolist() == pytest.approx([3.2, 0, 1, 0, 0, 0, 0, 0], abs=1e-6)
    assert torch.allclose(back, -there, atol=1e-6)


def test_a_box_inside_another_is_covered_by_it():
    outer, inner = [0.0, 0.0, 1.0, 0.5, 0.5], [0.5, 0.0, 1.0, 0.25, 0.125]
    pairs = pair_geometry(torch.tensor([[outer, inner]]))[0]
    assert pairs[0, 1].tolist() == pytest.approx(
        [1, -0.5, 1, -1, math.log(0.5), math.log(0.5), 0.25, 0.25]
    )
    assert pairs[1, 0, -1] == 1


@pytest.mark.parametrize(("geometry", "counts"), [("linear", False), ("relative", True)])
def test_relational_attention_counts_equal_regions(tiny, images, geometry, counts):
    captioner = tiny(box_geometry=geometry)

    def state(count):
        features, boxes = (
            values[:1, :1].expand(1, count, -1) for values in (images.features, images.boxes)
        )
        return captioner.encoder(features, boxes, torch.ones(1, count, dtype=torch.bool))[0, 0]

    assert torch.allclose(state(2), state(3)) != counts
