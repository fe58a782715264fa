"""Updates of a detector: five losses, one optimizer, a rate with warmup and cosine decay."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from a2cap.extract.training.trainable import Sampling, TrainableDetector
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.precision import forward_precision
from a2cap.pipeline.training.detector.batches import DetectorPart
from a2cap.pipeline.training.detector.config import DetectorConfig
from a2cap.pipeline.training.optimizer import Optimizer, Update, derived_seed

LOSSES = ("objectness", "proposal_boxes", "classes", "boxes", "attributes")
"""Fields of DetectorLosses."""


class DetectorOptimizer(Optimizer[DetectorPart]):
    """Updates of a detector.

    Only the sampled anchors and regions and the statistics of learnt normalisations, each of one
    part, depend on the number of parts and ranks.
    """

    def __init__(
        self,
        detector: TrainableDetector,
        config: DetectorConfig,
        *,
        steps: int,
        ranks: Ranks = SINGLE,
    ) -> None:
        parameters = [p for p in detector.parameters() if p.requires_grad]
        super().__init__([(parameters, _torch_optimizer(parameters, config))], config, ranks)
        self._detector = detector
        self._config = config
        self._steps = steps
        self._statistics = list(_running_statistics(detector))
        self._sampling = Sampling(
            anchors=config.anchors,
            anchor_positives=config.anchor_positives,
            proposals=config.proposals,
            regions=config.regions,
            region_positives=config.region_positives,
            roi_size=config.roi_size,
        )

    def step(self, parts: Sequence[DetectorPart], number: int) -> list[Update]:
        """Make update `number` (1 is the first); each one is returned at once."""
        self._zero_grad()
        counts = [len(part.batch) for part in parts]
        images = int(self._ranks.sum(torch.tensor(sum(counts))))
        values = torch.zeros(1 + len(LOSSES), device=self._device)
        for index, (part, count) in enumerate(zip(self._overlapped(parts), counts, strict=True)):
            # losses are means over images, so parts count by their share of the images
            values += self._backward(part, count / images, self._generator(number, index))
        norm = float(self._reduce_gradients())
        means = dict(zip(("loss", *LOSSES), self._ranks.sum(values).tolist(), strict=True))
        lr = detector_learning_rate(self._config, number, steps=self._steps)
        image_ids = tuple(name for part in parts for name in part.image_ids)
        update = Update(number, image_ids, images, means, {**means, "lr": lr}, norm)
        if update.finite:
            self._apply(lr)
            self._average_statistics()
        return [update]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer."""
        return self.sides[0][1].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer."""
        self.sides[0][1].load_state_dict(state)

    def _backward(self, part: DetectorPart, weight: float, generator: torch.Generator) -> Tensor:
        """Add the gradients of a part; return its weighted loss and the five losses, (6,)."""
        with forward_precision(self._config.precision, self._device):
            losses = self._detector.losses(
                part.batch.to(self._device), sampling=self._sampling, generator=generator
            )
        total = losses.total(attribute_weight=self._config.attribute_weight)
        torch.autograd.backward(total * weight)
        named = losses.named()
        found = torch.stack([total, *(named[name] for name in LOSSES)])
        return found.detach().float() * weight

    def _generator(self, number: int, index: int) -> torch.Generator:
        """Return the RNG that samples anchors and regions in one part of an update."""
        seed = derived_seed(self._config.seed, self._ranks.rank, number, index)
        return torch.Generator().manual_seed(seed >> 1)  # 63 bits, as in earlier versions

    def _average_statistics(self) -> None:
        # running statistics have no gradient to share, and all ranks must keep the same network
        if self._ranks.count > 1:
            for statistic in self._statistics:
                statistic.copy_(self._ranks.sum(statistic) / self._ranks.count)


def detector_learning_rate(config: DetectorConfig, number: int, *, steps: int) -> float:
    """Return the rate of update `number` (1 is the first): warmup, then half a cosine."""
    if number <= config.warmup:
        return config.lr * number / config.warmup
    share = (number - config.warmup) / max(steps - config.warmup, 1)
    return config.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def _torch_optimizer(
    parameters: Sequence[nn.Parameter], config: DetectorConfig
) -> torch.optim.Optimizer:
    # matrices and filters decay, biases and normalisations do not
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9)  # as published
    return torch.optim.AdamW(groups, lr=0.0)


def _running_statistics(detector: TrainableDetector) -> Iterator[Tensor]:
    for name, tensor in detector.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            yield tensor
