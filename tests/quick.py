"""Parameters of which some run with `make check` and all with `make test`."""

import pytest


def some_quick(values, *quick):
    """Return the values as parameters of which all but the quick ones are slow."""
    return [v if v in quick else pytest.param(v, marks=pytest.mark.slow) for v in values]


def crossed(first, second):
    """Return all pairs as parameters; quick are those with the last value of either."""
    first, second = list(first), list(second)
    return [
        pytest.param(
            row, column, marks=[pytest.mark.slow] * (row != first[-1] and column != second[-1])
        )
        for row in first
        for column in second
    ]
