"""Captions of batches of images by a trained captioner: beam search, then words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch

from a2cap.data.batches.collate import Batch
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.model.captioner import Captioner
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.layers.packed_linear import UnchangedWeights
from a2cap.pipeline.captioning.ensemble import LoadedCaptioner
from a2cap.pipeline.evaluation.config import EvaluateConfig


@dataclass(frozen=True)
class Beam:
    """One finished caption: its words, and log p(caption) in nats as it was ranked."""

    caption: str
    score: float


@torch.inference_mode()
def caption_batches(
    captioner: Captioner,
    batches: Iterable[Batch],
    vocabulary: Vocabulary,
    *,
    beam_size: int,
    max_length: int,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    groups: int = 1,
    diversity: float = 0.5,
    collapse_repeats: bool = False,
    device: torch.device,
) -> Iterator[tuple[str, list[Beam]]]:
    """Yields (image id, beams with the best first) for each image, in the batches' order.

    What the captions are searched by is explained in `a2cap.model.decoding.beam_search`.
    collapse_repeats: a
    word that follows itself is said once; scores stay those of what was decoded. The captioner's
    weights must stay as they are until the last batch.
    """
    spell = without_repeats if collapse_repeats else str
    unchanged = UnchangedWeights()
    for batch in batches:
        on_device = batch.to(device)
        memory = captioner.encode(on_device.features, on_device.boxes, on_device.region_mask)
        with unchanged:
            found = beam_search(
                captioner,
                memory,
                beam_size=beam_size,
                max_length=max_length,
                length_penalty=length_penalty,
                no_repeat_ngram=no_repeat_ngram,
                groups=groups,
                diversity=diversity,
            )
        for image_id, hypotheses in zip(batch.image_ids, found, strict=True):
            yield (
                image_id,
                [Beam(spell(vocabulary.decode(h.tokens)), float(h.score)) for h in hypotheses],
            )


def caption_as_configured(
    config: EvaluateConfig,
    loaded: LoadedCaptioner,
    batches: Iterable[Batch],
    *,
    device: torch.device,
) -> Iterator[tuple[str, list[Beam]]]:
    """The same, by a loaded captioner and as section `evaluate` says."""
    return caption_batches(
        loaded.captioner,
        batches,
        loaded.vocabulary,
        beam_size=config.beam_size,
        max_length=config.max_length,
        length_penalty=config.length_penalty,
        no_repeat_ngram=config.no_repeat_ngram,
        groups=config.groups,
        diversity=config.diversity,
        collapse_repeats=config.collapse_repeats,
        device=device,
    )


def without_repeats(caption: str) -> str:
    """The caption with each run of one word said once."""
    return " ".join(word for word, _ in groupby(caption.split()))
