"""One update of cross-entropy training: two losses, two optimisers, one schedule.

The captioner's parameters follow the caption loss alone and the mask network's the mask loss alone
(Eq. 4 and 11 of the A2 paper); each side is clipped by itself.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from a2.data.batches import Batch
from a2.model.losses import MaskStatistics, TwoLosses, two_losses
from a2.model.transformer import TransformerCaptioner
from a2.pipeline.config import TrainConfig


@dataclass(frozen=True)
class StepLosses:
    """What one update measured.

    caption, mask: nats per token (mask: Eq. 4, None without a mask network); tokens: targets in
    the batch, <eos> included; gradient_norm: of both sides together, before clipping.
    """

    caption: float
    mask: float | None
    tokens: int
    lr: float
    gradient_norm: float
    statistics: MaskStatistics | None

    @property
    def finite(self) -> bool:
        """Whether losses and gradients are numbers: a finite loss can have a gradient of NaN."""
        return all(map(math.isfinite, (self.caption, self.mask or 0.0, self.gradient_norm)))

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""
        found = {
            "caption_loss": self.caption,
            "lr": self.lr,
            "gradient_norm": self.gradient_norm,
        }
        if self.mask is not None:
            found["mask_loss"] = self.mask
        if self.statistics is not None:
            found["mean_mask"] = self.statistics.keep.item()
            found["mask_penalty"] = self.statistics.penalty.item()
            found["delta_nll"] = self.statistics.harm.item()
            if self.statistics.gate is not None:
                found["mean_gate"] = self.statistics.gate.item()
        return found


class CrossEntropyOptimisation:
    """The two Adams of a captioner and its mask network."""

    def __init__(self, captioner: TransformerCaptioner, config: TrainConfig) -> None:
        self._captioner = captioner
        self._config = config
        sides = (list(captioner.caption_parameters()), list(captioner.mask_parameters()))
        self._optimisers = [
            torch.optim.Adam(parameters, lr=0.0, betas=config.betas)
            for parameters in sides
            if parameters
        ]

    def step(self, batch: Batch, number: int) -> StepLosses:
        """Update `number` (1 is the first) on one batch with tokens (B, K, L).

        Nothing is updated where a loss or a gradient is not finite.
        """
        losses = self._losses(batch, number)
        norms = self._clipped_gradients(losses.total())
        found = StepLosses(
            caption=losses.caption.item(),
            mask=None if losses.mask is None else losses.mask.item(),
            tokens=int(losses.tokens),
            lr=learning_rate(self._config, number, width=self._captioner.config.width),
            gradient_norm=math.hypot(*norms),
            statistics=losses.statistics,
        )
        if found.finite:
            self._update(found.lr)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of both optimisers."""
        return {"optimisers": [optimiser.state_dict() for optimiser in self._optimisers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state of both optimisers."""
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)

    def _losses(self, batch: Batch, number: int) -> TwoLosses:
        if batch.tokens is None:
            raise ValueError("batch has no captions; train on batches of a CaptionDataset")
        captioner = self._captioner
        captioner.schedule_step.fill_(number)
        memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
        return two_losses(captioner, memory, batch.tokens)

    def _clipped_gradients(self, loss: Tensor) -> list[float]:
        """Fills and clips the gradients; returns the norm of each side's before clipping."""
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        largest = math.inf if self._config.clip_norm is None else self._config.clip_norm
        return [
            nn.utils.clip_grad_norm_(group["params"], largest).item()
            for optimiser in self._optimisers
            for group in optimiser.param_groups
        ]

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
    rate: float = width**-0.5 * min(step**-0.5, step * config.warmup**-1.5)
    return config.lr * rate
