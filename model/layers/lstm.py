"""Long short-term memory without peepholes (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""

from torch import Tensor


def lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next state and cell, (N, D) each, from gates (N, 4 D) before their activation.

    The gates are input, forget, output and candidate, a sum of linear layers of the inputs.
    """
    enter, forget, leave, candidate = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell
