"""Layouts: objects are in the image, distinct and mostly visible."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from a2cap.data.scenes.drawing import silhouette_mask
from a2cap.data.scenes.layout import (
    CONTAINERS,
    MAX_OBJECTS,
    MAX_OVERLAP,
    MAX_OVERLAP_ALIKE,
    SceneLayout,
    arrange,
)
from a2cap.data.scenes.objects import SIZES, SceneObject


@pytest.fixture(scope="module")
def many() -> list[tuple[SceneObject, ...]]:
    return [arrange(np.random.default_rng(seed)) for seed in range(200)]


def shared(a: SceneObject, b: SceneObject) -> float:
    """Return the overlap of two boxes as a share of the smaller one."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    return max(width, 0) * max(height, 0) / min(a.area, b.area)


def test_one_to_seven_objects_are_inside_an_image_of_side_one(many):
    assert {len(objects) for objects in many} == set(range(1, MAX_OBJECTS + 1))
    assert MAX_OBJECTS == 7
    for objects in many:
        for obj in objects:
            x1, y1, x2, y2 = obj.box
            assert 0 < x1 < x2 < 1 and 0 < y1 < y2 < 1


@pytest.mark.slow
def test_objects_overlap_little_except_in_containers(many):
    pairs = [pair for objects in many for pair in combinations(objects, 2)]
    for back, front in pairs:
        contained = shared(back, front) > 0.999
        alike = (back.category, back.colour) == (front.category, front.colour)
        most = MAX_OVERLAP_ALIKE if alike else MAX_OVERLAP
        assert shared(back, front) <= most + 1e-3 or contained
        assert not contained or (back.category in CONTAINERS and front.size == "small")
    overlapping = sum(any(shared(*pair) > 0 for pair in combinations(t, 2)) for t in many)
    assert 0.3 * len(many) < overlapping < 0.8 * len(many)


@pytest.mark.slow
@pytest.mark.parametrize("side", [96, 224])
def test_at_least_three_fifths_of_each_silhouette_are_visible(many, side):
    for objects in (objects for objects in many[:150] if len(objects) > 1):
        masks = [silhouette_mask(obj.scaled(side), side=side) for obj in objects]
        for position, mask in enumerate(masks):
            seen = mask * np.prod([1 - front for front in masks[position + 1 :]], axis=0)
            assert seen.sum() >= 0.6 * mask.sum()


def test_some_objects_are_inside_a_ring_or_a_box(many):
    containers = Counter(
        back.category
        for objects in many
        for back, front in combinations(objects, 2)
        if shared(back, front) > 0.999
    )
    assert set(containers) == set(CONTAINERS) == {"ring", "box"}
    assert 0.05 * len(many) < containers.total() < 0.25 * len(many)


def test_an_object_leaves_enough_of_the_one_behind_it_visible():
    layout = SceneLayout()
    layout.add(SceneObject("box", "red", "large", "plain", (0.1, 0.1, 0.4, 0.4)))
    corner = SceneObject("box", "blue", "large", "plain", (0.25, 0.25, 0.55, 0.55))
    middle = SceneObject("box", "blue", "large", "plain", (0.15, 0.15, 0.45, 0.45))
    assert layout.keeps_visible(corner) and not layout.is_apart(corner)
    assert not layout.keeps_visible(middle)
    assert layout.is_apart(SceneObject("box", "blue", "small", "plain", (0.6, 0.6, 0.8, 0.8)))


def test_the_longer_side_is_within_the_bounds_of_the_size_word(many):
    for obj in (obj for objects in many for obj in objects):
        x1, y1, x2, y2 = obj.box
        least, most = SIZES[obj.size]
        assert least - 1e-4 <= max(x2 - x1, y2 - y1) <= most + 1e-4
    assert SIZES["small"][1] * 1.25 < SIZES["medium"][0]
    assert SIZES["medium"][1] * 1.25 < SIZES["large"][0]
