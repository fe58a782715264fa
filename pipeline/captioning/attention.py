"""Attention of a captioner at each word of given captions, and its grounding."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

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
from a2cap.model.alignment import AlignedAttention
from a2cap.model.captioner import CaptionModel, StepAttention, trace_attention
from a2cap.model.erasure import kept_log_probs
from a2cap.pipeline.captioning.grounding import Grounding, ground, names_in


@torch.inference_mode()
def attention_of_captions(
    captioner: CaptionModel,
    batches: Iterable[Batch],
    captions: Mapping[str, str],
    vocabulary: Vocabulary,
    *,
    device: torch.device,
    layers: bool = False,
) -> Iterator[tuple[str, CaptionAttention]]:
    """Yield (image id, attention at each word of its caption) in the order of the batches.

    The attention is averaged over layers, heads and captioners of an ensemble; with `layers`, that
    of each layer and head is there too.
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
        joined = join_steps(steps, layers=layers)
        for row, image_id in enumerate(batch.image_ids):
            yield image_id, of_image(joined, row, lengths[row], regions[row])


@torch.inference_mode()
def certify_captions(
    captioner: CaptionModel,
    batches: Iterable[Batch],
    captions: Mapping[str, str],
    attention_of: Callable[[str], CaptionAttention],
    vocabulary: Vocabulary,
    *,
    device: torch.device,
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (image id, what its words depend on) in one masked forward pass for each image.

    (L, 3) or, without alignment, (L, 2): probability of each word given all regions, without the
    region that is attended to most, and without the one that is after alignment. Images of one
    region and captions without words are left out.
    """
    for batch in batches:
        on_device = batch.to(device)
        for row, image_id in enumerate(batch.image_ids):
            exists, record = on_device.region_mask[row], attention_of(image_id)
            if exists.sum() < 2 or not len(record.original):
                continue
            kinds = [record.original] if record.keep is None else [record.original, record.aligned]
            tokens = torch.tensor(vocabulary.encode(captions[image_id].split()), device=device)
            log_probs_of = partial(
                kept_log_probs,
                captioner,
                on_device.features[row, exists],
                on_device.boxes[row, exists],
                caption=tokens,
            )
            yield (
                image_id,
                certificates([torch.from_numpy(k).to(device) for k in kinds], log_probs_of),
            )


def certificates(
    kinds: Sequence[Tensor],
    log_probs_of: Callable[[Tensor], Tensor],
    *,
    words: Tensor | None = None,
) -> NDArray[np.float32]:
    """Return the probability of each word, and without the region that it attends to most.

    kinds: K attentions (W, R) of the words.
    log_probs_of: from subsets (S, R) bool of the regions to log-probabilities of tokens, (S, T).
    words: (W, T), 1 for the tokens of a word; None if each token is a word.
    Returns (W, 1 + K).
    """
    tops = torch.stack([kind.argmax(dim=1) for kind in kinds])  # -> (K, W)
    removed, index = torch.unique(tops, return_inverse=True)  # of few regions for many words
    kept = tops.new_ones(len(removed) + 1, kinds[0].shape[1], dtype=torch.bool)
    kept[torch.arange(len(removed)), removed] = False
    log_probs = log_probs_of(kept)
    if words is not None:
        log_probs = log_probs @ words.T  # (S, T) -> (S, W)
    evidence = torch.cat((log_probs[-1:], log_probs[index, torch.arange(tops.shape[1])]))
    return evidence.exp().T.float().cpu().numpy()


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
    names = names_in(instances[image_id] for image_id in images)
    measured = {
        image_id: ground(
            captions[image_id].split(),
            attention[image_id],
            regions_of(image_id).boxes,
            instances[image_id],
            names,
        )
        for image_id in images
    }
    return {image_id: g for image_id, g in measured.items() if g is not None}


def join_steps(steps: Sequence[StepAttention], *, layers: bool) -> CaptionAttention:
    """Join the attention of L steps for N rows; arrays (N, L, R), those of layers (N, H, L, R)."""
    averaged = _stack([AlignedAttention(s.original, s.aligned, s.keep, s.gate) for s in steps])
    # every layer's steps; none unless they are wanted, as they are many
    heads = map(_stack, zip(*(s.layers for s in steps), strict=True)) if layers else ()
    return replace(averaged, layers=tuple(heads))


def _stack(steps: Sequence[AlignedAttention]) -> CaptionAttention:
    """Stack L steps of (B, ..., R) to (B, ..., L, R)."""

    def join(tensors: Sequence[Tensor]) -> NDArray[np.float32]:
        joined: NDArray[np.float32] = torch.stack(list(tensors), dim=-2).float().cpu().numpy()
        return joined

    keep = [step.keep for step in steps if step.keep is not None]
    gate = [step.gate for step in steps if step.gate is not None]
    return CaptionAttention(
        join([step.original for step in steps]),
        join([step.used for step in steps]),
        join(keep) if keep else None,
        join(gate) if gate else None,
    )


def of_image(joined: CaptionAttention, row: int, words: int, count: int) -> CaptionAttention:
    """Return the part of one row of `join_steps`; its gate is the same for all regions."""
    cells = (row, ..., slice(words), slice(count))
    return joined.map(lambda values: values[cells], lambda gate: gate[row, ..., :words, 0])
