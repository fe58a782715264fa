"""Means over seeds and Student's t-intervals."""

import math

import pytest

from a2cap.pipeline.analysis.t_interval import t_interval, t_quantile


@pytest.mark.parametrize(  # published tables of Student's t, two-sided 95 %
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)]
)
def test_quantiles_equal_published_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=6e-4)


def test_the_interval_is_the_t_interval_of_the_mean():
    mean = t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean.mean == 3
    assert mean.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=1e-3)
    assert str(mean) == "3.000 ± 1.963"
    single = t_interval([0.25])  # has none
    assert (str(single), single.excludes_zero) == ("0.250", False)
