import pytest
import torch

from a2cap.model.layers.dropout import Dropout


def _dropped(p, *, count=200_001, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return Dropout(p).train()(torch.ones(count, dtype=dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_is_dropped_and_the_rest_makes_up_for_it(p):
    found = _dropped(p)
    assert (found == 0).float().mean().item() == pytest.approx(p, abs=0.005)
    assert found.max().item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert len(found.unique()) == 2
    assert found.mean().item() == pytest.approx(1, abs=0.02)


def test_each_unit_is_drawn_by_itself():
    """Four neighbours come out of one random number."""
    kept = (_dropped(0.5, count=400_000) > 0).double().reshape(-1, 8)
    correlation = torch.corrcoef(kept.T) - torch.eye(8, dtype=torch.float64)
    assert correlation.abs().max() < 0.02


def test_gradients_pass_where_units_were_kept():
    states = torch.ones(5, 7, requires_grad=True)
    found = Dropout(0.5).train()(states)
    found.sum().backward()
    assert torch.equal(states.grad, found.detach())


def test_equal_seeds_drop_equal_units_and_draws_differ():
    assert torch.equal(_dropped(0.3), _dropped(0.3))
    assert not torch.equal(_dropped(0.3), _dropped(0.3, seed=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_stays(dtype):
    assert _dropped(0.5, count=9, dtype=dtype).dtype == dtype


def test_nothing_is_dropped_in_evaluation_or_without_a_share():
    states = torch.ones(3)
    assert Dropout(0.5).eval()(states) is states
    assert Dropout(0.0).train()(states) is states
