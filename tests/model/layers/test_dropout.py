import pytest
import torch

from a2cap.model.layers.dropout import Dropout


def _dropped(p, *, count=200_001, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return Dropout(p).train()(torch.ones(count, dtype=dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_drop_rate_is_met_and_the_mean_is_preserved(p):
    found = _dropped(p)
    assert (found == 0).float().mean().item() == pytest.approx(p, abs=0.005)
    assert found.max().item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert len(found.unique()) == 2
    assert found.mean().item() == pytest.approx(1, abs=0.02)


def test_units_are_dropped_independently():
    """Check neighbours, four of which share one random number."""
    kept = (_dropped(0.5, count=400_000) > 0).double().reshape(-1, 8)
    correlation = torch.corrcoef(kept.T) - torch.eye(8, dtype=torch.float64)
    assert correlation.abs().max() < 0.02


def test_gradients_pass_through_kept_units():
    states = torch.ones(5, 7, requires_grad=True)
    found = Dropout(0.5).train()(states)
    found.sum().backward()
    assert torch.equal(states.grad, found.detach())


def test_equal_seeds_drop_equal_units_and_others_do_not():
    assert torch.equal(_dropped(0.3), _dropped(0.3))
    assert not torch.equal(_dropped(0.3), _dropped(0.3, seed=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_is_preserved(dtype):
    assert _dropped(0.5, count=9, dtype=dtype).dtype == dtype


def test_nothing_is_dropped_in_eval_mode_or_at_rate_zero():
    states = torch.ones(3)
    assert Dropout(0.5).eval()(states) is states
    assert Dropout(0.0).train()(states) is states
