"""Tests of updates, and of optimizers with several sides."""

import math

import pytest
import torch
from torch import nn

from a2cap.pipeline.runtime.distributed import SINGLE
from a2cap.pipeline.training.captioner.config import TrainConfig
from a2cap.pipeline.training.optimizer import Optimizer, Update, adam_sides


@pytest.mark.parametrize(
    ("loss", "norm", "finite"),
    [(1.5, 2.0, True), (math.nan, 2.0, False), (1.5, math.inf, False)],
)
def test_an_update_is_finite_if_its_losses_and_its_gradient_are(loss, norm, finite):
    update = Update(3, ("7",), 1, {"loss": loss, "classes": 1.5}, {}, norm)
    assert update.finite == finite
    assert update.summary() == f"loss {loss}, classes 1.5, gradient norm {norm}"


class Divided(Optimizer[int]):
    """Divides the gradients of two sides by 2 and 4."""

    def step(self, parts, number):
        return self._reduce_gradients([torch.tensor(2.0), torch.tensor(4.0)])


def test_a_side_without_parameters_has_no_optimizer():
    side = [nn.Parameter(torch.ones(2))]
    optimizer = Divided(adam_sides((side, ()), betas=(0.9, 0.98)), TrainConfig(), SINGLE)
    assert len(optimizer.sides) == len(optimizer.state_dict()["optimisers"]) == 1


@pytest.mark.parametrize(
    ("clip_norm", "clipped"), [(1.0, [1.0, 0.5]), (None, [3.0, 0.5]), (1e6, [3.0, 0.5])]
)
def test_each_side_is_divided_and_clipped_by_itself(clip_norm, clipped):
    sides = [[nn.Parameter(torch.zeros(1))], [nn.Parameter(torch.zeros(1))]]
    config = TrainConfig(clip_norm=clip_norm)
    optimizer = Divided(adam_sides(sides, betas=(0.9, 0.98)), config, SINGLE)
    for [parameter], gradient in zip(sides, (6.0, 2.0), strict=True):
        parameter.grad = torch.tensor([gradient])
    assert optimizer.step([], 1).item() == pytest.approx(math.hypot(3.0, 0.5))
    assert [side[0].grad.item() for side in sides] == pytest.approx(clipped, rel=1e-5)
