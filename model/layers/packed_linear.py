"""Linear layers for decoding on a CPU: weights packed once for a known number of rows.

Each step of decoding multiplies all weights by few rows. Before a product is taken, the library
copies its operands into the order in which the processor reads them, which for 50 rows costs about
half as much as the product itself. Here that copy of the weights is made once per batch of captions
and serves all steps, or all batches where weights are known not to change (`UnchangedWeights`). MKL
does it, through the operators that torch's own compiler uses for it; where torch has no MKL, layers
stay as they are.
"""

import copy
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

FEWEST_ROWS = 8
"""With fewer rows reading the weights is what takes the time, and packing gains nothing."""

_OPERATORS = ("_mkl_reorder_linear_weight", "_mkl_linear")

_Module = TypeVar("_Module", bound=nn.Module)


class PackedLinear(nn.Module):
    """What `linear` gives, in float32 on a CPU, sooner for inputs of `rows` rows.

    The weight is packed when it is first used. It must not change after that; an input of other
    rows, in another precision or with gradients goes through `linear` itself.
    """

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.linear = linear
        self._rows = rows
        self._packed: Tensor | None = None

    @torch.no_grad()
    def _weight(self) -> Tensor:
        if self._packed is None:
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(self.linear.weight, self._rows)
        return self._packed

    def forward(self, states: Tensor) -> Tensor:
        """(..., in width) -> (..., out width)."""
        if not self._is_packed_for(states):
            return self.linear(states)  # type: ignore[no-any-return]
        weight, bias = self.linear.weight, self.linear.bias
        found: Tensor = torch.ops.mkl._mkl_linear(states, self._weight(), weight, bias, self._rows)
        return found

    def _is_packed_for(self, states: Tensor) -> bool:
        return (
            states.dtype == torch.float32
            and states.numel() == self._rows * states.shape[-1]
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
        )


def packed(module: _Module, rows: int) -> _Module:
    """The module with its linear layers packed for `rows` rows; it has the same parameters.

    The module itself where nothing would be gained: with gradients, for few rows, or where neither
    the device nor the precision is one that can be packed.
    """
    if rows < FEWEST_ROWS or torch.is_grad_enabled() or not _has_mkl():
        return module
    unchanged = _unchanged.get()
    return unchanged.packed(module, rows) if unchanged else _with_packed_layers(module, rows)


class UnchangedWeights:
    """What has been packed within `with`, for use in further such blocks.

    Nobody may change a weight between the first block and the last. Each module is kept as packed
    for one number of rows, the last that was asked for.
    """

    def __init__(self) -> None:
        self._found: dict[nn.Module, tuple[int, nn.Module]] = {}
        self._before: Token[UnchangedWeights | None] | None = None

    def __enter__(self) -> None:
        self._before = _unchanged.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            _unchanged.reset(self._before)

    def packed(self, module: _Module, rows: int) -> _Module:
        """As the function, from what was packed before where it is for so many rows."""
        if self._found.get(module, (0, module))[0] != rows:
            self._found[module] = rows, _with_packed_layers(module, rows)
        return cast(_Module, self._found[module][1])


_unchanged: ContextVar[UnchangedWeights | None] = ContextVar("unchanged weights", default=None)


def _has_mkl() -> bool:
    """Whether torch has MKL and still offers these operators, which it promises to nobody."""
    offers = all(hasattr(torch.ops.mkl, name) for name in _OPERATORS)
    return offers and bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


def _with_packed_layers(module: _Module, rows: int) -> _Module:
    """Copies of the modules around linear layers; all they hold, parameters too, is shared.

    A method that somebody has replaced on a module, as torch.compile does, stays that of the module
    itself: right, but not packed.
    """
    children = dict(module.named_children())
    replaced = {name: _replacement(child, rows) for name, child in children.items()}
    if all(replaced[name] is child for name, child in children.items()):
        return module
    twin = copy.copy(module)
    twin._modules = {**module._modules, **replaced}
    return twin


def _replacement(module: nn.Module, rows: int) -> nn.Module:
    if type(module) is nn.Linear:
        can_be_packed = module.weight.device.type == "cpu" and module.weight.dtype == torch.float32
        return PackedLinear(module, rows) if can_be_packed else module
    return _with_packed_layers(module, rows)
