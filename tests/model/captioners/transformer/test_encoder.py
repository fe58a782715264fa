import math

import pytest
import torch

from a2cap.model.captioners.transformer.encoder import pair_geometry


def _encode(captioner, images):
    return captioner.encoder(images.features, images.boxes, images.region_mask)


def test_every_region_becomes_one_state(tiny, images):
    assert _encode(tiny(), images).shape == (3, 4, 16)


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


def test_encoder_without_layers_is_the_embedding(tiny, images):
    captioner = tiny(encoder_layers=0)
    arguments = (images.features, images.boxes, images.region_mask)
    assert torch.equal(captioner.encoder(*arguments), captioner.encoder.embedding(*arguments))


def test_a_bias_tells_left_from_right_where_features_are_equal():
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


def test_with_a_sink_equal_regions_are_counted(tiny, images):
    """Without one, the average over n equal values is the same for every n."""

    def state_of(count, captioner):
        features, boxes = (
            values[:1, :1].expand(1, count, -1) for values in (images.features, images.boxes)
        )
        return captioner.encoder(features, boxes, torch.ones(1, count, dtype=torch.bool))[0, 0]

    for is_sunk in (False, True):
        captioner = tiny(attention_sink=is_sunk, box_geometry="relative")
        assert torch.allclose(state_of(2, captioner), state_of(3, captioner)) != is_sunk
