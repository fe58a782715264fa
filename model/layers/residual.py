"""Residual connections with the layer norm after the sum (Vaswani et al. 2017) or before the block.

pre: True for the norm before the block, as in the Transformer of ImageCaptioning.pytorch.
"""

from torch import Tensor, nn


def block_input(states: Tensor, norm: nn.Module, *, pre: bool) -> Tensor:
    """Return what a block reads."""
    return norm(states) if pre else states


def add_block(states: Tensor, added: Tensor, norm: nn.Module, *, pre: bool) -> Tensor:
    """Add the output of a block to its input."""
    summed = states + added
    return summed if pre else norm(summed)


def layer_norm(width: int, *, pre: bool) -> nn.LayerNorm:
    """Create a layer norm; before a block its epsilon is as small as theirs."""
    return nn.LayerNorm(width, eps=1e-6 if pre else 1e-5)
