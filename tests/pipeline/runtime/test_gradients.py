"""Tests of the sums of gradients: equal on all ranks, and started during the backward pass."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from a2cap.pipeline.runtime import gradients
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.runtime.gradients import GradientSum
from tests.quick import some_quick

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def sum_present(sides, group):
    """Sum the gradients that the parameters have."""
    gradient_sum = GradientSum(sides, group)
    list(gradient_sum.overlapped([]))
    gradient_sum.wait()


def test_a_single_rank_keeps_its_gradients():
    parameter = nn.Parameter(torch.zeros(2, 3))
    sum_present([[parameter]], Ranks())
    assert parameter.grad is None


@pytest.mark.parametrize("bucket", some_quick((1, 7, 1000), 7))
def test_gradients_are_summed_for_any_message_size(together, monkeypatch, bucket):
    """The second parameter has no gradient on rank 1, the third on no rank; the last is float64."""
    monkeypatch.setattr(gradients, "_BUCKET", bucket)

    def add(group):
        parameters = [nn.Parameter(torch.zeros(size)) for size in ((2, 3), 4, (), 5)]
        parameters.append(nn.Parameter(torch.zeros(2, dtype=torch.float64)))
        for number, parameter in enumerate(parameters):
            if number != 2 and (group.rank, number) != (1, 1):
                parameter.grad = torch.full_like(parameter, 10.0**group.rank + number)
        sum_present([parameters[:2], parameters[2:]], group)
        return [(tuple(p.grad.shape), p.grad.unique().tolist(), p.grad.dtype) for p in parameters]

    shapes, values = [(2, 3), (4,), (), (5,), (2,)], [11.0, 2.0, 0.0, 17.0, 19.0]
    types = [torch.float32] * 4 + [torch.float64]
    expected = [(s, [v], t) for s, v, t in zip(shapes, values, types, strict=True)]
    assert together(2, add) == [expected, expected]


@pytest.mark.parametrize("bucket", some_quick((1, 60, 1000), 60))
def test_sums_during_the_backward_pass_equal_sums_after_it_bit_for_bit(
    together, monkeypatch, bucket
):
    """Of three ranks, whose sums depend on the messages; rank 2 has no part of the batch."""
    monkeypatch.setattr(gradients, "_BUCKET", bucket)
    send, sent_early = dist.all_reduce, []

    def send_and_note(*arguments, **options):
        sent_early.append(first.weight.grad is None)
        return send(*arguments, **options)

    torch.manual_seed(0)
    network = nn.Sequential(first := nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7))
    parameters = list(network.parameters())
    monkeypatch.setattr(dist, "all_reduce", send_and_note)

    def add(group):
        both = []
        for overlap in (False, True):
            torch.manual_seed(group.rank)
            network.zero_grad()
            loss = network(torch.randn(4, 7)).square().sum() if group.rank < 2 else torch.zeros(())
            if not overlap and group.rank < 2:
                loss.backward()
            sent_early.clear()
            gradient_sum = GradientSum([parameters], group)
            for _ in gradient_sum.overlapped(["the last part"]):
                if overlap and group.rank < 2:
                    loss.backward()
            gradient_sum.wait()
            both.append(torch.cat([p.grad.flatten() for p in parameters]).tolist())
        return both, sum(sent_early)

    (first_found, early), *others = together(3, add)
    assert all(sums == first_found for sums, _ in others)
    after, during = first_found
    assert during == after
    # all but the first layer's weight, in messages of their own; or the second layer in one
    assert early == {1: 3, 60: 1, 1000: 0}[bucket]
