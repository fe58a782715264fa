import numpy as np
import pytest

from a2cap.data.scenes.drawing import PATTERNS, TINTS, Ground, draw_image, silhouette_mask
from a2cap.data.scenes.objects import COLOURS, KINDS, MAX_TILT, TEXTURES, Thing, extent

PLAIN = Ground("gradient", "stone", seed=3)


def thing(
    kind: str = "ball", colour: str = "red", *, texture: str = "plain", tilt: float = 0.0
) -> Thing:
    width, height = (70 * share for share in extent(kind, tilt))
    return Thing(kind, colour, "large", texture, (40.3, 50.7, 40.3 + width, 50.7 + height), tilt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tilt", [-MAX_TILT, 0.0, MAX_TILT])
def test_the_box_is_tight_around_the_silhouette(kind, tilt):
    drawn = thing(kind, tilt=tilt)
    rows, columns = np.nonzero(silhouette_mask(drawn, side=160) > 0.02)
    found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert np.abs(np.array(found) - drawn.box).max() <= 1.5


def test_a_silhouette_covers_the_area_that_its_shape_has():
    ball, box = (silhouette_mask(thing(kind), side=160).sum() for kind in ("ball", "box"))
    # OpenCV's antialiasing adds a quarter of a pixel all round.
    assert box == pytest.approx(70**2, rel=0.03)
    assert ball == pytest.approx(np.pi * 35**2, rel=0.03)


def test_silhouettes_of_different_kinds_differ_clearly():
    masks = [silhouette_mask(thing(kind), side=160) for kind in KINDS]
    for i, first in enumerate(masks):
        for second in masks[:i]:
            overlap = np.minimum(first, second).sum() / np.maximum(first, second).sum()
            assert overlap < 0.85


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("texture", TEXTURES)
def test_the_named_colour_is_the_nearest_one_to_what_is_drawn(colour, texture):
    image = draw_image([thing("box", colour, texture=texture)], PLAIN, side=160)
    inside = image[60:110, 50:100, ::-1].reshape(-1, 3).astype(float)
    distances = np.linalg.norm(inside[:, None] - np.array(list(COLOURS.values())), axis=2)
    nearest = np.bincount(distances.argmin(axis=1), minlength=len(COLOURS))
    assert list(COLOURS)[nearest.argmax()] == colour
    assert nearest.max() > 0.5 * nearest.sum()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("tint", TINTS)
def test_grounds_are_muted_and_neither_black_nor_white(pattern, tint):
    image = draw_image([], Ground(pattern, tint, seed=1), side=160).astype(int)
    assert np.ptp(image, axis=2).mean() < 45
    assert np.percentile(image, 1) > 90 and np.percentile(image, 99) < 235
    assert image.std() > 3


def test_a_texture_changes_the_image_inside_the_box_only():
    plain, striped, dotted = (
        draw_image([thing(texture=texture)], PLAIN, side=160).astype(int) for texture in TEXTURES
    )
    for textured in (striped, dotted):
        rows, columns = np.nonzero(np.abs(textured - plain).sum(axis=2))
        assert len(rows) > 500
        assert rows.min() >= 50 and rows.max() <= 121
        assert columns.min() >= 40 and columns.max() <= 111


def test_a_ring_shows_the_ground_through_its_hole():
    mask = silhouette_mask(thing("ring"), side=160)
    assert mask[85, 75] == 0 and mask[85, 45] == 1


def test_an_image_is_uint8_of_the_side_and_the_same_each_time():
    first, second = (draw_image([thing()], PLAIN, side=200) for _ in range(2))
    assert first.shape == (200, 200, 3) and first.dtype == np.uint8
    assert np.array_equal(first, second)


def test_channels_are_blue_green_red():
    image = draw_image([thing("box", "blue")], PLAIN, side=160)
    blue, _, red = image[105, 60].astype(int)
    assert blue > red + 80


def test_the_later_thing_lies_on_top():
    below, above = thing("box", "red"), thing("box", "blue")
    image = draw_image([below, above], PLAIN, side=160)
    assert np.array_equal(image[105, 60], draw_image([above], PLAIN, side=160)[105, 60])
