"""Updates: their measurements, and the base of the optimizers that make them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.runtime.gradients import GradientSum
from a2cap.pipeline.training.average import WeightAverage
from a2cap.pipeline.training.config import TrainingConfig

Part = TypeVar("Part")
Side = tuple[Sequence[nn.Parameter], torch.optim.Optimizer]


@dataclass(frozen=True)
class Update:
    """Measurements of one update over the global batch: all its parts on all ranks."""

    number: int  # 1 is the first
    image_ids: tuple[str, ...]  # of this rank
    amount: int  # tokens or images learnt from
    means: dict[str, float]  # averaged over the epoch for metrics.jsonl, among them `loss`
    scalars: dict[str, float]  # for TensorBoard
    gradient_norm: float  # before clipping

    @property
    def finite(self) -> bool:
        """Return False if a loss or the gradient is NaN or infinite."""
        # a finite loss can have a gradient of NaN
        return all(map(math.isfinite, (*self.means.values(), self.gradient_norm)))

    def summary(self) -> str:
        """Format losses and gradient norm for an error message."""
        losses = ", ".join(f"{name} {value}" for name, value in self.means.items())
        return f"{losses}, gradient norm {self.gradient_norm}"


class Optimizer(ABC, Generic[Part]):
    """Updates of a network by batches: the gradient is that of the global batch."""

    def __init__(
        self, sides: Sequence[Side], config: TrainingConfig, ranks: Ranks, *, ema: float = 0.0
    ) -> None:
        self.sides = sides  # disjoint sets of parameters
        parameters = [parameter for side, _ in sides for parameter in side]
        self._average = WeightAverage(parameters, ema) if ema else None
        self._clip_norm = math.inf if config.clip_norm is None else config.clip_norm
        self._ranks = ranks
        self._gradients = GradientSum((side for side, _ in sides), ranks)
        self._device = sides[0][0][0].device

    @abstractmethod
    def step(self, parts: Sequence[Part], number: int) -> list[Update]:
        """Make update `number` (1 is the first) by this rank's parts of a batch.

        Returns the updates measured by now. An update with a loss or gradient that is not finite
        changes nothing.
        """

    def flush(self) -> list[Update]:
        """Return the updates that `step` has made but not returned."""
        return []

    def averaged(self) -> AbstractContextManager[None]:
        """Put the average of the weights into the network, to validate and to save it."""
        return nullcontext() if self._average is None else self._average.applied()

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update needs besides the averaged network and the RNG states."""
        average = {} if self._average is None else {"average": self._average.state_dict()}
        return {"optimisers": [optimizer.state_dict() for _, optimizer in self.sides], **average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore such a state, once the network is loaded."""
        for (_, optimizer), saved in zip(self.sides, state["optimisers"], strict=True):
            optimizer.load_state_dict(saved)
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _zero_grad(self) -> None:
        for _, optimizer in self.sides:
            optimizer.zero_grad(set_to_none=True)

    def _overlapped(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts; gradients are summed over ranks during the backward pass of the last."""
        yield from parts[:-1]
        with self._gradients.overlapped():
            yield from parts[-1:]

    def _reduce_gradients(self, divisors: Sequence[Tensor] = ()) -> Tensor:
        """Wait for the sums of gradients and clip them; return the norm of all sides before that.

        divisors: a scalar per side that divides its sum; none divides nothing.
        """
        self._gradients.wait()
        norms: list[Tensor] = []
        for number, (parameters, _) in enumerate(self.sides):
            for parameter in parameters if divisors else ():
                if parameter.grad is not None:
                    parameter.grad /= divisors[number].to(parameter.grad.dtype)
            # each side by itself: a large mask gradient must not shrink the caption gradient
            norms.append(nn.utils.clip_grad_norm_(parameters, self._clip_norm))
        return torch.stack(norms).square().sum().sqrt()

    def _apply(self, lr: float) -> None:
        """Update the parameters of all sides."""
        for _, optimizer in self.sides:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        if self._average is not None:
            self._average.update()


def optimised_sides(
    sides: Iterable[Iterable[nn.Parameter]],
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> list[Side]:
    """Return an optimiser for every side that has parameters."""
    return [(side, make(side)) for side in map(list, sides) if side]


def adam_sides(
    sides: Iterable[Iterable[nn.Parameter]], *, betas: tuple[float, float]
) -> list[Side]:
    """Return an Adam for every side that has parameters."""
    # the rate is set before every step
    return optimised_sides(
        sides, lambda side: torch.optim.Adam(side, lr=0.0, betas=betas, fused=True)
    )


def derived_seed(seed: int, *key: int) -> int:
    """Return a 64-bit seed for one purpose of a training, such as one update of one rank."""
    # spawn keys keep purposes apart, which sums such as seed + step would not
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0])
