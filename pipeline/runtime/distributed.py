"""The processes that train one captioner together, and what they tell each other.

Gradients are added up in buckets of our own and not by torch's DistributedDataParallel: that one
lays its buckets out anew after the first update, and a sum over three processes or more depends on
where in a bucket a number lies. A training that resumes would then differ from one left alone.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.interruption import StopRequest

Value = TypeVar("Value")

_BUCKET = 8 * 2**20
"""Numbers that are added up in one message, unless a single parameter has more."""


class LostProcesses(A2Error):
    """Another process of the training has ended or cannot be reached."""


@dataclass(frozen=True)
class Processes:
    """This process as number `rank` of `count` that train together; by default it trains alone.

    Every process calls the same methods in the same order; each raises LostProcesses where another
    one has gone.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def connected(cls) -> "Processes":
        """Those of torch's default group, or this one alone where there is none."""
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes; the tensor itself may be changed."""
        if self.count > 1:
            with self._within_reach():
                dist.all_reduce(values)
        return values

    def gathered(self, value: Value) -> list[Value]:
        """The value that each process has, by rank; no process goes on before all are here.

        Plain types and tensors, as `weights_only` loading accepts them.
        """
        if self.count == 1:
            return [value]
        mine = _packed(value)
        with self._within_reach():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(mine)]))
            longest = int(max(sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(mine)] = mine
            packed = [torch.empty_like(padded) for _ in range(self.count)]
            dist.all_gather(packed, padded)
        return [_unpacked(share[:size]) for share, size in zip(packed, sizes, strict=True)]

    def of_first(self, value: Value) -> Value:
        """The value that process 0 has."""
        return self.gathered(value)[0]

    def make_equal(self, tensors: Iterable[Tensor]) -> None:
        """Gives all processes the tensors of process 0."""
        if self.count > 1:
            with self._within_reach(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces each gradient by the sum over all processes; one that is missing counts as 0."""
        if self.count == 1:
            return
        with self._within_reach(), torch.no_grad():
            sums = []
            for bucket in _buckets(parameters):
                numbers = torch.cat([_gradient(parameter).flatten() for parameter in bucket])
                sums.append((dist.all_reduce(numbers, async_op=True), bucket, numbers))
            for work, bucket, numbers in sums:
                work.wait()
                _spread(bucket, numbers)

    def agree_to_stop(self, stop: StopRequest) -> bool:
        """Makes a signal to any process a stop of all of them; whether they stop, equal in all.

        A signal that comes meanwhile is for the next time, though `stop` says already that it is
        pending: a process that heeded it alone would wait for the others, and they for it.
        """
        if self.count == 1:
            return stop.pending
        asked = torch.tensor(stop.signal_number or 0)
        with self._within_reach():
            dist.all_reduce(asked, dist.ReduceOp.MAX)
        if asked.item():
            stop.request(int(asked))
        return bool(asked.item())

    @contextmanager
    def _within_reach(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise LostProcesses(
                f"process {self.rank} of {self.count} lost the others ({reason}); "
                "see what they say, then run the same command again"
            ) from error


ALONE = Processes()


def _packed(value: object) -> Tensor:
    """A value as (n,) uint8."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> Any:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in their order, together up to the size of a message, all of one type."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.numel() > _BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _spread(bucket: list[nn.Parameter], numbers: Tensor) -> None:
    """Makes the numbers of a bucket the gradients of its parameters."""
    sizes = [parameter.numel() for parameter in bucket]
    for parameter, part in zip(bucket, torch.split(numbers, sizes), strict=True):
        parameter.grad = part.view_as(parameter)
