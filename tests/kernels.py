"""Kernels and waits of a GPU, counted on fake CUDA tensors: no GPU is needed, nothing is computed.

Each operation that is not a view counts as one kernel; attention is one, as on a GPU. A program
waits where it reads a value from the GPU, copies from it, copies to it without `non_blocking`, or
needs a shape that depends on values. Values read are 0 and False, and a boolean index chooses
everything. A backward pass needs a GPU.
"""

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
_NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty"}


@dataclass
class Kernels:
    """Operations on the GPU by name; waits: the part of them that waits for it."""

    operations: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)

    @property
    def count(self):
        return self.operations.total()

    def add(self, name, *, waits=False):
        if name not in _NO_KERNEL:
            self.operations[name] += 1
        if waits:
            self.waits[name] += 1

    def take(self):
        """Return the kernels and waits since the last call."""
        totals = self.count, self.waits.total()
        self.operations.clear()
        self.waits.clear()
        return totals


@contextmanager
def fake_gpu():
    """Make the block's new tensors fake, and count what happens to those on "cuda"."""
    kernels = Kernels()

    def tolist(values):
        kernels.add("tolist", waits=values.is_cuda)
        return np.zeros(values.shape, str(values.dtype).removeprefix("torch.")).tolist()

    modes = (FakeTensorMode(), _Operations(kernels), _Attention(kernels))
    with patch.object(FakeTensor, "tolist", tolist), modes[0], modes[1], modes[2]:
        yield kernels


class _Attention(TorchFunctionMode):
    """Attention as one kernel: without a GPU, torch would compute it step by step."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def __torch_function__(self, function, types, arguments=(), named=None):
        is_attention = function is functional.scaled_dot_product_attention
        if not is_attention or not arguments[0].is_cuda:
            return function(*arguments, **(named or {}))
        self.kernels.add("attention")
        queries, _, values, *_ = arguments
        batch, heads, length, _ = queries.shape
        # in the memory order of flash attention
        return queries.new_empty(batch, length, heads, values.shape[-1]).transpose(1, 2)


class _Operations(TorchDispatchMode):
    """What reaches the device."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        named = named or {}
        name = operation._schema.name.removeprefix("aten::")
        given = _tensors((arguments, named))
        on_gpu = any(tensor.is_cuda for tensor in given)
        # in inference mode `to` arrives whole, and is called a view because it may change nothing
        if (operation.is_view and name != "to") or name.startswith("prim::"):
            return operation(*arguments, **named)
        if operation is aten._local_scalar_dense.default and on_gpu:
            self.kernels.add(name, waits=True)
            return False if given[0].dtype == torch.bool else 0
        is_index = operation in (aten.index.Tensor, aten.index_put_.default)
        masks = [value for value in given[1:] if is_index and value.dtype == torch.bool]
        if on_gpu and (masks or operation in (aten.nonzero.default, aten.masked_select.default)):
            self.kernels.add(name, waits=True)
            if operation is aten.nonzero.default:
                return given[0].new_zeros((given[0].numel(), given[0].ndim), dtype=torch.int64)
            if operation is not aten.index_put_.default:
                return given[0].flatten(0, masks[0].ndim - 1 if masks else -1).clone()
        result = operation(*arguments, **named)
        if name == "to" and (result.device, result.dtype) == (given[0].device, given[0].dtype):
            return result
        devices = {tensor.device.type for tensor in (*given, *_tensors(result))}
        if "cuda" in devices and not masks:
            copies = name in ("_to_copy", "copy_", "to") and len(devices) > 1
            is_ahead = named.get("non_blocking") or any(value is True for value in arguments[2:])
            self.kernels.add(name, waits=copies and not is_ahead)
        return result


def _tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class Casts(TorchDispatchMode):
    """Conversions to bfloat16 by the address of what is converted."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        result = operation(*arguments, **(named or {}))
        # in inference mode it is one operation, elsewhere the other
        if operation in (aten._to_copy.default, aten.to.dtype):
            is_cast = result.dtype == torch.bfloat16 != arguments[0].dtype
            self.counts[arguments[0].data_ptr()] += is_cast
        return result
