"""Relations of objects: directions, between, inside, larger."""

import pytest

from a2cap.data.scenes.objects import SceneObject
from a2cap.data.scenes.relations import extremes, is_between, is_inside, is_larger, relation


def square(x: float, y: float, *, category: str = "box", half: float = 12) -> SceneObject:
    return SceneObject(category, "red", "small", "plain", (x - half, y - half, x + half, y + half))


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (20, 80, "left"),
        (140, 80, "right"),
        (80, 20, "above"),
        (80, 140, "below"),
        (20, 20, None),
        (90, 85, None),
    ],
)
def test_diagonal_and_overlapping_boxes_have_no_relation(x, y, expected):
    assert relation([square(x, y)], [square(80, 80)]) == expected


def test_a_relation_of_groups_holds_for_all_pairs():
    around = [square(20, 80), square(140, 80)]
    assert relation(around, [square(80, 80)]) is None
    assert relation([square(20, 60), square(20, 100)], [square(130, 80)]) == "left"


def test_between_needs_opposite_sides():
    middle, left, right, above = square(80, 80), square(20, 80), square(140, 80), square(80, 20)
    assert is_between([middle], [left], [right]) and is_between([middle], [right], [left])
    assert not is_between([middle], [left], [above])
    assert not is_between([middle], [left], [left])
    assert not is_between([left], [middle], [right])


def test_inside_needs_one_ring_or_box_around_all():
    small = square(80, 80, category="star")
    assert is_inside([small], [square(82, 80, category="ring", half=30)])
    assert is_inside([small], [square(82, 80, half=30)])
    assert not is_inside([small], [square(82, 80, category="heart", half=30)])
    assert not is_inside([small], [square(100, 80, half=30)])
    assert not is_inside([small, square(20, 80)], [square(82, 80, half=30)])
    assert not is_inside([small], [square(80, 80, half=30), square(20, 20)])


def test_comparisons_need_a_clear_difference():
    small, equal, large = square(0, 0), square(0, 0, half=12.5), square(0, 0, half=20)
    assert is_larger([large], [small, equal])
    assert not is_larger([equal], [small]) and not is_larger([large, small], [equal])
    assert extremes([small, large, equal]) == (1, None)
    assert extremes([large, small, large]) == (None, 1)
    assert extremes([small]) == (None, None)
