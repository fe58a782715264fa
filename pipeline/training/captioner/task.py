"""Training of a captioner as a phase: batches of images with captions, validated by CIDEr."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from a2cap.data.batches.collate import Batch, collate
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import Share, batches_per_epoch, epoch_batches, image_batches
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.decoding.config import DecodingConfig
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.metrics.score import cider
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.distributed import Processes
from a2cap.pipeline.training.captioner.alignment_monitor import (
    validation_divergences,
    warn_of_idle_masks,
)
from a2cap.pipeline.training.captioner.config import ScstConfig, TrainConfig
from a2cap.pipeline.training.captioner.data import TrainingData
from a2cap.pipeline.training.task import Optimisation, Phase

CaptionerSettings = TrainConfig | ScstConfig
"""How long a captioner trains in a phase, and how it is validated."""


def captioner_phase(
    section: str,
    settings: CaptionerSettings,
    captioner: TransformerCaptioner,
    data: TrainingData,
    dataset: CaptionDataset,
    optimisation: Optimisation[Batch],
    runtime: RuntimeConfig,
    *,
    max_regions: int | None,
    processes: Processes,
) -> Phase[Batch]:
    """The phase that trains a captioner on a split; section: of the configuration."""
    device = next(captioner.parameters()).device
    return Phase(
        section=section,
        command="a2 train",
        unit="tokens",
        settings=settings,
        network=captioner,
        batches=CaptionBatches(
            dataset,
            settings,
            share=Share(processes.rank, processes.count, settings.accumulate),
            workers=runtime.workers,
            pin_memory=device.type == "cuda",
        ),
        optimisation=optimisation,
        validation=CaptionValidation(
            captioner, data, settings, max_regions=max_regions, processes=processes
        ),
    )


@dataclass(frozen=True)
class CaptionBatches:
    """The share of one process in the batches of a captioner's training."""

    dataset: CaptionDataset
    settings: CaptionerSettings
    share: Share
    workers: int
    pin_memory: bool

    def __len__(self) -> int:
        return batches_per_epoch(self.dataset, batch_size=self.settings.batch_size)

    def of_epoch(self, epoch: int, *, start: int) -> Iterator[list[Batch]]:
        """The parts of each batch from number `start` on."""
        return epoch_batches(
            self.dataset,
            collate,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            epoch=epoch,
            start=start,
            share=self.share,
            workers=self.workers,
            pin_memory=self.pin_memory,
        )


class CaptionValidation:
    """CIDEr on the validation split, of captions decoded as the evaluation does it."""

    score = "CIDEr"

    def __init__(
        self,
        captioner: TransformerCaptioner,
        data: TrainingData,
        settings: CaptionerSettings,
        *,
        max_regions: int | None,
        processes: Processes,
    ) -> None:
        self._captioner = captioner
        self._data = data
        self._settings = settings
        self._max_regions = max_regions
        self._processes = processes

    def figures(self) -> dict[str, float]:
        """Each process decodes a share of the images, the first one scores them all."""
        processes, settings = self._processes, self._settings
        chosen = self._data.validation[: settings.max_validation_images]
        decoded = caption_batches(
            self._captioner,
            image_batches(
                self._data.store.path,
                chosen[processes.rank :: processes.count],
                batch_size=50,
                max_regions=self._max_regions,
            ),
            self._data.vocabulary,
            DecodingConfig(
                beam_size=settings.validation_beam_size, max_length=settings.max_length
            ),
            device=self._device,
        )
        shares = processes.gathered([(name, beams[0].caption) for name, beams in decoded])
        if not processes.leads:
            return processes.of_first({})
        candidates = dict(pair for share in shares for pair in share)
        references = {image_id: self._data.references[image_id] for image_id in chosen}
        return processes.of_first({self.score: cider(candidates, references)})

    def scalars(self) -> dict[str, float]:
        """JSD of aligned from original attention in each layer, over a few images."""
        if not self._captioner.has_masks:
            return {}
        found = validation_divergences(self._captioner, self._data, max_regions=self._max_regions)
        return {f"JSD/layer_{number}": value for number, value in enumerate(found, start=1)}

    def warn(self, line: Mapping[str, float]) -> None:
        """One line where masks have hardly an effect, or none is left that could have one."""
        warn_of_idle_masks(line.get("mean_mask", math.nan))

    @property
    def _device(self) -> torch.device:
        return next(self._captioner.parameters()).device
