"""Sums of gradients over the ranks, which begin while the backward pass still runs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from a2cap.pipeline.runtime.distributed import Ranks

_BUCKET = 8 * 2**20
"""Most numbers in one message, unless a single parameter has more."""

Bucket = list[nn.Parameter]
Part = TypeVar("Part")


class GradientSum:
    """The sums of gradients over all ranks, sent in buckets of parameters.

    sides: sets of parameters that share no bucket.
    """

    # Not DistributedDataParallel: it reorders its buckets after the first update, and a sum over
    # three or more ranks depends on a number's position in its bucket, so that a resumed training
    # would differ from an uninterrupted one. These buckets never change, and all ranks send them in
    # one order. The backward pass ends with the parameters that the forward pass began with.

    def __init__(self, sides: Iterable[Sequence[nn.Parameter]], ranks: Ranks) -> None:
        # a single rank sends nothing
        sent = sides if ranks.count > 1 else ()
        self._ranks = ranks
        self._buckets = [bucket for side in sent for bucket in _buckets(side)][::-1]
        self._bucket_of: dict[Tensor, int] = {
            p: number for number, bucket in enumerate(self._buckets) for p in bucket
        }
        self._missing: list[int] = []  # gradients that each bucket waits for
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def overlapped(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts of an update; send each bucket once the last one's backward pass has it.

        What is left is sent after the last part.
        """
        # Gradients add up over the parts and are final in the last one's backward pass, which the
        # caller runs while this generator waits at its second `yield`. Hooks send a bucket as soon
        # as its last gradient is there, so that sending and the rest of the pass overlap.
        yield from parts[:-1]
        self._missing, self._sent = [len(bucket) for bucket in self._buckets], []
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for parameter in self._bucket_of
        ]
        try:
            yield from parts[-1:]
        finally:
            for hook in hooks:
                hook.remove()
        while len(self._sent) < len(self._buckets):
            self._send_next()

    def wait(self) -> None:
        """Replace each gradient by its sum over all ranks; a missing gradient counts as 0."""
        for bucket, (work, numbers) in zip(self._buckets, self._sent, strict=True):
            with self._ranks.reporting_lost_ranks():
                work.wait()
            parts = torch.split(numbers, [parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter)
        self._sent = []

    def _note(self, parameter: Tensor) -> None:
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            self._send_next()

    @torch.no_grad()
    def _send_next(self) -> None:
        bucket = self._buckets[len(self._sent)]
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in bucket)
        numbers = torch.cat([gradient.flatten() for gradient in gradients])
        with self._ranks.reporting_lost_ranks():
            self._sent.append((dist.all_reduce(numbers, async_op=True), numbers))


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[Bucket]:
    """Group parameters in their order, by message size and type."""
    bucket: Bucket = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.numel() > _BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket
