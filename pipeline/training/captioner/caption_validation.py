"""Validation of a captioner in training by CIDEr, and the batches that it is trained on."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from a2cap.data.batches.collate import EXACT, FEW_SHAPES, Batch, Item, collate
from a2cap.data.batches.dataset import CaptionDataset, Grouping
from a2cap.data.batches.loader import Batches, Share, image_batches
from a2cap.data.captions.vocabulary import EOS, PAD
from a2cap.data.errors import InputError
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.faithfulness import divergence_by_layer
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.captioning.model_description import ModelDescription
from a2cap.pipeline.metrics.all_metrics import corpus_score
from a2cap.pipeline.metrics.metric_table import metric_name
from a2cap.pipeline.metrics.pycocoevalcap import require_metric_files
from a2cap.pipeline.metrics.tokenization import metric_tokens
from a2cap.pipeline.runtime.device import compiles_updates
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.runtime.training_precision import deterministic_operations, matrix_precision
from a2cap.pipeline.training.captioner.train_config import CaptionerTrainingConfig, ScstConfig
from a2cap.pipeline.training.captioner.training_data import TrainingData
from a2cap.pipeline.training.selection import VALIDATION_LOSS

logger = logging.getLogger(__name__)

_MONITORED_IMAGES = 20  # validation images over which the divergence of attention is averaged
_LEAST_KEPT, _MOST_KEPT = 0.5, 0.98  # range of the mean mask in which alignment works
_VALIDATION_BATCH = 50  # images decoded at once


def training_batches(
    validation: "CaptionValidation",
    runtime: RuntimeConfig,
    *,
    grouping: Grouping | Literal["length"] = "image",
    max_words: int | None = None,
) -> Batches[Item, Batch]:
    """Return the batches of the training that is validated."""
    ranks, data, config = validation.ranks, validation.data, validation.config
    rounding = EXACT
    if compiles_updates(runtime, validation.device, deterministic=config.deterministic):
        # slots and cells are as many as the regions
        is_padded = validation.captioner.regions_are_a_set
        rounding = replace(FEW_SHAPES, regions=FEW_SHAPES.regions if is_padded else 1)
    dataset = CaptionDataset(
        data.store.path,
        data.captions,
        "train",
        captions_per_image=config.captions_per_image,
        max_regions=validation.description.max_regions,
        seed=config.seed,
        grouping="caption" if grouping == "length" else grouping,
        max_words=max_words,
        skipped=data.skipped,
    )
    return Batches(
        dataset,
        partial(collate, pinned=validation.device.type == "cuda", rounding=rounding),
        config.batch_size,
        config.seed,
        share=Share(ranks.rank, ranks.count, config.accumulate),
        workers=runtime.workers,
        groups=dataset.lengths() if grouping == "length" else None,
        parts=dataset.parts() if config.shuffle_window else None,
        window=config.shuffle_window,
    )


def start_score(validation: "CaptionValidation") -> float:
    """Validate a captioner before its training; return the score that selects the best epoch.

    Takes no random number of the training's.
    """
    device, config = validation.device, validation.config
    switch = deterministic_operations(device) if config.deterministic else nullcontext()
    gpus = [device] if device.type == "cuda" else []
    validation.captioner.eval()
    with matrix_precision(config.precision), switch, torch.random.fork_rng(gpus):
        return validation.figures()[validation.selected_by]


@dataclass(frozen=True)
class CaptionValidation:
    """CIDEr on the validation split, of captions decoded as in the evaluation."""

    captioner: EncoderDecoder
    data: TrainingData
    config: CaptionerTrainingConfig
    description: ModelDescription
    ranks: Ranks
    start: float | None = None
    """The score of the captioner that is trained further, None for a new one."""

    def __post_init__(self) -> None:
        images = self.data.validation[: self.config.max_validation_images]
        if self.config.select == "CIDEr" and len(images) == 1:
            logger.warning(
                "only one image is validated, %r: its CIDEr is 0 whatever the caption, so the "
                "validation loss selects and patience never ends the training; validate on more, "
                "or set train.select and scst.select to loss",
                images[0],
            )
        if self.config.select != "METEOR":
            return
        if (tokens := metric_tokens(self.data.vocabulary.tokenizer)) != "PTB":
            raise InputError(
                "select is 'METEOR', which reads English alone, and the captions are "
                f"{tokens}; set train.select and scst.select to CIDEr, BLEU-4 or loss"
            )
        require_metric_files()  # now, not after the first epoch

    @property
    def selected_by(self) -> str:
        """Name of the figure that selects the best epoch."""
        return self.config.selected

    @property
    def device(self) -> torch.device:
        """Device of the captioner."""
        return next(self.captioner.parameters()).device

    def figures(self) -> dict[str, float]:
        """Return the loss on the references, CIDEr, and what selects.

        Each rank decodes a share, and the main rank scores all.
        """
        ranks, data = self.ranks, self.data
        scores = self._loss()
        image_ids = data.validation[: self.config.max_validation_images]
        decoded = caption_batches(
            self.captioner,
            self._batches(),
            data.vocabulary,
            DecodingConfig(
                beam_size=self.config.validation_beam_size, max_length=self.config.max_length
            ),
            device=self.device,
        )
        shares = ranks.all_gather([(name, beams[0].caption) for name, beams in decoded])
        if not ranks.is_main:
            return ranks.all_gather({})[0]  # waits for the figures of the main rank
        candidates = dict(pair for share in shares for pair in share)
        references = {image_id: data.references[image_id] for image_id in image_ids}
        for name in dict.fromkeys(("CIDEr", self.config.select)):
            if name != "loss":
                scores[name] = corpus_score(metric_name(name), candidates, references)
        return ranks.all_gather(scores)[0]

    @torch.inference_mode()
    def _loss(self) -> dict[str, float]:
        """Return the loss of the references in nats per token, and what `select` makes of it."""
        ranks, captions = self.ranks, self.data.captions
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for batch in self._batches():
            rows = [torch.from_numpy(captions.captions(name)).long() for name in batch.image_ids]
            tokens = pad_sequence(rows, batch_first=True, padding_value=PAD).to(self.device)
            images = batch.to(self.device)
            memory = self.captioner.encode(images.features, images.boxes, images.region_mask)
            sums[0] -= self.captioner.score(memory, tokens).log_probs.sum()
            sums[1] += (tokens != PAD).sum()
        loss, count = ranks.sum(sums).tolist()
        selects = self.config.select == "loss"
        likelihood = {self.selected_by: math.exp(-loss / count)} if selects else {}
        return {VALIDATION_LOSS: loss / count, **likelihood}

    def _batches(self) -> Iterator[Batch]:
        """Yield this rank's share of the validation images."""
        image_ids = self.data.validation[: self.config.max_validation_images]
        return image_batches(
            self.data.store.path,
            image_ids[self.ranks.rank :: self.ranks.count],
            batch_size=_VALIDATION_BATCH,
            max_regions=self.description.max_regions,
        )

    @torch.inference_mode()
    def scalars(self) -> dict[str, float]:
        """Return JSD(alpha, alpha^a) in nats per layer, over tokens of references (Eq. 13).

        Uses the first reference of the first 20 validation images.
        """
        if not self.captioner.has_masks:
            return {}
        image_ids = self.data.validation[:_MONITORED_IMAGES]
        # the batches of a loader, so that regions are limited and padded as in training
        [batch] = image_batches(
            self.data.store.path,
            image_ids,
            batch_size=len(image_ids),
            max_regions=self.description.max_regions,
        )
        references = [self.data.references[name][0].split() for name in image_ids]
        captions = [
            torch.tensor([*self.data.vocabulary.encode(words), EOS]) for words in references
        ]
        tokens = pad_sequence(captions, batch_first=True, padding_value=PAD).to(self.device)
        images = batch.to(self.device)
        memory = self.captioner.encode(images.features, images.boxes, images.region_mask)
        divergences = divergence_by_layer(self.captioner, memory, tokens)
        return {f"JSD/layer_{number}": value for number, value in enumerate(divergences, start=1)}

    def warn(self, line: Mapping[str, float]) -> None:
        """Log a warning if the score fell, or the masks hide almost nothing or most of an image."""
        if self.start is not None and line[self.selected_by] < self.start:
            section = "scst" if isinstance(self.config, ScstConfig) else "train"
            logger.warning(
                "validation %s is %.3f, below %.3f at the start; lower %s.lr if it stays there",
                *(self.selected_by, line[self.selected_by], self.start, section),
            )
        if self.captioner.config.blind:
            return  # a control: what its masks hide means nothing
        mean_mask = line.get("mean_mask", math.nan)  # every comparison with nan is False
        if mean_mask > _MOST_KEPT:
            logger.warning(
                "mean mask is %.4f: masks above %s hardly change attention; "
                "lower model.alignment.penalty_weight",
                mean_mask,
                _MOST_KEPT,
            )
        elif mean_mask < _LEAST_KEPT:
            logger.warning(
                "mean mask is %.4f: masks below %s hide most of every image; "
                "raise model.alignment.penalty_weight",
                mean_mask,
                _LEAST_KEPT,
            )
