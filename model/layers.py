"""Layers that captioners share (Vaswani et al. 2017, arXiv:1706.03762).

Residual connections have the layer norm after the sum, or before the block: `pre` is True for the
latter, as in the Transformer of ImageCaptioning.pytorch.
"""

import torch
from torch import Tensor, nn

from a2cap.model.errors import ModelError

MAX_POSITIONS = 512


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


class FeedForward(nn.Module):
    """Position-wise block: two linear layers with a ReLU and dropout between them (section 3.3).

    The layer around it has a dropout of its own.
    """

    def __init__(self, width: int, inner_width: int, *, dropout: float = 0.0):
        super().__init__()
        self.inner = xavier_linear(width, inner_width)
        self.outer = xavier_linear(inner_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Transform each state; (..., D) -> (..., D)."""
        # in place: the gradient of ReLU needs its output alone
        transformed: Tensor = self.outer(self.dropout(self.inner(states).relu_()))
        return transformed


def split_heads(states: Tensor, heads: int) -> Tensor:
    """Split the last axis into heads; (B, Q, H * d) -> (B, H, Q, d)."""
    batch, length, _ = states.shape
    return states.reshape(batch, length, heads, -1).transpose(1, 2)


def merge_heads(states: Tensor) -> Tensor:
    """Join the heads; (B, H, Q, d) -> (B, Q, H * d)."""
    return states.transpose(1, 2).flatten(2)


def add_block(states: Tensor, added: Tensor, norm: nn.Module, *, pre: bool) -> Tensor:
    """Add the output of a block to its input."""
    summed = states + added
    return summed if pre else norm(summed)


def layer_norm(width: int, *, pre: bool) -> nn.LayerNorm:
    """Create a layer norm; before a block its epsilon is as small as theirs."""
    return nn.LayerNorm(width, eps=1e-6 if pre else 1e-5)


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Return positions (section 3.5), (length, width) float32: sine in even columns, cosine in odd.

    width: even.
    """
    rate = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    # float64 until the end: late positions have large angles
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).float()


def require_positions(tokens: int) -> None:
    """Raise ModelError if a caption has more tokens than positions."""
    if tokens > MAX_POSITIONS:
        raise ModelError(
            f"a caption has {tokens} tokens, the decoder has {MAX_POSITIONS} positions; "
            "shorten the captions"
        )
