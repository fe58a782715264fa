import math

import torch

from a2cap.model.layers.linear import xavier_linear


def test_stacked_projections_keep_the_xavier_range_of_one():
    torch.manual_seed(0)
    linear = xavier_linear(64, 64, parts=3)
    assert linear.weight.shape == (192, 64)
    bound = math.sqrt(6 / 128)
    assert 0.98 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()
