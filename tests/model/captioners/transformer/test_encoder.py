import pytest
import torch


def _encode(captioner, pictures):
    return captioner.encoder(pictures.features, pictures.boxes, pictures.region_mask)


def test_every_region_becomes_one_state(tiny, pictures):
    assert _encode(tiny(), pictures).shape == (3, 4, 16)


def test_states_of_regions_do_not_depend_on_padding(tiny, pictures):
    captioner = tiny(box_geometry="linear")
    expected = _encode(captioner, pictures)[pictures.region_mask]
    pictures.features[~pictures.region_mask] = torch.nan
    pictures.boxes[~pictures.region_mask] = torch.nan
    torch.testing.assert_close(_encode(captioner, pictures)[pictures.region_mask], expected)


def test_permuted_regions_give_permuted_states(tiny, pictures):
    captioner, order = tiny(), torch.tensor([3, 1, 0, 2])
    expected = _encode(captioner, pictures)[:, order]
    pictures.features = pictures.features[:, order]
    pictures.region_mask = pictures.region_mask[:, order]
    states = _encode(captioner, pictures)
    exists = pictures.region_mask
    torch.testing.assert_close(states[exists], expected[exists])


def test_blind_encoder_takes_nothing_from_the_features(tiny, pictures):
    captioner = tiny(blind=True)
    expected = _encode(captioner, pictures)
    pictures.features = pictures.features * 7 + 3
    assert torch.equal(_encode(captioner, pictures), expected)


@pytest.mark.parametrize(("geometry", "differs"), [("none", False), ("linear", True)])
@pytest.mark.parametrize("blind", [False, True])
def test_only_linear_geometry_knows_left_from_right(tiny, pictures, geometry, differs, blind):
    captioner = tiny(box_geometry=geometry, blind=blind)
    expected = _encode(captioner, pictures)
    mirrored = pictures.boxes.clone()
    mirrored[..., 0], mirrored[..., 2] = 1 - pictures.boxes[..., 2], 1 - pictures.boxes[..., 0]
    pictures.boxes = mirrored
    assert torch.equal(_encode(captioner, pictures), expected) != differs


def test_half_precision_features_of_a_store_are_taken(tiny, pictures):
    captioner = tiny()
    pictures.features = pictures.features.half()
    assert _encode(captioner, pictures).dtype == torch.float64


def test_encoder_without_layers_is_the_embedding(tiny, pictures):
    captioner = tiny(encoder_layers=0)
    arguments = (pictures.features, pictures.boxes, pictures.region_mask)
    assert torch.equal(captioner.encoder(*arguments), captioner.encoder.embedding(*arguments))
