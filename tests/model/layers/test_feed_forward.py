import torch

from a2cap.model.layers.feed_forward import FeedForward


def test_block_is_two_linear_layers_around_a_relu():
    block = FeedForward(4, 12)
    states = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    inner = (states @ block.inner.weight.T + block.inner.bias).clamp(min=0)
    expected = inner @ block.outer.weight.T + block.outer.bias
    assert block(states).shape == (2, 3, 4)
    torch.testing.assert_close(block(states), expected)
