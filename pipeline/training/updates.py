"""Updates of a network by batches, of every training task.

An update of `Updater.step`, with the hooks that a training gives it marked by *:

    amount = sum of count(part)* on all ranks   # tokens or images
    begin(number)*                              # s of Eq. 8, or the seed of samples
    zero the gradients
    for part in this rank's parts of the batch:  # halves, if a GPU lacks the memory
        loss, measured = losses(part)*          # encode, decode, both losses
        backward(loss * count / amount)         # in the last part, ranks add gradients beside it
        values += measured * count / amount
    wait for the gradients of all ranks
    for parameters, optimiser in sides:         # captioner and mask networks, or one network
        gradients /= divisors(values)*          # where losses are sums
        clip the gradients of this side
    every `read_interval` updates:              # each on a CPU; seldom on a GPU, which must wait
        updates = report(values of all ranks)*
    if all losses and gradients are finite:
        for parameters, optimiser in sides:
            optimiser.step() at the rate lr(number)*
        end()*                                  # share statistics that have no gradient
        average the weights
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from a2cap.data.errors import A2Error
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.runtime.gradients import GradientSum
from a2cap.pipeline.training.compiled_pass import CompiledPass
from a2cap.pipeline.training.training_config import TrainingConfig
from a2cap.pipeline.training.training_parts import Part, Update, WeightAverage

logger = logging.getLogger(__name__)

_GPU_READ_INTERVAL = 20

Side = tuple[Sequence[nn.Parameter], torch.optim.Optimizer]


@dataclass(frozen=True)
class _Measured:
    """An update whose measurements have not been read yet."""

    number: int
    image_ids: tuple[str, ...]
    values: Tensor  # (M,), this rank's share
    amount: int
    lr: float
    gradient_norm: Tensor  # a scalar, of all ranks


class Updater(ABC, Generic[Part]):
    """Updates of a network by batches: the gradient is that of the global batch."""

    waits_seldom = False
    """Reads the measurements of several updates together on a GPU, which must finish for that."""
    smaller = "set accumulate to compute a batch in more parts"
    """What makes the parts of a batch smaller, for an error."""
    value_type = torch.float32
    names: tuple[str, ...]
    """Names of the measurements, equal on a rank without a part of the batch."""

    def __init__(
        self, sides: Sequence[Side], config: TrainingConfig, ranks: Ranks, *, ema: float = 0.0
    ) -> None:
        self.sides = sides  # disjoint sets of parameters
        parameters = [parameter for side, _ in sides for parameter in side]
        self._average = WeightAverage(parameters, ema) if ema else None
        self._clip_norm = math.inf if config.clip_norm is None else config.clip_norm
        self.ranks = ranks
        self._gradients = GradientSum((side for side, _ in sides), ranks)
        self._device = sides[0][0][0].device
        is_seldom = self.waits_seldom and self._device.type != "cpu"
        self.read_interval = _GPU_READ_INTERVAL if is_seldom else 1
        self._unread: list[_Measured] = []
        self.compiled: CompiledPass[Any, Any] | None = None  # of `losses`
        self._halvings = 0  # of every part, since the memory was too small

    def step(self, parts: Sequence[Part], number: int) -> list[Update]:
        """Make update `number` (1 is the first) by this rank's parts of a batch.

        Returns the updates measured by now. An update with a loss or gradient that is not finite
        changes nothing; with a `read_interval` it is found before the next checkpoint.
        """
        # counted before the parts are on a GPU, so that nothing waits for it
        amount = int(self.ranks.sum(torch.tensor(sum(self.count(part) for part in parts))))
        values = None
        while values is None:  # once more in smaller parts, or uncompiled
            values = self._backward(parts, number, amount)
        self._gradients.wait()  # for their sums over the ranks
        gradient_norm = self._clip(self.divisors(values))

        lr, image_ids = self.lr(number), tuple(name for part in parts for name in part.image_ids)
        self._unread.append(_Measured(number, image_ids, values, amount, lr, gradient_norm))
        updates = self.flush() if len(self._unread) >= self.read_interval else []
        if all(update.finite for update in updates):
            for _, optimizer in self.sides:
                for group in optimizer.param_groups:
                    group["lr"] = lr * group.get("rate", 1.0)
                optimizer.step()
            self.end()
            if self._average is not None:
                self._average.update()
        return updates

    def _backward(self, parts: Sequence[Part], number: int, amount: int) -> Tensor | None:
        """Add the gradients of the parts; return their measurements, None to begin again.

        Raises A2Error if smaller parts cannot be tried.
        """
        self.begin(number)
        for _ in range(self._halvings):
            parts = [half for part in parts for half in self.halves(part)]
        values = torch.zeros(len(self.names), device=self._device, dtype=self.value_type)
        for _, optimizer in self.sides:
            optimizer.zero_grad(set_to_none=True)
        is_backward = False
        try:
            for index, part in enumerate(self._gradients.overlapped(parts)):
                loss, measured = self.losses(part, number, index)
                # means count by their share of the tokens or images; sums count nothing
                weight = self.count(part) / amount if amount else 1.0
                is_backward = True
                torch.autograd.backward(loss * weight)
                is_backward = False
                values += measured * weight
        except torch.OutOfMemoryError as error:
            images = max(len(part.image_ids) for part in parts)
            # other ranks cannot begin the update again
            if self.ranks.count > 1 or all(len(self.halves(part)) == 1 for part in parts):
                raise A2Error(
                    f"out of memory with {images} images at once on {self._device}; "
                    f"{self.smaller}, or use a larger GPU"
                ) from error
            logger.warning(
                "out of memory with %d images at once; computing %d at a time, with the gradient "
                "of the whole batch; set accumulate to 2 or more to begin so",
                *(images, -(-images // 2)),
            )
            self._halvings += 1
        except Exception as error:  # compilers raise types of their own
            compiled = self.compiled if is_backward and self.ranks.count == 1 else None
            if compiled is None or not compiled.gives_up(error):
                raise
        else:
            return values
        # outside of the handlers, whose error holds the tensors of the pass
        if self.compiled is not None:
            self.compiled.divide(self._halvings)
        torch.cuda.empty_cache()
        return None

    def halves(self, part: Part) -> list[Part]:
        """Return the halves of a part, or the part if it cannot be divided."""
        return [part]

    @abstractmethod
    def count(self, part: Part) -> int:
        """Return the tokens or images of a part, 0 where `divisors` counts them afterwards."""

    @abstractmethod
    def losses(self, part: Part, number: int, index: int) -> tuple[Tensor, Tensor]:
        """Return the loss of part `index` of an update, and its measurements by `names`."""

    @abstractmethod
    def lr(self, number: int) -> float:
        """Return the learning rate of an update."""

    def begin(self, number: int) -> None:
        """Prepare the network for an update."""

    def end(self) -> None:
        """Share between the ranks what changed in the network without a gradient."""

    def divisors(self, values: Tensor) -> Sequence[Tensor]:
        """Return a scalar per side that divides its gradient; none divides nothing."""
        return ()

    def report(
        self, measured: dict[str, float], amount: int
    ) -> tuple[int, dict[str, float], dict[str, float]]:
        """Return `amount`, `means` and `scalars` of an Update from its measurements."""
        return amount, measured, measured

    def flush(self) -> list[Update]:
        """Read the measurements of the updates that have not been read yet."""
        if not self._unread:
            return []
        unread, self._unread = self._unread, []
        values = self.ranks.sum(torch.stack([update.values for update in unread])).tolist()
        norms = torch.stack([update.gradient_norm for update in unread]).tolist()
        updates = []
        for update, numbers, norm in zip(unread, values, norms, strict=True):
            measured = dict(zip(self.names, numbers, strict=True))
            amount, means, scalars = self.report(measured, update.amount)
            scalars = {**scalars, "lr": update.lr}
            updates.append(Update(update.number, update.image_ids, amount, means, scalars, norm))
        return updates

    def averaged(self) -> AbstractContextManager[None]:
        """Put the average of the weights into the network, to validate and to save it."""
        return nullcontext() if self._average is None else self._average.applied()

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update needs besides the averaged network and the RNG states."""
        average = {} if self._average is None else {"average": self._average.state_dict()}
        return {"optimizers": [optimizer.state_dict() for _, optimizer in self.sides], **average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore such a state, once the network is loaded."""
        for (_, optimizer), saved in zip(self.sides, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _clip(self, divisors: Sequence[Tensor]) -> Tensor:
        """Divide and clip the gradients; return the norm of all sides before clipping."""
        norms: list[Tensor] = []
        for number, (parameters, _) in enumerate(self.sides):
            for parameter in parameters if divisors else ():
                if parameter.grad is not None:
                    parameter.grad /= divisors[number].to(parameter.grad.dtype)
            # each side by itself: a large mask gradient must not shrink the caption gradient
            norms.append(nn.utils.clip_grad_norm_(parameters, self._clip_norm))
        return torch.stack(norms).square().sum().sqrt()
