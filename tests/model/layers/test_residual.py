import pytest

from a2cap.model.layers.residual import layer_norm


@pytest.mark.parametrize(("pre", "epsilon"), [(True, 1e-6), (False, 1e-5)])
def test_the_epsilon_of_a_norm_is_that_of_its_code(pre, epsilon):
    assert layer_norm(4, pre=pre).eps == epsilon
