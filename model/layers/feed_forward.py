"""Position-wise feed-forward block (Vaswani et al. 2017, section 3.3)."""

from torch import Tensor, nn

from a2cap.model.attention.multi_head import projection


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them; dropout is left to the layer around it."""

    def __init__(self, width: int, inner_width: int):
        super().__init__()
        self.inner = projection(width, inner_width)
        self.outer = projection(inner_width, width)

    def forward(self, states: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        transformed: Tensor = self.outer(self.inner(states).relu_())
        return transformed
