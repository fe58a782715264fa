"""Bootstrap intervals of means and of metrics from sums."""

import numpy as np
import pytest

from a2cap.pipeline.metrics.bleu import bleu_values
from a2cap.pipeline.metrics.bootstrap import RESAMPLES, interval, resample

GENERATOR = np.random.default_rng(7)


def test_the_interval_of_a_mean_matches_its_standard_error():
    values = GENERATOR.normal(0.5, 0.2, (2000, 1))
    drawn = resample({"CIDEr": values})["CIDEr"]
    assert drawn.shape == (RESAMPLES,)
    error = values.std() / np.sqrt(len(values))
    assert drawn.std() == pytest.approx(error, rel=0.1)
    assert interval(drawn) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.3 * error
    )


def test_bleu_is_resampled_by_its_sums_and_not_as_a_mean():
    rows = GENERATOR.integers(1, 12, (300, 10)).astype(float)
    drawn = resample({"BLEU": rows})
    assert list(drawn) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"]
    low, high = interval(drawn["Bleu_4"])
    assert low < bleu_values(rows.sum(axis=0))[3] < high
    assert not low < bleu_values(rows)[:, 3].mean() < high


def test_resamples_are_equal_for_all_metrics_and_runs_with_as_many_images():
    values = GENERATOR.random((50, 1))
    drawn = resample({"CIDEr": values, "ROUGE_L": values + 1})
    assert drawn["ROUGE_L"] == pytest.approx(drawn["CIDEr"] + 1)
    assert np.array_equal(resample({"CIDEr": values})["CIDEr"], drawn["CIDEr"])


def test_the_interval_ends_at_the_percentiles_2_5_and_97_5():
    assert interval(np.arange(1001.0)) == (25, 975)


def test_the_interval_of_one_image_has_no_width():
    assert interval(resample({"CIDEr": np.array([[0.25]])})["CIDEr"]) == (0.25, 0.25)
