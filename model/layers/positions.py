"""Sinusoidal positions (Vaswani et al. 2017, section 3.5, arXiv:1706.03762)."""

import torch
from torch import Tensor

from a2cap.model.errors import ModelError

MAX_POSITIONS = 512


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Return (length, width) float32: sine in even columns, cosine in odd ones; width is even."""
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
