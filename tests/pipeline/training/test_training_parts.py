"""Measurements of updates."""

import math

import pytest

from a2cap.pipeline.training.training_parts import Update


@pytest.mark.parametrize(
    ("loss", "norm", "finite"), [(1.5, 2.0, True), (math.nan, 2.0, False), (1.5, math.inf, False)]
)
def test_an_update_is_finite_if_its_losses_and_its_gradient_are(loss, norm, finite):
    update = Update(3, ("7",), 1, {"loss": loss, "classes": 1.5}, {}, norm)
    assert update.finite == finite
    assert update.summary() == f"loss {loss}, classes 1.5, gradient norm {norm}"
