"""Gradients against central differences, and of the two sides of a captioner."""

import pytest
import torch

from a2cap.model.alignment import caption_parameters, mask_parameters


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


def assert_each_side_learns(model, losses):
    """Check that the caption loss trains the captioner alone, the mask loss every mask network."""
    for side, parameters_of in (("caption", caption_parameters), ("mask", mask_parameters)):
        model.zero_grad()
        getattr(losses, side).backward(retain_graph=True)
        own = {id(parameter) for parameter in parameters_of(model)}
        trained = [w for w in model.parameters() if w.grad is not None and w.grad.any()]
        assert trained and own.issuperset(map(id, trained))
        assert all(torch.isfinite(parameter.grad).all() for parameter in trained)
    assert len(trained) == len(own)
