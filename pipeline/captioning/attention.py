"""Attention of a captioner at each word of given captions, and its grounding."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from a2cap.data.annotations.instances import Instances
from a2cap.data.batches.collate import Batch
from a2cap.data.captions.attention_file import AttentionFile, CaptionAttention
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.regions import Regions
from a2cap.model.captioner import Captioner, StepAttention, trace_attention
from a2cap.pipeline.captioning.grounding import CategoryNames, Grounding, ground


@torch.inference_mode()
def attention_of_captions(
    captioner: Captioner,
    batches: Iterable[Batch],
    captions: Mapping[str, str],
    vocabulary: Vocabulary,
    *,
    device: torch.device,
) -> Iterator[tuple[str, CaptionAttention]]:
    """Yield (image id, attention at each word of its caption) in the order of the batches.

    The attention is averaged over layers, heads and captioners of an ensemble.
    """
    for batch in batches:
        on_device = batch.to(device)
        memory = captioner.encode(on_device.features, on_device.boxes, on_device.region_mask)
        tokens = [vocabulary.encode(captions[image_id].split()) for image_id in batch.image_ids]
        lengths = [len(numbers) for numbers in tokens]
        pad = captioner.special.pad
        # at least one column: a caption may be empty
        rows = [torch.tensor([*numbers] or [pad]) for numbers in tokens]
        padded = pad_sequence(rows, batch_first=True, padding_value=pad).to(device)
        steps = trace_attention(captioner, memory, padded)
        if not steps:  # a captioner without attention
            return
        regions = batch.region_mask.sum(dim=1).tolist()
        found = _split_by_image(steps, lengths, regions)
        yield from zip(batch.image_ids, found, strict=True)


def ground_captions(
    attention: AttentionFile,
    captions: Mapping[str, str],
    regions_of: Callable[[str], Regions],
    instances: Mapping[str, Instances],
) -> dict[str, Grounding]:
    """Measure the grounding of each caption that names an annotated category of its image.

    regions_of: image id -> the regions that were attended to.
    """
    images = [image_id for image_id in attention if image_id in instances]
    names = CategoryNames.of_images(instances[image_id] for image_id in images)
    found = {
        image_id: ground(
            captions[image_id].split(),
            attention[image_id],
            regions_of(image_id).boxes,
            instances[image_id],
            names,
        )
        for image_id in images
    }
    return {image_id: one for image_id, one in found.items() if one is not None}


def _split_by_image(
    steps: Sequence[StepAttention], lengths: Sequence[int], regions: Sequence[int]
) -> Iterator[CaptionAttention]:
    original = _stack([step.original for step in steps])
    aligned = _stack([step.aligned for step in steps])
    keep = _stack([step.keep for step in steps if step.keep is not None])
    gate = _stack([step.gate for step in steps if step.gate is not None])
    for row, (words, count) in enumerate(zip(lengths, regions, strict=True)):
        cells = (row, slice(words), slice(count))
        yield CaptionAttention(
            original=original[cells],
            aligned=aligned[cells],
            keep=keep[cells] if keep.size else None,
            gate=gate[row, :words, 0] if gate.size else None,  # one gate for all regions
        )


def _stack(steps: Sequence[Tensor]) -> NDArray[np.float32]:
    """Stack L steps of (B, R) to (B, L, R); return an empty array for no steps."""
    if not steps:
        return np.zeros(0, dtype=np.float32)
    return torch.stack(list(steps), dim=1).float().cpu().numpy()
