from collections.abc import Callable

import numpy as np
import pytest

from a2cap.data.scenes.clutter import CHANCE, COMPANIONS, cluttered
from a2cap.data.scenes.drawing import silhouette_mask
from a2cap.data.scenes.layout import arranged
from a2cap.data.scenes.objects import CLUTTER, KINDS, MUTED, Thing

COUNT, SIDE = 600, 128

Placed = list[tuple[set[str], set[str]]]
"""Per scene the kinds of things and the kinds of clutter."""


@pytest.fixture(scope="module")
def things() -> list[tuple[Thing, ...]]:
    return [arranged(np.random.default_rng(seed)) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def placed(things: list[tuple[Thing, ...]]) -> Callable[[float], Placed]:
    def at(planted: float) -> Placed:
        return [
            (
                {thing.kind for thing in shown},
                {c.kind for c in cluttered(shown, np.random.default_rng(seed), planted=planted)},
            )
            for seed, shown in enumerate(things)
        ]

    return at


def test_there_are_four_companions_of_their_own_kinds():
    assert len(COMPANIONS) == len(set(COMPANIONS.values())) == 4
    assert set(COMPANIONS) <= set(KINDS) and set(COMPANIONS.values()) < set(CLUTTER)


def test_clutter_appears_as_often_beside_its_kind_as_without_it(placed):
    scenes = placed(0.0)
    assert {kind for _, clutter in scenes for kind in clutter} == set(CLUTTER)
    for kind, companion in COMPANIONS.items():
        for shows in (True, False):
            chosen = [clutter for shown, clutter in scenes if (kind in shown) == shows]
            rate = np.mean([companion in clutter for clutter in chosen])
            # four standard errors
            assert abs(rate - CHANCE) < 4 * (CHANCE * (1 - CHANCE) / len(chosen)) ** 0.5


@pytest.mark.parametrize("planted", [0.5, 1.0])
def test_a_planted_companion_stands_beside_its_kind_and_nowhere_else(placed, planted):
    for kind, companion in COMPANIONS.items():
        beside = [companion in clutter for shown, clutter in placed(planted) if kind in shown]
        assert np.mean(beside) == pytest.approx(planted, abs=0.02 + 0.4 * (1 - planted))
        assert not any(companion in c for shown, c in placed(planted) if kind not in shown)


def test_other_clutter_is_as_frequent_where_companions_are_planted(placed):
    for kind in set(CLUTTER) - set(COMPANIONS.values()):
        rate = np.mean([kind in clutter for _, clutter in placed(1.0)])
        assert abs(rate - CHANCE) < 4 * (CHANCE * (1 - CHANCE) / COUNT) ** 0.5


def test_clutter_lies_in_the_image_in_muted_colours_and_is_seen_for_the_most_part(things):
    for seed, shown in enumerate(things[:150]):
        clutter = cluttered(shown, np.random.default_rng(seed))
        everything = [*clutter, *shown]
        masks = [silhouette_mask(one.scaled(SIDE), side=SIDE) for one in everything]
        for place, piece in enumerate(clutter):
            assert piece.is_clutter and piece.colour in MUTED and piece.texture == "plain"
            assert min(piece.box) > 0 and max(piece.box) < 1
            seen = masks[place] * np.prod([1 - mask for mask in masks[place + 1 :]], axis=0)
            assert seen.sum() >= 0.6 * masks[place].sum()
