from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from a2.data.scene_arrangement import MOST_THINGS, arranged
from a2.data.scene_things import COLOURS, KINDS, SIZES, TEXTURES, Thing

SIDE = 160


@pytest.fixture(scope="module")
def many() -> list[tuple[Thing, ...]]:
    return [arranged(np.random.default_rng(seed), side=SIDE) for seed in range(500)]


def test_there_are_one_to_five_things_inside_the_picture_whose_boxes_do_not_meet(many):
    assert {len(things) for things in many} == set(range(1, MOST_THINGS + 1))
    for things in many:
        for thing in things:
            x1, y1, x2, y2 = thing.box
            assert 0 < x1 < x2 < SIDE and 0 < y1 < y2 < SIDE
        for a, b in combinations([thing.box for thing in things], 2):
            assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]


def test_the_longer_side_of_a_thing_is_within_the_bounds_of_its_size_word(many):
    for thing in (thing for things in many for thing in things):
        x1, y1, x2, y2 = thing.box
        least, most = SIZES[thing.size]
        assert least * SIDE - 0.02 <= max(x2 - x1, y2 - y1) <= most * SIDE + 0.02
    assert SIZES["small"][1] * 1.25 < SIZES["medium"][0]
    assert SIZES["medium"][1] * 1.25 < SIZES["large"][0]


def test_all_kinds_colours_sizes_and_textures_occur(many):
    things = [thing for things in many for thing in things]
    assert {thing.kind for thing in things} == set(KINDS) and len(KINDS) >= 8
    assert {thing.colour for thing in things} == set(COLOURS) and len(COLOURS) == 8
    assert {thing.size for thing in things} == set(SIZES)
    assert {thing.texture for thing in things} == set(TEXTURES)


def test_most_scenes_repeat_a_kind_and_colour(many):
    looks = [Counter((thing.kind, thing.colour) for thing in things) for things in many]
    assert sum(max(count.values()) > 1 for count in looks) > len(many) / 2
