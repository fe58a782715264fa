import pytest
import torch


@pytest.mark.parametrize(("geometry", "counts"), [("linear", False), ("relative", True)])
def test_relational_attention_counts_equal_regions(tiny, images, geometry, counts):
    captioner = tiny(box_geometry=geometry)

    def state(count):
        features, boxes = (
            values[:1, :1].expand(1, count, -1) for values in (images.features, images.boxes)
        )
        return captioner.encoder(features, boxes, torch.ones(1, count, dtype=torch.bool))[0, 0]

    assert torch.allclose(state(2), state(3)) != counts
