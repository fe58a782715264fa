"""Linear layers as attention and feed-forward blocks initialise them."""

from torch import nn


def xavier_linear(in_width: int, out_width: int, *, parts: int = 1, bias: bool = True) -> nn.Linear:
    """Create a linear layer with Xavier-uniform weights and bias 0, or without a bias.

    Each of `parts` stacked projections gets the range of a single one.
    """
    linear = nn.Linear(in_width, out_width * parts, bias=bias)
    for weight in linear.weight.detach().chunk(parts):
        nn.init.xavier_uniform_(weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
