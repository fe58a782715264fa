from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from a2cap.data.scenes.drawing import silhouette_mask
from a2cap.data.scenes.layout import (
    CONTAINERS,
    MOST_SHARED,
    MOST_SHARED_ALIKE,
    MOST_THINGS,
    Layout,
    arranged,
)
from a2cap.data.scenes.objects import COLOURS, KINDS, SIZES, TEXTURES, Thing


@pytest.fixture(scope="module")
def many() -> list[tuple[Thing, ...]]:
    return [arranged(np.random.default_rng(seed)) for seed in range(500)]


def shared(a: Thing, b: Thing) -> float:
    """Share of the smaller box that lies in the other."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    return max(width, 0) * max(height, 0) / min(a.area, b.area)


def test_there_are_one_to_seven_things_inside_an_image_of_side_one(many):
    assert {len(things) for things in many} == set(range(1, MOST_THINGS + 1))
    assert MOST_THINGS == 7
    for things in many:
        for thing in things:
            x1, y1, x2, y2 = thing.box
            assert 0 < x1 < x2 < 1 and 0 < y1 < y2 < 1


def test_some_things_overlap_and_boxes_stay_distinct_but_for_what_lies_in_a_container(many):
    pairs = [pair for things in many for pair in combinations(things, 2)]
    for back, front in pairs:
        contained = shared(back, front) > 0.999
        alike = (back.kind, back.colour) == (front.kind, front.colour)
        most = MOST_SHARED_ALIKE if alike else MOST_SHARED
        assert shared(back, front) <= most + 1e-3 or contained
        assert not contained or (back.kind in CONTAINERS and front.size == "small")
    overlapping = sum(any(shared(*pair) > 0 for pair in combinations(t, 2)) for t in many)
    assert 0.3 * len(many) < overlapping < 0.8 * len(many)


@pytest.mark.parametrize("side", [96, 224])
def test_at_least_three_fifths_of_each_silhouette_are_visible(many, side):
    for things in (things for things in many[:150] if len(things) > 1):
        masks = [silhouette_mask(thing.scaled(side), side=side) for thing in things]
        for place, mask in enumerate(masks):
            seen = mask * np.prod([1 - front for front in masks[place + 1 :]], axis=0)
            assert seen.sum() >= 0.6 * mask.sum()


def test_something_lies_inside_a_ring_or_a_box_now_and_then(many):
    found = Counter(
        back.kind
        for things in many
        for back, front in combinations(things, 2)
        if shared(back, front) > 0.999
    )
    assert set(found) == set(CONTAINERS) == {"ring", "box"}
    assert 0.05 * len(many) < found.total() < 0.25 * len(many)


def test_a_thing_before_another_leaves_enough_of_it():
    layout = Layout()
    layout.add(Thing("box", "red", "large", "plain", (0.1, 0.1, 0.4, 0.4)))
    corner = Thing("box", "blue", "large", "plain", (0.25, 0.25, 0.55, 0.55))
    middle = Thing("box", "blue", "large", "plain", (0.15, 0.15, 0.45, 0.45))
    assert layout.leaves_seen(corner) and not layout.is_apart(corner)
    assert not layout.leaves_seen(middle)
    assert layout.is_apart(Thing("box", "blue", "small", "plain", (0.6, 0.6, 0.8, 0.8)))


def test_the_longer_side_of_a_thing_is_within_the_bounds_of_its_size_word(many):
    for thing in (thing for things in many for thing in things):
        x1, y1, x2, y2 = thing.box
        least, most = SIZES[thing.size]
        assert least - 1e-4 <= max(x2 - x1, y2 - y1) <= most + 1e-4
    assert SIZES["small"][1] * 1.25 < SIZES["medium"][0]
    assert SIZES["medium"][1] * 1.25 < SIZES["large"][0]


def test_all_kinds_colours_sizes_and_textures_occur(many):
    things = [thing for things in many for thing in things]
    assert {thing.kind for thing in things} == set(KINDS) and len(KINDS) == 12
    assert {thing.colour for thing in things} == set(COLOURS) and len(COLOURS) == 8
    assert {thing.size for thing in things} == set(SIZES)
    assert {thing.texture for thing in things} == set(TEXTURES)


def test_most_scenes_repeat_a_kind_and_colour(many):
    looks = [Counter((thing.kind, thing.colour) for thing in things) for things in many]
    assert sum(max(count.values()) > 1 for count in looks) > len(many) / 2
