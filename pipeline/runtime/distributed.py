"""Communication between the ranks of a training: sums, values and stop requests."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.interruption import StopRequest

Value = TypeVar("Value")


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
            with self.reporting_lost_ranks():
                dist.all_reduce(values)
        return values

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks by rank; also a barrier.

        value: plain types and tensors, as `weights_only` loading accepts them.
        """
        if self.count == 1:
            return [value]
        # saved by torch, because pickle fails with the states of its generators
        saved: list[bytes] = [b""] * self.count
        with self.reporting_lost_ranks():
            dist.all_gather_object(saved, _saved(value))
        return [torch.load(io.BytesIO(content), weights_only=True) for content in saved]

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the tensors of rank 0."""
        if self.count > 1:
            with self.reporting_lost_ranks(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def agree_to_stop(self, stop: StopRequest) -> bool:
        """Turn a signal to any rank into a stop of all; return True on all ranks if they stop."""
        if self.count == 1:
            return stop.pending
        # A signal that arrives during the exchange waits for the next call, even though `stop` is
        # already pending: a rank that stopped alone would wait for the others, and they for it.
        signal_number = torch.tensor(stop.signal_number or 0)
        with self.reporting_lost_ranks():
            dist.all_reduce(signal_number, dist.ReduceOp.MAX)
        if signal_number.item():
            stop.request(int(signal_number))
        return bool(signal_number.item())

    @contextmanager
    def reporting_lost_ranks(self) -> Iterator[None]:
        """Turn torch's errors of the block into RankError."""
        try:
            yield
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise RankError(
                f"rank {self.rank} of {self.count} lost the others ({reason}); "
                "read their error messages, then run the same command again"
            ) from error


SINGLE = Ranks()


def _saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
