"""One update of cross-entropy training: two losses, two optimisers, one schedule.

The captioner's parameters follow the caption loss alone and the mask network's the mask loss alone
(Eq. 4 and 11 of the A2 paper); each side is clipped by itself.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from a2.data.batches import Batch
from a2.model.losses import two_losses
from a2.model.transformer import TransformerCaptioner
from a2.pipeline.config import TrainConfig


@dataclass(frozen=True)
class StepLosses:
    """What one update measured.

    caption, mask: nats per token (mask: Eq. 4, None without a mask network); tokens: targets in
    the batch, <eos> included.
    """

    caption: float
    mask: float | None
    tokens: int
    lr: float
    statistics: dict[str, float]

    @property
    def finite(self) -> bool:
        """Whether both losses are numbers."""
        return math.isfinite(self.caption) and (self.mask is None or math.isfinite(self.mask))

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""
        masks = {} if self.mask is None else {"mask_loss": self.mask}
        return {"caption_loss": self.caption, "lr": self.lr, **masks, **self.statistics}


class CrossEntropyOptimisation:
    """The two Adams of a captioner and its mask network."""

    def __init__(self, captioner: TransformerCaptioner, config: TrainConfig) -> None:
        self._captioner = captioner
        self._config = config
        self._caption = list(captioner.caption_parameters())
        self._mask = list(captioner.mask_parameters())
        self._optimisers = [
            torch.optim.Adam(parameters, lr=0.0, betas=config.betas)
            for parameters in (self._caption, self._mask)
            if parameters
        ]

    def step(self, batch: Batch, number: int) -> StepLosses:
        """Update `number` (1 is the first) on one batch with tokens (B, K, L).

        Nothing is updated where a loss is not finite.
        """
        self._captioner.schedule_step.fill_(number)
        losses = two_losses(self._captioner, batch)
        rate = learning_rate(self._config, number, width=self._captioner.config.width)
        found = StepLosses(
            caption=losses.caption.item(),
            mask=None if losses.mask is None else losses.mask.item(),
            tokens=int((batch.tokens != 0).sum()),
            lr=rate,
            statistics={},
        )
        if found.finite:
            self._assign(losses.caption, self._caption, retain=losses.mask is not None)
            if losses.mask is not None:
                self._assign(losses.mask, self._mask, retain=False)
            self._update(rate)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of both optimisers."""
        return {"optimisers": [optimiser.state_dict() for optimiser in self._optimisers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state of both optimisers."""
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)

    def _assign(self, loss: Tensor, parameters: list[nn.Parameter], *, retain: bool) -> None:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=retain)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._config.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._config.clip_norm)

    def _update(self, rate: float) -> None:
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()


def learning_rate(config: TrainConfig, step: int, *, width: int) -> float:
    """Rate of update `step` (1 is the first) for a captioner of model width D.

    noam: lr * D^-0.5 * min(s^-0.5, s * warmup^-1.5) (Vaswani et al. 2017, section 5.3).
    """
    if config.schedule == "constant":
        return config.lr
    return config.lr * width**-0.5 * min(step**-0.5, step * config.warmup**-1.5)
