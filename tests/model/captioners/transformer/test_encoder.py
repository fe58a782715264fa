import pytest
import torch


def _encode(captioner, images):
    return captioner.encoder(images.features, images.boxes, images.region_mask)


def test_every_region_becomes_one_state(tiny, images):
    assert _encode(tiny(), images).shape == (3, 4, 16)


def test_states_of_regions_do_not_depend_on_padding(tiny, images):
    captioner = tiny(box_geometry="linear")
    expected = _encode(captioner, images)[images.region_mask]
    images.features[~images.region_mask] = torch.nan
    images.boxes[~images.region_mask] = torch.nan
    torch.testing.assert_close(_encode(captioner, images)[images.region_mask], expected)


def test_permuted_regions_give_permuted_states(tiny, images):
    captioner, order = tiny(), torch.tensor([3, 1, 0, 2])
    expected = _encode(captioner, images)[:, order]
    images.features = images.features[:, order]
    images.region_mask = images.region_mask[:, order]
    states = _encode(captioner, images)
    exists = images.region_mask
    torch.testing.assert_close(states[exists], expected[exists])


def test_a_blind_encoder_ignores_the_features(tiny, images):
    captioner = tiny(blind=True)
    expected = _encode(captioner, images)
    images.features = images.features * 7 + 3
    assert torch.equal(_encode(captioner, images), expected)


@pytest.mark.parametrize(("geometry", "differs"), [("none", False), ("linear", True)])
@pytest.mark.parametrize("blind", [False, True])
def test_only_linear_geometry_distinguishes_left_from_right(tiny, images, geometry, differs, blind):
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
