"""Position-wise feed-forward block (Vaswani et al. 2017, section 3.3)."""

from torch import Tensor, nn

from a2cap.model.layers.linear import xavier_linear


class FeedForward(nn.Module):
    """Two linear layers with a ReLU and dropout between them; the layer around it has its own."""

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
