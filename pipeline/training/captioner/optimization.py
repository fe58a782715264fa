"""One update of cross-entropy training: two losses, two optimisers, one schedule.

The captioner's parameters follow the caption loss alone and the mask network's the mask loss alone
(Eq. 4 and 11 of the A2 paper); each side is clipped by itself.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from a2cap.data.batches.collate import Batch
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.losses import TwoLosses, two_losses
from a2cap.pipeline.runtime.distributed import ALONE, Processes
from a2cap.pipeline.runtime.precision import forward_precision
from a2cap.pipeline.training.captioner.config import TrainConfig

_READ_EVERY = 20
"""Updates on a GPU between two looks at their figures."""


@dataclass(frozen=True)
class StepLosses:
    """What one update measured, over the whole batch: of all its parts in all processes.

    number: of the update; image_ids: of the images of this process; measured: by name the means
    over tokens; tokens: targets in the batch, <eos> included; gradient_norm:
    of both sides together, before clipping.
    """

    number: int
    image_ids: tuple[str, ...]
    measured: dict[str, float]
    tokens: int
    lr: float
    gradient_norm: float

    @property
    def amount(self) -> int:
        """Tokens."""
        return self.tokens

    @property
    def caption(self) -> float:
        """Nats per token."""
        return self.measured["caption_loss"]

    @property
    def mask(self) -> float | None:
        """Eq. 4, against nats per token; None without a mask network."""
        return self.measured.get("mask_loss")

    @property
    def finite(self) -> bool:
        """Whether losses and gradients are numbers: a finite loss can have a gradient of NaN."""
        return all(map(math.isfinite, (self.caption, self.mask or 0.0, self.gradient_norm)))

    def reported(self) -> dict[str, float]:
        """What the epoch's line holds the mean of."""
        found = {"loss": self.caption, "mask_loss": self.mask or 0.0}
        if "mean_mask" in self.measured:
            found["mean_mask"] = self.measured["mean_mask"]
        return found

    def in_words(self) -> str:
        """Losses and gradient norm, for an error."""
        return f"caption {self.caption}, mask {self.mask}, gradient norm {self.gradient_norm}"

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""
        return {**self.measured, "lr": self.lr, "gradient_norm": self.gradient_norm}


@dataclass(frozen=True)
class _Pending:
    """An update whose figures have not been read yet.

    values: (M,) float32, this process's part of the means over tokens; gradient_norm: a scalar, of
    all processes.
    """

    number: int
    image_ids: tuple[str, ...]
    values: Tensor
    tokens: int
    lr: float
    gradient_norm: Tensor


