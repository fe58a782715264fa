"""Parameters of which some run with `make check` and all with `make test`."""

import pytest


def some_quick(values, *quick):
    """Return the values as parameters of which all but the quick ones are slow."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in values]


def crossed(first, second):
    """Return all pairs as parameters; quick are those with the last value of either."""
    first, second = list(first), list(second)
    return [
        pytest.param(
            one, other, marks=[pytest.mark.slow] * (one != first[-1] and other != second[-1])
        )
        for one in first
        for other in second
    ]
