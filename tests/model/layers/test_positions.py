import math

import pytest

from a2cap.model.layers.positions import sinusoidal_positions


def test_positions_equal_the_formula_of_vaswani_et_al():
    table = sinusoidal_positions(7, 8)
    assert table.shape == (7, 8)
    for position in range(7):
        for pair in range(4):
            angle = position / 10_000 ** (2 * pair / 8)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
