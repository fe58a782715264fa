"""Bootstrap confidence intervals of metrics over images (Efron 1979; Koehn 2004).

The images are resampled with replacement RESAMPLES times, and the metric is computed on each
resample. BLEU and METEOR are not means over images: their counts are summed over the resample
first. The seed is fixed and resamples depend only on the number of images, so two runs over the
same images are compared on the same resamples.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from a2cap.pipeline.metrics.metric_table import TABLE
from a2cap.pipeline.metrics.ngrams import Floats

RESAMPLES = 1000
"""With 1,000, each end of a 95 % interval depends on 25 resamples."""

_SEED = 0
_CHUNK = 100
"""Resamples in memory at once: 4 MB for 5,000 images."""

Families = Mapping[str, tuple[tuple[str, ...], Callable[[Floats], Floats]]]
"""Family -> the names of its metrics, and the function from sums over images to their values."""

SUMMED: Families = {f.name: (f.names, f.values_of) for f in TABLE if f.values}
"""Metrics that are computed from sums over images."""


def resample(statistics: Mapping[str, Floats], families: Families = SUMMED) -> dict[str, Floats]:
    """Return metric -> (RESAMPLES,), its value on each resample.

    statistics: (N, k) of N images for each of the families; (N, 1) for any other metric, whose
    value is the mean. N is the same for all, and at least 1.
    """
    [images] = {len(rows) for rows in statistics.values()}
    resampled: dict[str, list[Floats]] = {}
    for weights in _weights(images):
        for family, rows in statistics.items():
            # Weighted sums of all resamples in one product, instead of gathering rows.
            sums = weights @ rows
            if family not in families:
                resampled.setdefault(family, []).append(sums[:, 0] / images)
                continue
            names, values = families[family]
            for name, column in zip(names, values(sums).T, strict=True):
                resampled.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in resampled.items()}


def interval(values: Floats) -> tuple[float, float]:
    """Return the ends of the 95 % interval of resampled values; values of 0 / 0 do not count."""
    low, high = np.percentile(values[np.isfinite(values)], [2.5, 97.5])
    return float(low), float(high)


def _weights(images: int) -> Iterator[Floats]:
    """Yield (_CHUNK, N) arrays: the number of times that each image is in a resample."""
    generator = np.random.default_rng(_SEED)
    rows = np.arange(_CHUNK)[:, None] * images
    for _ in range(RESAMPLES // _CHUNK):
        drawn = rows + generator.integers(0, images, (_CHUNK, images))
        times = np.bincount(drawn.ravel(), minlength=_CHUNK * images)
        yield times.reshape(_CHUNK, images).astype(np.float64)
