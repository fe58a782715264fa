"""Linear layers as attention and feed-forward blocks initialise them."""

from torch import nn


def xavier_linear(in_width: int, out_width: int, *, parts: int = 1) -> nn.Linear:
    """Create a linear layer with Xavier-uniform weights and bias 0.

    Each of `parts` stacked projections gets the range of a single one.
    """
    linear = nn.Linear(in_width, out_width * parts)
    for weight in linear.weight.detach().chunk(parts):
        nn.init.xavier_uniform_(weight)
    nn.init.zeros_(linear.bias)
    return linear
