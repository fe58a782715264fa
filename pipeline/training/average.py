"""Exponential moving average of weights (Polyak and Juditsky 1992), to validate and to save."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class WeightAverage:
    """The average of some parameters after each update.

    decay: of the average; at most (1 + n) / (10 + n) at update n, so that the initial weights are
    forgotten.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self._parameters = parameters
        self._decay = decay
        self._updates = 0
        # while the average is in the network, these are the weights in training
        self._others = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Include the parameters after an update."""
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        for average, parameter in zip(self._others, self._parameters, strict=True):
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
        return {"updates": self._updates, "weights": self._others}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore such a state, once the network has the average."""
        self._updates = state["updates"]
        for tensor, saved in zip(self._others, state["weights"], strict=True):
            tensor.copy_(saved)
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for other, parameter in zip(self._others, self._parameters, strict=True):
            parameter_before = parameter.clone()
            parameter.copy_(other)
            other.copy_(parameter_before)
