"""Training task of a captioner: batches of images with captions, validated by CIDEr."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from a2cap.data.batches.collate import Batch, collate
from a2cap.data.batches.dataset import CaptionDataset, Grouping
from a2cap.data.batches.loader import Share, image_batches
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.decoding.config import DecodingConfig
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.metrics.score import cider
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.captioner.alignment_monitor import (
    validation_divergences,
    warn_of_idle_masks,
)
from a2cap.pipeline.training.captioner.config import CaptionerTrainingConfig
from a2cap.pipeline.training.captioner.data import TrainingData
from a2cap.pipeline.training.optimizer import Optimizer
from a2cap.pipeline.training.task import Batches, TrainingTask

_VALIDATION_BATCH = 50
"""Validation images decoded at once."""


def captioner_task(
    section: str,
    optimizer: Optimizer[Batch],
    validation: "CaptionValidation",
    runtime: RuntimeConfig,
    *,
    grouping: Grouping = "image",
) -> TrainingTask[Batch]:
    """Return the task that trains the validated captioner; section: of the configuration."""
    ranks, data, config = validation.ranks, validation.data, validation.config
    dataset = CaptionDataset(
        data.store.path,
        data.captions,
        "train",
        captions_per_image=config.captions_per_image,
        max_regions=validation.max_regions,
        seed=config.seed,
        grouping=grouping,
        skipped=data.skipped,
    )
    batches = Batches(
        dataset,
        collate,
        config,
        share=Share(ranks.rank, ranks.count, config.accumulate),
        workers=runtime.workers,
        pin_memory=validation.device.type == "cuda",
    )
    return TrainingTask(
        section, "a2 train", "tokens", config, validation.captioner, batches, optimizer, validation
    )


@dataclass(frozen=True)
class CaptionValidation:
    """CIDEr on the validation split, of captions decoded as in the evaluation."""

    captioner: TransformerCaptioner
    data: TrainingData
    config: CaptionerTrainingConfig
    max_regions: int | None
    ranks: Ranks

    @property
    def score(self) -> str:
        """Name of the figure that selects the best epoch."""
        return "CIDEr"

    @property
    def device(self) -> torch.device:
        """Device of the captioner."""
        return next(self.captioner.parameters()).device

    def figures(self) -> dict[str, float]:
        """Return CIDEr: each rank decodes a share of the images, the main rank scores all."""
        ranks, data = self.ranks, self.data
        chosen = data.validation[: self.config.max_validation_images]
        decoded = caption_batches(
            self.captioner,
            image_batches(
                data.store.path,
                chosen[ranks.rank :: ranks.count],
                batch_size=_VALIDATION_BATCH,
                max_regions=self.max_regions,
            ),
            data.vocabulary,
            DecodingConfig(
                beam_size=self.config.validation_beam_size, max_length=self.config.max_length
            ),
            device=self.device,
        )
        shares = ranks.all_gather([(name, beams[0].caption) for name, beams in decoded])
        if not ranks.is_main:
            return ranks.broadcast({})  # waits for the figures of the main rank
        candidates = dict(pair for share in shares for pair in share)
        references = {image_id: data.references[image_id] for image_id in chosen}
        return ranks.broadcast({self.score: cider(candidates, references)})

    def scalars(self) -> dict[str, float]:
        """Return the JSD of aligned from original attention by layer, over a few images."""
        if not self.captioner.has_masks:
            return {}
        found = validation_divergences(self.captioner, self.data, max_regions=self.max_regions)
        return {f"JSD/layer_{number}": value for number, value in enumerate(found, start=1)}

    def warn(self, line: Mapping[str, float]) -> None:
        """Warn if the masks hide almost nothing, or most of every image."""
        warn_of_idle_masks(line.get("mean_mask", math.nan))
