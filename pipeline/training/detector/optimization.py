"""Updates of a detector: five losses, one optimizer, a rate with warmup and cosine decay."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from a2cap.extract.training.trainable import Sampling, TrainableDetector
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.precision import forward_precision
from a2cap.pipeline.training.detector.batches import DetectorPart
from a2cap.pipeline.training.detector.config import DetectorConfig
from a2cap.pipeline.training.loop import Optimizer
from a2cap.pipeline.training.resume import derived_seed


class DetectorOptimizer(Optimizer[DetectorPart]):
    """Updates of a detector.

    Only the sampled anchors and regions and the statistics of learnt normalisations, each of one
    part, depend on the number of parts and ranks.
    """

    names = ("loss", "objectness", "proposal_boxes", "classes", "boxes", "attributes")

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

    def losses(self, part: DetectorPart, number: int, index: int) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the five losses of a part, and all six."""
        seed = derived_seed(self._config.seed, self._ranks.rank, number, index)
        generator = torch.Generator().manual_seed(seed >> 1)  # 63 bits
        with forward_precision(self._config.precision, self._device):
            losses = self._detector.losses(
                part.batch.to(self._device), sampling=self._sampling, generator=generator
            )
        total = losses.total(attribute_weight=self._config.attribute_weight)
        named = losses.named()
        found = torch.stack([total, *(named[name] for name in self.names[1:])])
        return total, found.detach().float()

    def count(self, part: DetectorPart) -> int:
        """Return the images of a part."""
        return len(part.batch)

    def lr(self, number: int) -> float:
        """Return the rate of the schedule."""
        return detector_learning_rate(self._config, number, steps=self._steps)

    def end(self) -> None:
        """Average the running statistics: they have no gradient to share."""
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
