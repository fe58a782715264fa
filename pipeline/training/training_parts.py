"""Parts of a training in the loop: updates, validation, record, average of weights, rates."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from a2cap.data.files.atomic import write_durably
from a2cap.pipeline.engine.artifact_names import EPOCHS, TENSORBOARD
from a2cap.pipeline.engine.events import EventLog


class BatchPart(Protocol):
    """This rank's share of a batch, or a part of it."""

    @property
    def image_ids(self) -> tuple[str, ...]:
        """Ids of its images."""


Part = TypeVar("Part", bound=BatchPart)


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


class Validation(Protocol):
    """Quality of the network after an epoch; a class derived from it may have figures alone."""

    @property
    def selected_by(self) -> str:
        """Name of the figure that selects the best epoch."""

    @property
    def start(self) -> float | None:
        """The score of the network that is trained further, None for a new one."""
        return None

    def figures(self) -> dict[str, float]:
        """Return the figures by name, equal on all ranks; every rank must call this."""

    def scalars(self) -> dict[str, float]:
        """Return more figures for TensorBoard; called on the main rank only."""
        return {}

    def warn(self, line: Mapping[str, float]) -> None:
        """Log a warning if the epoch's figures show a failing training; on the main rank only."""
        return


_BOARD_EVERY = 20  # updates between TensorBoard scalars
_SECONDS_BETWEEN_EVENTS = 10.0


class TrainingRecord:
    """The record of one training, written by the main rank."""

    def __init__(self, directory: Path, events: EventLog) -> None:
        self._metrics = directory / EPOCHS
        self._board = SummaryWriter(str(directory / TENSORBOARD))
        self._last_event = time.monotonic()
        self.events = events

    def close(self) -> None:
        """Close TensorBoard's file."""
        self._board.close()

    def epoch(self, line: Mapping[str, float]) -> None:
        """Append an epoch's line to metrics.jsonl."""
        # replaces the line of a run that died between this line and its checkpoint
        lines = self._metrics.read_text().splitlines() if self._metrics.exists() else []
        kept = [text for text in lines if json.loads(text)["epoch"] < line["epoch"]]
        content = "".join(f"{text}\n" for text in (*kept, json.dumps(line)))
        write_durably(self._metrics, content.encode())

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Write TensorBoard's scalars `group`/name."""
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def update(self, update: Update) -> None:
        """Write the figures of every 20th update to TensorBoard."""
        if update.number % _BOARD_EVERY == 0:
            norm = {"gradient_norm": update.gradient_norm}
            self.scalars("train", {**update.scalars, **norm}, update.number)

    def progress(self, step: int, *, total: int) -> None:
        """Write a progress event at most every 10 seconds."""
        now = time.monotonic()
        if now - self._last_event >= _SECONDS_BETWEEN_EVENTS:
            self._last_event = now
            self.events.write("progress", step=step, total=total)


class WeightAverage:
    """Exponential moving average of parameters (Polyak and Juditsky 1992), to validate and save.

    decay: of the average; at most (1 + n) / (10 + n) at update n, so that the initial weights are
    forgotten.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self._parameters = parameters
        self._decay = decay
        self._updates = 0
        # while the average is in the network, these are the weights in training
        self._weights = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Include the parameters after an update."""
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        for average, parameter in zip(self._weights, self._parameters, strict=True):
            average.lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the network for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of the network with the average lacks; call it in `applied`."""
        return {"updates": self._updates, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore such a state, once the network has the average."""
        self._updates = state["updates"]
        for tensor, saved in zip(self._weights, state["weights"], strict=True):
            tensor.copy_(saved)
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weights, parameter in zip(self._weights, self._parameters, strict=True):
            parameter_before = parameter.clone()
            parameter.copy_(weights)
            weights.copy_(parameter_before)


def cosine_rate(peak: float, number: int, *, warmup: int, steps: int) -> float:
    """Return the rate of update `number` (1 is the first): a rise, then half a cosine."""
    if number <= warmup:
        return peak * number / warmup
    share = (number - warmup) / max(steps - warmup, 1)
    return peak * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def decaying_groups(parameters: Sequence[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Return groups for an optimiser: matrices and filters decay, biases and norms do not."""
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


_DECAY, _MOMENTUM, _EPSILON = 0.95, 0.9, 1e-4


class GravesRmsprop(torch.optim.Optimizer):
    """RMSProp of Graves (2013, arXiv:1308.0850, Eq. 38-41), which Xu et al. used on Flickr8k.

    torch's centred RMSprop adds its epsilon to the root; here it is within, as in arctic-captions
    (kelvinxu/arctic-captions, optimizers.py): for small gradients the steps differ by up to 40 %.
    weight_decay: weight of the L2 norm in the gradient.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make one update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                state = self.state[parameter]
                if not state:
                    state |= {
                        name: torch.zeros_like(parameter) for name in ("mean", "square", "move")
                    }
                state["mean"].lerp_(gradient, 1 - _DECAY)
                state["square"].lerp_(gradient.square(), 1 - _DECAY)
                # at least 0 but for rounding
                variance = (state["square"] - state["mean"].square()).clamp_(min=0)
                step = gradient / (variance + _EPSILON).sqrt()
                state["move"].mul_(_MOMENTUM).sub_(step, alpha=group["lr"])
                parameter.add_(state["move"])
