"""Means over seeds with 95 % intervals of Student's t."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its interval, NaN for a single value."""

    mean: float
    half_width: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """True if the interval is on one side of 0."""
        return abs(self.mean) > self.half_width

    def __str__(self) -> str:
        if math.isnan(self.half_width):
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {self.half_width:.3f}"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of one or more independent values with its t-interval."""
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return Interval(float(found.mean()), math.nan, len(found))
    error = float(found.std(ddof=1)) / math.sqrt(len(found))
    return Interval(float(found.mean()), t_quantile(len(found) - 1) * error, len(found))


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> Interval | None:
    """Return the mean difference from the baseline by seed; None without common seeds."""
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        return None
    return interval([values[seed] - baseline[seed] for seed in shared])


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
