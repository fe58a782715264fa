"""Drawings of scenes: tight boxes, distinct shapes, recognisable colours."""

import numpy as np
import pytest

from a2cap.data.scenes.drawing import Background, draw_image, silhouette_mask
from a2cap.data.scenes.objects import (
    CLUTTER,
    COLOURS,
    MAX_TILT,
    OBJECT_CATEGORIES,
    TEXTURES,
    SceneObject,
    extent,
)

PLAIN = Background("gradient", "stone", seed=3)


def obj(
    category: str = "ball", colour: str = "red", *, texture: str = "plain", tilt: float = 0.0
) -> SceneObject:
    width, height = (70 * share for share in extent(category, tilt))
    return SceneObject(
        category, colour, "large", texture, (40.3, 50.7, 40.3 + width, 50.7 + height), tilt
    )


@pytest.mark.parametrize("tilt", [-MAX_TILT, 0.0, MAX_TILT])
def test_the_box_is_tight_around_the_silhouette(tilt):
    for category in (*OBJECT_CATEGORIES, *CLUTTER):
        drawn = obj(category, tilt=tilt)
        rows, columns = np.nonzero(silhouette_mask(drawn, side=160) > 0.02)
        tight = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert np.abs(np.array(tight) - drawn.box).max() <= 1.5, category


def test_a_silhouette_has_the_area_of_its_shape():
    ball, box = (silhouette_mask(obj(category), side=160).sum() for category in ("ball", "box"))
    # OpenCV's antialiasing adds a quarter of a pixel on each side.
    assert box == pytest.approx(70**2, rel=0.03)
    assert ball == pytest.approx(np.pi * 35**2, rel=0.03)


@pytest.mark.parametrize("texture", TEXTURES)
def test_the_drawn_colour_is_nearest_to_its_name(texture):
    for colour in COLOURS:
        image = draw_image([obj("box", colour, texture=texture)], PLAIN, side=160)
        inside = image[60:110, 50:100, ::-1].reshape(-1, 3).astype(float)
        distances = np.linalg.norm(inside[:, None] - np.array(list(COLOURS.values())), axis=2)
        nearest = np.bincount(distances.argmin(axis=1), minlength=len(COLOURS))
        assert list(COLOURS)[nearest.argmax()] == colour
        assert nearest.max() > 0.5 * nearest.sum(), colour


def test_a_texture_changes_the_image_inside_the_box_only():
    plain, striped, dotted = (
        draw_image([obj(texture=texture)], PLAIN, side=160).astype(int) for texture in TEXTURES
    )
    for textured in (striped, dotted):
        rows, columns = np.nonzero(np.abs(textured - plain).sum(axis=2))
        assert len(rows) > 500
        assert rows.min() >= 50 and rows.max() <= 121
        assert columns.min() >= 40 and columns.max() <= 111


def test_the_background_is_visible_through_a_ring():
    mask = silhouette_mask(obj("ring"), side=160)
    assert mask[85, 75] == 0 and mask[85, 45] == 1


def test_later_objects_are_on_top_and_channels_are_blue_green_red():
    below, above = obj("box", "red"), obj("box", "blue")
    image = draw_image([below, above], PLAIN, side=160)
    assert np.array_equal(image[105, 60], draw_image([above], PLAIN, side=160)[105, 60])
    blue, _, red = image[105, 60].astype(int)
    assert blue > red + 80
