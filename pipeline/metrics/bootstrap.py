"""How far a metric would move if other images had been drawn (Efron 1979; Koehn 2004).

Images are drawn anew, with replacement and as many as there are, RESAMPLES times, and the metric
is taken of each draw. BLEU and METEOR are no means over images: their counts are summed over the
draw first. The seed is fixed, and draws depend on the number of images alone, so that two runs
over the same images are compared on the same draws.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from a2cap.pipeline.metrics.bleu import bleu_values
from a2cap.pipeline.metrics.meteor import meteor_values
from a2cap.pipeline.metrics.ngrams import Floats

RESAMPLES = 1000
"""Draws: the ends of a 95 % interval then rest on 25 of them each."""

_SEED = 0
_TOGETHER = 100
"""Draws that are weighed at once; with 5,000 images they take 4 MB."""

Families = Mapping[str, tuple[tuple[str, ...], Callable[[Floats], Floats]]]
"""Family -> the names of its metrics, and their values (…, names) of sums over images."""

SUMMED: Families = {
    "BLEU": (("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"), bleu_values),
    "METEOR": (("METEOR",), lambda sums: meteor_values(sums)[..., None]),
}
"""Metrics whose value comes of sums over images."""


def resampled(statistics: Mapping[str, Floats], families: Families = SUMMED) -> dict[str, Floats]:
    """Metric -> (RESAMPLES,): its value in each draw.

    statistics: (N, k) numbers of N images for each of the families; for any other metric (N, 1),
    of which the mean is the value. All N must be equal, and 1 or more.
    """
    [images] = {len(numbers) for numbers in statistics.values()}
    found: dict[str, list[Floats]] = {}
    for weights in _draws(images):
        for family, numbers in statistics.items():
            sums = weights @ numbers
            if family not in families:
                found.setdefault(family, []).append(sums[:, 0] / images)
                continue
            names, values = families[family]
            for name, column in zip(names, values(sums).T, strict=True):
                found.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def interval(values: Floats) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _draws(images: int) -> Iterator[Floats]:
    """(_TOGETHER, N) each: how often each image is in a draw."""
    generator = np.random.default_rng(_SEED)
    rows = np.arange(_TOGETHER)[:, None] * images
    for _ in range(RESAMPLES // _TOGETHER):
        drawn = rows + generator.integers(0, images, (_TOGETHER, images))
        times = np.bincount(drawn.ravel(), minlength=_TOGETHER * images)
        yield times.reshape(_TOGETHER, images).astype(np.float64)
