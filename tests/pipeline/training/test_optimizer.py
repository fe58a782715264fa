"""Tests of updates and of the optimizers of several sides."""

import math

import pytest
import torch
from torch import nn

from a2cap.pipeline.runtime.distributed import SINGLE
from a2cap.pipeline.training.optimizer import SidedOptimizer, Update


@pytest.mark.parametrize(
    ("loss", "norm", "finite"),
    [(1.5, 2.0, True), (math.nan, 2.0, False), (1.5, math.inf, False)],
)
def test_an_update_is_finite_if_its_losses_and_its_gradient_are(loss, norm, finite):
    update = Update(3, ("7",), 1, {"loss": loss, "classes": 1.5}, {}, norm)
    assert update.finite == finite
    assert update.summary() == f"loss {loss}, classes 1.5, gradient norm {norm}"


def test_a_side_without_parameters_has_no_optimizer():
    side = [nn.Parameter(torch.ones(2))]
    optimizer = SidedOptimizer.adam((side, ()), betas=(0.9, 0.98), clip_norm=None, ranks=SINGLE)
    assert len(optimizer.sides) == len(optimizer.state_dict()["optimisers"]) == 1


def test_each_side_is_divided_and_clipped_by_itself():
    sides = [[nn.Parameter(torch.zeros(1))], [nn.Parameter(torch.zeros(1))]]
    optimizer = SidedOptimizer.adam(sides, betas=(0.9, 0.98), clip_norm=1.0, ranks=SINGLE)
    for [parameter], gradient in zip(sides, (6.0, 2.0), strict=True):
        parameter.grad = torch.tensor([gradient])
    norm = optimizer.reduce_gradients([torch.tensor(2.0), torch.tensor(4.0)])
    assert norm.item() == pytest.approx(math.hypot(3.0, 0.5))
    assert [side[0].grad.item() for side in sides] == pytest.approx([1.0, 0.5], rel=1e-5)
