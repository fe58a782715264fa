import math

import pytest
import torch

from a2cap.model.attention.relational import RelationalAttention
from a2cap.model.attention.supervised_attention import ProphetAttention
from a2cap.model.layers import layer_norm, xavier_linear


def test_stacked_projections_keep_the_xavier_range_of_one():
    torch.manual_seed(0)
    linear = xavier_linear(64, 64, parts=3)
    assert linear.weight.shape == (192, 64)
    bound = math.sqrt(6 / 128)
    assert 0.98 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()


def test_other_weights_of_attention_keep_their_published_range():
    torch.manual_seed(0)
    values = RelationalAttention(64, heads=2).pair_value
    for head in values:
        bound = math.sqrt(6 / sum(head.shape))
        assert 0.98 * bound < head.abs().max() <= bound
    query = ProphetAttention(width=64, vocabulary_size=200, weight=1.0).query.weight
    assert query.std().item() == pytest.approx(64**-0.5, rel=0.05)


@pytest.mark.parametrize(("pre", "epsilon"), [(True, 1e-6), (False, 1e-5)])
def test_the_epsilon_of_a_norm_is_that_of_its_code(pre, epsilon):
    assert layer_norm(4, pre=pre).eps == epsilon
