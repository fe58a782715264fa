"""Communication between the ranks of a training: sums, values and stop requests."""

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
"""Most numbers in one message, unless a single parameter has more."""


class RankError(A2Error):
    """Another rank has ended or cannot be reached."""


@dataclass(frozen=True)
class Ranks:
    """This process as rank `rank` of `count`; by default the only one.

    All ranks call the same methods in the same order. Each method raises RankError if another
    rank has ended.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> "Ranks":
        """Return the ranks of torch's default process group, or a single rank without one."""
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_main(self) -> bool:
        """Return True on rank 0, the only one that writes files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks; the tensor itself may change."""
        if self.count > 1:
            with self._reporting_lost_ranks():
                dist.all_reduce(values)
        return values

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks by rank; also a barrier.

        value: plain types and tensors, as `weights_only` loading accepts them.
        """
        if self.count == 1:
            return [value]
        packed = _pack(value)
        with self._reporting_lost_ranks():
            # gathered tensors must have one shape, so values are padded to the longest
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(packed)]))
            padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
            padded[: len(packed)] = packed
            gathered = [torch.empty_like(padded) for _ in range(self.count)]
            dist.all_gather(gathered, padded)
        return [_unpack(share[:size]) for share, size in zip(gathered, sizes, strict=True)]

    def broadcast(self, value: Value) -> Value:
        """Return the value of rank 0."""
        return self.all_gather(value)[0]

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors by those of rank 0."""
        if self.count > 1:
            with self._reporting_lost_ranks(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over all ranks; a missing gradient counts as 0."""
        # Not by DistributedDataParallel: it reorders its buckets after the first update, and a sum
        # over three or more ranks depends on a number's position in its bucket, so that a resumed
        # training would differ from an uninterrupted one.
        if self.count == 1:
            return
        with self._reporting_lost_ranks(), torch.no_grad():
            sums = []
            for bucket in _buckets(parameters):
                found = (torch.zeros_like(p) if p.grad is None else p.grad for p in bucket)
                numbers = torch.cat([gradient.flatten() for gradient in found])
                sums.append((dist.all_reduce(numbers, async_op=True), bucket, numbers))
            for work, bucket, numbers in sums:
                work.wait()
                parts = torch.split(numbers, [parameter.numel() for parameter in bucket])
                for parameter, part in zip(bucket, parts, strict=True):
                    parameter.grad = part.view_as(parameter)

    def agree_to_stop(self, stop: StopRequest) -> bool:
        """Turn a signal to any rank into a stop of all; return True on all ranks if they stop."""
        if self.count == 1:
            return stop.pending
        # A signal that arrives during the exchange waits for the next call, even though `stop` is
        # already pending: a rank that stopped alone would wait for the others, and they for it.
        signal_number = torch.tensor(stop.signal_number or 0)
        with self._reporting_lost_ranks():
            dist.all_reduce(signal_number, dist.ReduceOp.MAX)
        if signal_number.item():
            stop.request(int(signal_number))
        return bool(signal_number.item())

    @contextmanager
    def _reporting_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise RankError(
                f"rank {self.rank} of {self.count} lost the others ({reason}); "
                "read their error messages, then run the same command again"
            ) from error


SINGLE = Ranks()


def _pack(value: object) -> Tensor:
    """Serialise a value as (n,) uint8."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpack(packed: Tensor) -> Any:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Group parameters in their order, by message size and type."""
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
