"""Paired differences over seeds, with 95 % intervals of Student's t."""

from collections.abc import Mapping

from a2cap.pipeline.sweep import Interval as Interval  # noqa: PLC0414
from a2cap.pipeline.sweep import interval as interval  # noqa: PLC0414


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> Interval | None:
    """Return the mean difference from the baseline by seed; None without common seeds."""
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        return None
    return interval([values[seed] - baseline[seed] for seed in shared])
