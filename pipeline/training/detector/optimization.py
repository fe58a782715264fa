"""One update of a detector: five losses, one optimiser, a rate that rises and then falls."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from a2cap.extract.training.trainable import Sampling, TrainableDetector
from a2cap.pipeline.runtime.distributed import ALONE, Processes
from a2cap.pipeline.runtime.precision import forward_precision
from a2cap.pipeline.training.detector.batches import DetectorPart
from a2cap.pipeline.training.detector.config import DetectorConfig

MOMENTUM = 0.9
"""Of SGD, as published."""

LOSSES = ("objectness", "proposal_boxes", "classes", "boxes", "attributes")
"""Fields of DetectorLosses."""


@dataclass(frozen=True)
class DetectorUpdate:
    """What one update measured, over the whole batch: of all its parts in all processes.

    image_ids: of the images of this process; measured: `loss` and its five parts by name, means
    over images; images: in the batch; gradient_norm: before clipping.
    """

    number: int
    image_ids: tuple[str, ...]
    measured: dict[str, float]
    images: int
    lr: float
    gradient_norm: float

    @property
    def amount(self) -> int:
        """Images."""
        return self.images

    @property
    def finite(self) -> bool:
        """Whether losses and gradients are numbers."""
        return all(map(math.isfinite, (*self.measured.values(), self.gradient_norm)))

    def reported(self) -> dict[str, float]:
        """What the epoch's line holds the mean of."""
        return self.measured

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""
        return {**self.measured, "lr": self.lr, "gradient_norm": self.gradient_norm}

    def in_words(self) -> str:
        """Losses and gradient norm, for an error."""
        parts = ", ".join(f"{name} {value}" for name, value in self.measured.items())
        return f"{parts}, gradient norm {self.gradient_norm}"


class DetectorOptimisation:
    """The optimiser of a detector.

    The gradient is that of the whole batch, whatever the number of parts and of processes: each
    part is weighed by its images. What does depend on them is which anchors and regions are
    drawn, and the statistics of normalisations that learn, which are those of a part; the running
    ones of all processes are averaged, so that each has the same network.
    """

    def __init__(
        self,
        detector: TrainableDetector,
        config: DetectorConfig,
        *,
        steps: int,
        processes: Processes = ALONE,
    ) -> None:
        self._detector = detector
        self._config = config
        self._steps = steps
        self._processes = processes
        self._device = next(detector.parameters()).device
        self._parameters = [p for p in detector.parameters() if p.requires_grad]
        self._statistics = list(_running_statistics(detector))
        self._optimiser = _optimiser(self._parameters, config)
        self._sampling = Sampling(
            anchors=config.anchors,
            anchor_positives=config.anchor_positives,
            proposals=config.proposals,
            regions=config.regions,
            region_positives=config.region_positives,
            roi_size=config.roi_size,
        )

    def step(self, parts: Sequence[DetectorPart], number: int) -> list[DetectorUpdate]:
        """Update `number` (1 is the first) on this process's parts of a batch.

        No parameter moves where a loss or a gradient is not finite.
        """
        self._optimiser.zero_grad(set_to_none=True)
        counts = [len(part.batch) for part in parts]
        images = int(self._processes.total(torch.tensor(sum(counts))))
        values = torch.zeros(1 + len(LOSSES), device=self._device)
        for place, (part, count) in enumerate(zip(parts, counts, strict=True)):
            values += self._backward(part, count / images, self._draws(number, place))
        self._processes.add_gradients(self._parameters)
        most = math.inf if self._config.clip_norm is None else self._config.clip_norm
        norm = nn.utils.clip_grad_norm_(self._parameters, most)
        update = DetectorUpdate(
            number=number,
            image_ids=tuple(name for part in parts for name in part.image_ids),
            measured=dict(
                zip(("loss", *LOSSES), self._processes.total(values).tolist(), strict=True)
            ),
            images=images,
            lr=detector_learning_rate(self._config, number, steps=self._steps),
            gradient_norm=float(norm),
        )
        if update.finite:
            self._move(update.lr)
        return [update]

    def read(self) -> list[DetectorUpdate]:
        """Nothing: every update is read at once."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimiser."""
        return self._optimiser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state of the optimiser."""
        self._optimiser.load_state_dict(state)

    def _backward(self, part: DetectorPart, weight: float, draws: torch.Generator) -> Tensor:
        """Adds the part's gradients; returns its share of the loss and its parts, (6,)."""
        with forward_precision(self._config.precision, self._device):
            losses = self._detector.losses(
                part.batch.to(self._device), sampling=self._sampling, generator=draws
            )
        total = losses.total(attribute_weight=self._config.attribute_weight)
        torch.autograd.backward(total * weight)
        named = losses.named()
        found = torch.stack([total, *(named[name] for name in LOSSES)])
        return found.detach().float() * weight

    def _draws(self, number: int, place: int) -> torch.Generator:
        """What decides which anchors and regions are drawn: a function of the update and part."""
        key = (self._processes.rank, number, place)
        sequence = np.random.SeedSequence(self._config.seed, spawn_key=key)
        seed = int(sequence.generate_state(1, np.uint64)[0] >> 1)
        return torch.Generator().manual_seed(seed)

    def _move(self, rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        if self._processes.count > 1:
            for statistic in self._statistics:
                statistic.copy_(self._processes.total(statistic) / self._processes.count)


def detector_learning_rate(config: DetectorConfig, number: int, *, steps: int) -> float:
    """Rate of update `number` (1 is the first) of `steps`: a line up, then half a cosine to 0."""
    if number <= config.warmup:
        return config.lr * number / config.warmup
    share = (number - config.warmup) / max(steps - config.warmup, 1)
    return config.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def _optimiser(parameters: Sequence[nn.Parameter], config: DetectorConfig) -> torch.optim.Optimizer:
    """Matrices and filters decay, biases and normalisations do not."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM)
    return torch.optim.AdamW(groups, lr=0.0)


def _running_statistics(detector: TrainableDetector) -> Iterator[Tensor]:
    for name, tensor in detector.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            yield tensor
