"""Monitor of alignment during training: the masks, and their effect on attention."""

import logging

import torch
from torch.nn.utils.rnn import pad_sequence

from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.vocabulary import EOS, PAD
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.faithfulness import divergence_by_layer
from a2cap.pipeline.training.captioner.data import TrainingData

logger = logging.getLogger(__name__)

MONITORED_IMAGES = 20
"""Validation images over which the divergence of attention is averaged."""

LEAST_KEPT, MOST_KEPT = 0.5, 0.98
"""Range of the mean mask in which alignment works."""


def warn_of_idle_masks(mean_mask: float) -> None:
    """Log a warning if the masks hide almost nothing, or most of every image."""
    if mean_mask > MOST_KEPT:
        logger.warning(
            "mean mask is %.4f: masks above %s hardly change attention; "
            "lower model.alignment.penalty_weight",
            mean_mask,
            MOST_KEPT,
        )
    elif mean_mask < LEAST_KEPT:
        logger.warning(
            "mean mask is %.4f: masks below %s hide most of every image; "
            "raise model.alignment.penalty_weight",
            mean_mask,
            LEAST_KEPT,
        )


@torch.inference_mode()
def validation_divergences(
    captioner: TransformerCaptioner, data: TrainingData, *, max_regions: int | None
) -> list[float]:
    """Return JSD(alpha, alpha^a) in nats per layer, over tokens of references (Eq. 13).

    The captioner must be in eval mode. Uses the first reference of the first 20 validation images.
    """
    device = next(captioner.parameters()).device
    chosen = data.validation[:MONITORED_IMAGES]
    [batch] = image_batches(
        data.store.path, chosen, batch_size=len(chosen), max_regions=max_regions
    )
    captions = [
        torch.tensor([*data.vocabulary.encode(data.references[name][0].split()), EOS])
        for name in chosen
    ]
    tokens = pad_sequence(captions, batch_first=True, padding_value=PAD).to(device)
    images = batch.to(device)
    memory = captioner.encode(images.features, images.boxes, images.region_mask)
    return divergence_by_layer(captioner, memory, tokens)
