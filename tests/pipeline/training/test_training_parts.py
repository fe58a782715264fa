"""RMSProp of Graves against its equations, step by step in numpy."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from a2cap.pipeline.training.training_parts import GravesRmsprop


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_the_authors_code(weight_decay):
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimiser = GravesRmsprop([parameter], lr=1e-4, weight_decay=weight_decay)
    expected = parameter.detach().numpy().copy()
    mean = square = move = np.zeros(5)
    for scale in (1e-3, 1e-2, 1e-1, 1.0):
        gradient = torch.randn(5, dtype=torch.float64) * scale
        parameter.grad = gradient.clone()
        optimiser.step()
        g = gradient.numpy() + weight_decay * expected
        mean, square = 0.95 * mean + 0.05 * g, 0.95 * square + 0.05 * g**2
        move = 0.9 * move - 1e-4 * g / np.sqrt(square - mean**2 + 1e-4)
        expected = expected + move
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)


def test_a_parameter_without_a_gradient_stays_and_the_state_is_restored():
    torch.manual_seed(0)
    frozen, moved = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimiser = GravesRmsprop([frozen, moved], lr=0.1)
    for number in (1, 2):
        moved.grad = torch.full((2,), float(number))
        optimiser.step()
    assert frozen.equal(torch.ones(2))
    again = torch.nn.Parameter(moved.detach().clone())
    other = GravesRmsprop([torch.nn.Parameter(torch.ones(2)), again], lr=0.1)
    other.load_state_dict(deepcopy(optimiser.state_dict()))  # else they share tensors
    for updated, parameter in ((optimiser, moved), (other, again)):
        parameter.grad = torch.full((2,), 0.5)
        updated.step()
    assert torch.equal(moved, again)
