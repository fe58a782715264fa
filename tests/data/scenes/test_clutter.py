"""Clutter: independent of the objects by default, correlated with them if planted."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from a2cap.data.scenes.clutter import CLUTTER_PROBABILITY, COMPANIONS, place_clutter
from a2cap.data.scenes.drawing import silhouette_mask
from a2cap.data.scenes.layout import arrange
from a2cap.data.scenes.objects import CLUTTER, MUTED, OBJECT_CATEGORIES, SceneObject

COUNT, SIDE = 600, 128

Placed = list[tuple[set[str], set[str]]]
"""Categories of the objects and of the clutter, per scene."""


@pytest.fixture(scope="module")
def objects() -> list[tuple[SceneObject, ...]]:
    return [arrange(np.random.default_rng(seed)) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def placed(objects: list[tuple[SceneObject, ...]]) -> Callable[[float], Placed]:
    @cache
    def at(planted: float) -> Placed:
        return [
            (
                {obj.category for obj in present},
                {
                    c.category
                    for c in place_clutter(present, np.random.default_rng(seed), planted=planted)
                },
            )
            for seed, present in enumerate(objects)
        ]

    return at


def is_clutter_probability(rate: float, count: int) -> bool:
    """Return True if a rate is within four standard errors of CLUTTER_PROBABILITY."""
    error = (CLUTTER_PROBABILITY * (1 - CLUTTER_PROBABILITY) / count) ** 0.5
    return bool(abs(rate - CLUTTER_PROBABILITY) < 4 * error)


def test_four_categories_have_different_companions():
    assert len(COMPANIONS) == len(set(COMPANIONS.values())) == 4
    assert set(COMPANIONS) <= set(OBJECT_CATEGORIES) and set(COMPANIONS.values()) < set(CLUTTER)


@pytest.mark.slow
def test_clutter_is_independent_of_its_object_by_default(placed):
    scenes = placed(0.0)
    assert {category for _, clutter in scenes for category in clutter} == set(CLUTTER)
    for category, companion in COMPANIONS.items():
        for shows in (True, False):
            chosen = [clutter for present, clutter in scenes if (category in present) == shows]
            rate = np.mean([companion in clutter for clutter in chosen])
            assert is_clutter_probability(rate, len(chosen))


@pytest.mark.slow
@pytest.mark.parametrize("planted", [0.5, 1.0])
def test_a_planted_companion_appears_only_with_its_object_and_other_clutter_as_before(
    placed, planted
):
    for category, companion in COMPANIONS.items():
        beside = [
            companion in clutter for present, clutter in placed(planted) if category in present
        ]
        assert np.mean(beside) == pytest.approx(planted, abs=0.02 + 0.4 * (1 - planted))
        assert not any(companion in c for present, c in placed(planted) if category not in present)
    for category in set(CLUTTER) - set(COMPANIONS.values()):
        rate = np.mean([category in clutter for _, clutter in placed(planted)])
        assert is_clutter_probability(rate, COUNT)


@pytest.mark.slow
def test_clutter_is_in_the_image_muted_and_mostly_visible(objects):
    for seed, present in enumerate(objects[:150]):
        clutter = place_clutter(present, np.random.default_rng(seed))
        everything = [*clutter, *present]
        masks = [silhouette_mask(item.scaled(SIDE), side=SIDE) for item in everything]
        for position, piece in enumerate(clutter):
            assert piece.is_clutter and piece.colour in MUTED and piece.texture == "plain"
            assert min(piece.box) > 0 and max(piece.box) < 1
            seen = masks[position] * np.prod([1 - mask for mask in masks[position + 1 :]], axis=0)
            assert seen.sum() >= 0.6 * masks[position].sum()
