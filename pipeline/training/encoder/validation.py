"""An encoder with what it predicts, and its validation."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.data.batches.loader import Batches, Share
from a2cap.extract.trainable_encoder import TrainableEncoder
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.encoder.captioned_images import CaptionedImages, EncoderPart, collate
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from a2cap.pipeline.training.encoder.objectives import Objective
from a2cap.pipeline.training.training_parts import Validation


class EncoderInTraining(nn.Module):
    """An encoder and what it predicts."""

    def __init__(self, encoder: TrainableEncoder, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        levels = torch.tensor((encoder.mean[::-1], encoder.deviation[::-1]))  # red first
        self._levels: Tensor
        self.register_buffer("_levels", levels, persistent=False)

    def cells(self, pixels: Tensor) -> Tensor:
        """Return the cells of images, (B, S, S, 3) uint8 BGR on any device -> (B, h * w, C)."""
        mean, deviation = self._levels
        rgb = pixels.to(mean.device, non_blocking=True).flip(-1).float()
        images = (rgb - mean) / deviation
        feature_map: Tensor = self.encoder(images.permute(0, 3, 1, 2))  # in channels-last memory
        return feature_map.flatten(2).transpose(1, 2)


@dataclass(frozen=True)
class EncoderValidation(Validation):
    """What the objective predicts of whole validation images, which selects the best epoch."""

    network: EncoderInTraining
    data: CaptionedImages
    config: EncoderConfig
    ranks: Ranks
    workers: int

    @property
    def selected_by(self) -> str:
        """Name of the figure that selects the best epoch."""
        return self.config.selected

    def figures(self) -> dict[str, float]:
        """Return the score; each rank encodes its images, and all judge what all have encoded."""
        share = Share(self.ranks.rank, self.ranks.count)
        batches = Batches(
            self.data, collate, self.config.batch_size, 0, share=share, workers=self.workers
        )
        with torch.inference_mode():
            judged = [
                pair for parts in batches.epoch(0) for part in parts for pair in self._judged(part)
            ]
        everything = [pair for share in self.ranks.all_gather(judged) for pair in share]
        return {self.selected_by: self.network.objective.figure(everything)}

    def _judged(self, part: EncoderPart) -> list[tuple[Tensor, Tensor]]:
        """Return the judgement of a part, or of each half if a GPU lacks the memory."""
        try:
            pair = self.network.objective.judge(self.network.cells(part.pixels), part.tokens)
            return [(pair[0].cpu(), pair[1].cpu())]
        except torch.OutOfMemoryError:
            if len(part.image_ids) == 1:
                raise
        torch.cuda.empty_cache()
        return [pair for half in part.halves() for pair in self._judged(half)]
