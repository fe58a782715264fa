"""Alignment of self-attention to an image that is part of the prompt, as in LLaVA or PaliGemma.

A row of such an attention has weights of the image and weights of text. Eq. 2-10 act on the
image's alone, scaled to a sum of 1, which is the alpha of a cross-attention; the result is scaled
back by s, the share of the row that was the image's. Weights of text do not change. What alignment
changes is added to the states o that the model's own function computes,

    o + s * sum over image tokens r of (alpha^a_r - alpha_r) v_r,

so that masks which change nothing leave each bit, whatever the function. The aligned rows are those
from the image's last token on: they predict the text after the image.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from a2cap.model.adapting.adapted_attention import AdaptedAttention
from a2cap.model.adapting.image_columns import ImageColumns, find_columns, has_image_tokens, padded
from a2cap.model.alignment import AlignedAttention, Alignment, DecoderPass, at_least_float32
from a2cap.model.errors import ModelError


@dataclass(frozen=True)
class SelfInputs:
    """What a self-attention reads: states (B, Q, D), the KV cache or None, and the keys before it.

    past: keys that were read in earlier calls.
    """

    hidden: Tensor
    cache: Any
    past: int


def change_of_states(
    adapted: AdaptedAttention,
    queries: Tensor,
    values: Tensor,
    attention_mask: Tensor | None,
    inputs: SelfInputs,
    *,
    weigh: Callable[[Tensor, Tensor], Tensor],
    dropout: float,
) -> Tensor:
    """Return what alignment adds to the states of a self-attention, (B, Q, H, d), and record it.

    queries: (B, H, Q, d).
    values: (B, G, K, d), G groups of heads.
    attention_mask: (B, 1, Q, K), bool, True where to attend, or the summand of the scores.
    weigh: from queries and bias (B, 1, Q, K) to weights.
    Dropout acts on the change by itself, which keeps its expectation.
    """
    assert adapted.alignment is not None
    with adapted.running() as now:
        image = _image(adapted, inputs)
        start = max(0, image.first - inputs.past)
        rows = queries[:, :, start:]
        # (B, 1, Q, K); Q of the aligned rows from here on
        bias = _bias(attention_mask, queries, values.shape[2], inputs.past)[:, :, start:]
        weights = at_least_float32(weigh(rows, bias))
        # a sliding KV cache has dropped the first keys
        kept = image.positions - max(0, inputs.past + queries.shape[2] - values.shape[2])
        index = kept.clamp(min=0)[:, None, None]
        place = inputs.past + torch.arange(start, queries.shape[2], device=queries.device)
        is_aligned = (place >= image.last[:, None])[:, None, :, None]
        is_key = (image.exists & (kept >= 0))[:, None, None]
        is_attended = bias.gather(-1, index.expand(-1, -1, rows.shape[2], -1)) > _least(bias.dtype)
        is_read = is_attended & is_key & is_aligned  # -> (B, 1, Q, N)
        original = weights.gather(-1, index.expand(*weights.shape[:3], -1)).masked_fill(~is_read, 0)
        aligned, change = _align(
            adapted.alignment,
            original,
            is_read,
            image,
            queries=rows,
            hidden=inputs.hidden[:, start:],
            decoder_pass=now,
        )
    adapted.record(aligned, image.exists, is_of_image=True)
    change = functional.dropout(change, dropout) if dropout else change
    picked = index[:, 0, 0, :, None].expand(-1, -1, values.shape[-1])[:, None]
    image_values = values.gather(2, picked.expand(-1, values.shape[1], -1, -1))
    image_values = image_values.repeat_interleave(queries.shape[1] // values.shape[1], dim=1)
    added = (change.to(values.dtype) @ image_values).transpose(1, 2)  # -> (B, Q, H, d)
    return functional.pad(added, (0, 0, 0, 0, start, 0))


def _align(
    alignment: Alignment,
    original: Tensor,
    is_read: Tensor,
    image: ImageColumns,
    *,
    queries: Tensor,
    hidden: Tensor,
    decoder_pass: DecoderPass,
) -> tuple[AlignedAttention, Tensor]:
    """Align the image's weights of each row; returns also their change, (B, H, Q, N).

    original: (B, H, Q, N).
    is_read: (B, 1, Q, N) bool.
    Rows that read no image stay as they are.
    """
    share = original.sum(dim=-1, keepdim=True)
    alpha = original / share.clamp(min=torch.finfo(share.dtype).tiny)
    reads = is_read.to(alpha.dtype)
    uniform = reads / reads.sum(dim=-1, keepdim=True).clamp(min=1)
    aligned: AlignedAttention = alignment(
        alpha,
        queries=queries,
        hidden=hidden,
        mask_keys=image.mask_keys,
        region_mask=image.exists,
        # the logarithms of 1 and of 0
        decoder_pass=replace(decoder_pass, bias=reads.log(), uniform=uniform),
    )
    change = (aligned.used - alpha) * share
    return replace(aligned, original=original, used=original + change), change


def _image(adapted: AdaptedAttention, inputs: SelfInputs) -> ImageColumns:
    """Return the image's columns: of the first call, or held in its KV cache."""
    assert adapted.alignment is not None
    rows = len(inputs.hidden)
    held = {} if inputs.cache is None else vars(inputs.cache).setdefault("a2_columns", {})
    if inputs.past:
        seen: ImageColumns | None = held.get(adapted.layer)
        if seen is None or len(seen.last) != rows:
            raise ModelError(
                f"the KV cache does not hold the image of {rows} rows; begin with an empty cache"
            )
        if inputs.hidden.shape[1] > 1 and has_image_tokens():
            raise ModelError(
                "image tokens follow the first call of the model; give all images in one prompt, "
                "without prefill_chunk_size"
            )
        return seen
    columns = find_columns(rows)
    positions, exists = padded(columns), padded(columns, -1) >= 0
    last = torch.stack([row[-1] for row in columns])
    index = positions[..., None].expand(-1, -1, inputs.hidden.shape[-1])
    mask_keys = adapted.alignment.mask_network.project(inputs.hidden.gather(1, index))
    image = ImageColumns(positions, exists, last, int(last.min()), mask_keys)
    held[adapted.layer] = image
    return image


def _least(dtype: torch.dtype) -> float:
    """Return the least summand of a score that is attended to; a mask has less."""
    return torch.finfo(dtype).min / 2


def _bias(attention_mask: Tensor | None, queries: Tensor, keys: int, past: int) -> Tensor:
    """Return a self-attention's mask as a summand of its scores, (B, 1, Q, K)."""
    rows, count, device = len(queries), queries.shape[2], queries.device
    if attention_mask is None:  # causal, in any kernel
        dropped = max(0, past + count - keys)
        place = torch.arange(past, past + count, device=device)[:, None]
        attention_mask = torch.arange(dropped, dropped + keys, device=device) <= place
    attention_mask = attention_mask.expand(rows, 1, count, -1)
    if attention_mask.is_floating_point():
        return attention_mask
    bias = torch.zeros(attention_mask.shape, dtype=queries.dtype, device=device)
    return bias.masked_fill(~attention_mask, torch.finfo(bias.dtype).min)
