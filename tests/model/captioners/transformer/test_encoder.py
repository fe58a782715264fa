import pytest
import torch


def _encode(captioner, images):
    return captioner.encoder(images.features, images.boxes, images.region_mask)


@pytest.mark.parametrize(
    ("geometry", "differs"), [("none", False), ("linear", True), ("relative", True)]
)
@pytest.mark.parametrize("blind", [False, True])
def test_only_geometry_distinguishes_left_from_right(tiny, images, geometry, differs, blind):
    captioner = tiny(box_geometry=geometry, blind=blind)
    expected = _encode(captioner, images)
    mirrored = images.boxes.clone()
    mirrored[..., 0], mirrored[..., 2] = 1 - images.boxes[..., 2], 1 - images.boxes[..., 0]
    images.boxes = mirrored
    assert torch.equal(_encode(captioner, images), expected) != differs


def test_half_precision_features_are_accepted(tiny, images):
    captioner = tiny()
    images.features = images.features.half()
    assert _encode(captioner, images).dtype == torch.float64
