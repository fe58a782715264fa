"""Gradients against central differences."""

import pytest
import torch


def assert_slope(function, parameters):
    """Compare the gradient along one random direction with a central difference."""
    torch.manual_seed(2)
    gradients = torch.autograd.grad(function(), parameters, allow_unused=True)
    # a detector of attributes may act on a loss that does not train it
    directions = [
        torch.zeros_like(p) if g is None else torch.randn_like(p)
        for p, g in zip(parameters, gradients, strict=True)
    ]
    along = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True) if g is not None)
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for p, direction in zip(parameters, directions, strict=True):
                p.add_(direction, alpha=step)
            values.append(function().item())
    assert along.abs() > 1e-4
    assert along.item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)
