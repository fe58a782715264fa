"""Means over seeds with Student's t-intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its interval, NaN for a single value."""

    mean: float
    half_width: float

    @property
    def excludes_zero(self) -> bool:
        """True if the interval is on one side of 0."""
        return abs(self.mean) > self.half_width

    def __str__(self) -> str:
        if math.isnan(self.half_width):
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {self.half_width:.3f}"


def t_interval(values: Sequence[float]) -> Interval:
    """Return the mean of one or more independent values with its t-interval."""
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        return Interval(float(sample.mean()), math.nan)
    error = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return Interval(float(sample.mean()), t_quantile(len(sample) - 1) * error)


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t with `degrees` degrees of freedom.

    Computed by integration: with t = sqrt(n) tan(u) the density is that of cos(u)^(n - 1) on a half
    circle.
    """
    angles = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (degrees - 1)
    steps = (density[1:] + density[:-1]) / 2
    below = np.concatenate([[0.0], steps.cumsum()]) / steps.sum()
    return math.sqrt(degrees) * math.tan(float(np.interp(CONFIDENCE, below, angles)))
