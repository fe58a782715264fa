"""Objects: details are within their silhouettes, tilts are clockwise, boxes are scaled."""

import numpy as np
import pytest

from a2cap.data.scenes.objects import CLUTTER, MAX_TILT, OBJECT_CATEGORIES, SceneObject, outline
from a2cap.data.scenes.silhouettes import silhouette_of


def test_details_are_inside_the_box_of_the_silhouette():
    for category in (*OBJECT_CATEGORIES, *CLUTTER):
        silhouette = silhouette_of(category)
        least, greatest = silhouette.bounds()
        for detail in silhouette.details:
            assert (detail >= least - 1e-9).all(), category
            assert (detail <= greatest + 1e-9).all(), category


def test_a_positive_tilt_is_clockwise():
    upright, leaning = (
        outline(SceneObject("kite", "red", "small", "plain", (0, 0, 100, 100), tilt)).parts[-1][0]
        for tilt in (0.0, MAX_TILT)
    )
    assert np.argmin(upright[:, 1]) == np.argmin(leaning[:, 1]) == 0
    assert leaning[0, 0] > upright[0, 0]


def test_a_scaled_box_is_rounded_to_hundredths_of_a_pixel():
    obj = SceneObject("box", "red", "small", "plain", (0.1, 0.2, 0.30001, 0.6), 3.0)
    scaled = SceneObject("box", "red", "small", "plain", (9.6, 19.2, 28.8, 57.6), 3.0)
    assert obj.scaled(96) == scaled
    assert scaled.centre == pytest.approx((19.2, 38.4))
    assert scaled.area == pytest.approx(19.2 * 38.4)