class SidedAdam:
    """An Adam for each side that is trained: the captioner's parameters, the mask network's.

    Each side is clipped by itself, after the gradients of all processes have been added up.
    """

    def __init__(
        self,
        sides: Sequence[Iterable[nn.Parameter]],
        *,
        betas: tuple[float, float],
        clip_norm: float | None,
        processes: Processes,
    ) -> None:
        self._processes = processes
        self._clip_norm = math.inf if clip_norm is None else clip_norm
        self.sides = [parameters for parameters in map(list, sides) if parameters]
        self.optimisers = [
            torch.optim.Adam(side, lr=0.0, betas=betas, fused=True) for side in self.sides
        ]

    def zero_grad(self) -> None:
        """Forgets all gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def add_and_clip(self, divisors: Sequence[Tensor] = ()) -> Tensor:
        """Adds up and clips the gradients; returns the norm of all sides before clipping.

        divisors: a scalar per side that its sum is divided by, where there are some.
        """
        norms: list[Tensor] = []
        for number, side in enumerate(self.sides):
            self._processes.add_gradients(side)
            if divisors:
                _divide(side, divisors[number])
            norms.append(nn.utils.clip_grad_norm_(side, self._clip_norm))
        return torch.stack(norms).square().sum().sqrt()

    def update(self, rate: float) -> None:
        """Moves all sides."""
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of all sides."""
        return {"optimisers": [optimiser.state_dict() for optimiser in self.optimisers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state of all sides."""
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def _divide(parameters: Sequence[nn.Parameter], divisor: Tensor) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= divisor.to(parameter.grad.dtype)


class CrossEntropyOptimisation:
    """The two Adams of a captioner and its mask network.

    The gradient is that of the whole batch, whatever the number of parts and of processes: each
    part is weighed by its tokens, and each side is clipped by itself after all have been added up.
    """

    def __init__(
        self, captioner: TransformerCaptioner, config: TrainConfig, processes: Processes = ALONE
    ) -> None:
        self._captioner = captioner
        self._config = config
        self._processes = processes
        self._device = next(captioner.parameters()).device
        self._read_every = _read_every(self._device)
        self._pending: list[_Pending] = []
        self._adam = SidedAdam(
            (captioner.caption_parameters(), captioner.mask_parameters()),
            betas=config.betas,
            clip_norm=config.clip_norm,
            processes=processes,
        )

    def step(self, parts: Sequence[Batch], number: int) -> list[StepLosses]:
        """Update `number` (1 is the first) on this process's parts of a batch, tokens (B, K, L).

        Returns what is read of this update and those before it: every update on a CPU, else now
        and then. On a CPU nothing is updated where a loss or a gradient is not finite.
        """
        self._captioner.schedule_step.fill_(number)
        self._adam.zero_grad()
        # counted before they are on a GPU, so that nothing waits for it
        counts = [int((_tokens(part) != self._captioner.special.pad).sum()) for part in parts]
        tokens = int(self._processes.total(torch.tensor(sum(counts))))
        values = torch.zeros(len(self._names), device=self._device)
        for part, count in zip(parts, counts, strict=True):
            values += self._backward(part, count / max(tokens, 1))
        rate = learning_rate(self._config, number, width=self._captioner.config.width)
        image_ids = tuple(name for part in parts for name in part.image_ids)
        norm = self._adam.add_and_clip()
        self._pending.append(_Pending(number, image_ids, values, tokens, rate, norm))
        found = self.read() if len(self._pending) >= self._read_every else []
        if all(losses.finite for losses in found):
            self._adam.update(rate)
        return found

    def read(self) -> list[StepLosses]:
        """What the updates measured that have not been read yet."""
        if not self._pending:
            return []
        pending, self._pending = self._pending, []
        values = self._processes.total(torch.stack([update.values for update in pending]))
        norms = torch.stack([update.gradient_norm for update in pending])
        return [
            StepLosses(
                number=update.number,
                image_ids=update.image_ids,
                measured=dict(zip(self._names, measured, strict=True)),
                tokens=update.tokens,
                lr=update.lr,
                gradient_norm=norm,
            )
            for update, measured, norm in zip(pending, values.tolist(), norms.tolist(), strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state of both optimisers."""
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state of both optimisers."""
        self._adam.load_state_dict(state)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """What is measured; the same in a process that has no part of a batch."""
        if not self._captioner.has_masks:
            return ("caption_loss",)
        gated = self._captioner.config.alignment.fusion == "gate"
        masks = ("mask_loss", "mean_mask", "mask_penalty", "delta_nll")
        return ("caption_loss", *masks, *(("mean_gate",) if gated else ()))

    def _backward(self, part: Batch, weight: float) -> Tensor:
        """Adds the part's gradients, and returns its part of what is measured, (M,) float32."""
        batch = part.to(self._device, non_blocking=True)
        captioner = self._captioner
        with forward_precision(self._config.precision, self._device):
            memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
            losses = two_losses(captioner, memory, _tokens(batch))
        torch.autograd.backward(losses.total() * weight)
        return torch.stack(_measured(losses)).float() * weight


def _read_every(device: torch.device) -> int:
    """Reading a figure waits for a GPU; on a CPU it is there already."""
    return 1 if device.type == "cpu" else _READ_EVERY


def _tokens(batch: Batch) -> Tensor:
    if batch.tokens is None:
        raise ValueError("batch has no captions; train on batches of a CaptionDataset")
    return batch.tokens


def _measured(losses: TwoLosses) -> list[Tensor]:
    """In the order of `CrossEntropyOptimisation._names`, without gradient."""
    found = [losses.caption.detach()]
    if losses.mask is not None and losses.statistics is not None:
        masks = losses.statistics
        found += [losses.mask.detach(), masks.keep, masks.penalty, masks.harm]
        if masks.gate is not None:
            found.append(masks.gate)
    return found


def learning_rate(config: TrainConfig, step: int, *, width: int) -> float:
    """Rate of update `step` (1 is the first) for a captioner of model width D.

    noam: lr * D^-0.5 * min(s^-0.5, s * warmup^-1.5) (Vaswani et al. 2017, section 5.3).
    """
    if config.schedule == "constant":
        return config.lr
    rate: float = width**-0.5 * min(step**-0.5, step * config.warmup**-1.5)
    return config.lr * rate
