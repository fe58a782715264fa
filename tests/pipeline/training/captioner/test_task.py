"""Tests of the warnings of a captioner's validation."""

import math

import pytest

from a2cap.pipeline.training.captioner.task import CaptionValidation


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (
            0.99,
            "mean mask is 0.9900: masks above 0.98 hardly change attention; "
            "lower model.alignment.penalty_weight",
        ),
        (
            0.4,
            "mean mask is 0.4000: masks below 0.5 hide most of every image; "
            "raise model.alignment.penalty_weight",
        ),
        (0.7, None),
        (math.nan, None),
    ],
)
def test_idle_masks_log_a_warning(caplog, mean, words):
    CaptionValidation.warn(None, {"mean_mask": mean})
    assert caplog.messages == ([] if words is None else [words])
