"""What an attention of `transformers` becomes: one that is recorded, and aligned if asked for.

The parameters of the model keep their names; those of alignment are in a submodule `a2` of each
attention, so that `save_pretrained` and optimisers of others find them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    DecoderPass,
    RegionProjection,
    caption_parameters,
    mask_parameters,
    scaled_product,
)
from a2cap.model.attention.region_attention import attend
from a2cap.model.replaced_parameters import frozen


@dataclass
class Recorded:
    """Attention of the calls in a `recording`, in their order.

    layers: number of a layer -> its attention; region_mask: (B, R) bool, of an aligned layer.
    columns: (B, N) int64, positions of the image's tokens in the prompt, padded with 0; only their
    attention is kept. None keeps that of all keys.
    """

    columns: Tensor | None = None
    layers: dict[int, list[AlignedAttention]] = field(default_factory=dict)
    region_mask: Tensor | None = None
    _read: dict[int, int] = field(default_factory=dict)

    def of_columns(self, layer: int, attention: AlignedAttention, queries: int) -> AlignedAttention:
        """Return the attention (B * rows, H, Q, keys) to the columns alone.

        queries: new tokens of the call. A sliding KV cache has dropped the first keys, to which
        nothing attends any more.
        """
        assert self.columns is not None
        rows, *_, keys = attention.original.shape
        self._read[layer] = queries if keys == queries else self._read.get(layer, 0) + queries
        kept = self.columns.repeat_interleave(rows // len(self.columns), dim=0)
        kept = (kept - max(0, self._read[layer] - keys))[:, None, None]

        def select(values: Tensor) -> Tensor:
            if values.shape[-1] == 1 < keys:  # a gate
                return values
            index = kept.clamp(min=0).expand(*values.shape[:3], -1)
            return values.gather(-1, index).masked_fill(kept < 0, 0)

        original = select(attention.original)
        if attention.used is attention.original:
            return AlignedAttention(original, original)
        return attention.each(select)


_recorded: ContextVar[Recorded | None] = ContextVar("recorded", default=None)


@contextmanager
def recording(columns: Tensor | None = None) -> Iterator[Recorded]:
    """Record the attention of every adapted layer that runs in the block, in this thread.

    columns: of `Recorded`.
    """
    recorded = Recorded(columns)
    token = _recorded.set(recorded)
    try:
        yield recorded
    finally:
        _recorded.reset(token)


@dataclass(frozen=True)
class CrossInputs:
    """What a cross-attention reads.

    hidden: (B, Q, D), the decoder's states.
    regions: (B, R, F), the encoder's output.
    cache: the KV cache of `transformers`, or None.
    is_cached: True if it holds the keys of these regions.
    """

    hidden: Tensor
    regions: Tensor
    cache: Any
    is_cached: bool


class AdaptedAttention(nn.Module):
    """Recorder of one attention, and its alignment if there is one.

    layer: number of the attention in the model, 0 the lowest; reads_prompt: True if its keys are
    those of the prompt. Outside an `alignment_pass` it aligns as at `schedule_step` and gives the
    mask network no gradient.
    """

    schedule_step: Tensor

    def __init__(self, *, layer: int, reads_prompt: bool, alignment: Alignment | None):
        super().__init__()
        self.layer, self.reads_prompt = layer, reads_prompt
        self.decoder_pass: DecoderPass | None = None
        self.alignment = alignment
        if alignment is not None:
            # s of the exponential decay (Eq. 8), which inference needs too
            self.register_buffer("schedule_step", torch.zeros((), dtype=torch.int64))

    @property
    def is_recorded(self) -> bool:
        """Report whether a `recording` is open."""
        return _recorded.get() is not None

    def record(
        self,
        attention: AlignedAttention,
        region_mask: Tensor | None = None,
        *,
        queries: int | None = None,
        is_of_image: bool = False,
    ) -> None:
        """Add the attention to the open `recording`, if there is one.

        queries: tokens that a self-attention read in this call; None in a cross-attention, whose
        keys are there from the first call. is_of_image: True if it has the image's columns alone.
        """
        recorded = _recorded.get()
        if recorded is None:
            return
        if self.reads_prompt and recorded.columns is not None and not is_of_image:
            read = attention.original.shape[-1] if queries is None else queries
            attention = recorded.of_columns(self.layer, attention, read)
        recorded.layers.setdefault(self.layer, []).append(attention)
        recorded.region_mask = recorded.region_mask if region_mask is None else region_mask

    @contextmanager
    def running(self) -> Iterator[DecoderPass]:
        """Yield the pass that runs; the graph built in the block trains one side alone."""
        now = self.decoder_pass or DecoderPass(self.schedule_step)
        frozen_parameters = caption_parameters(self) if now.perturbed else mask_parameters(self)
        with frozen(self, frozen_parameters):
            yield now

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: CrossInputs,
        *,
        scale: float,
        region_mask: Tensor,
        dropout: float,
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend with aligned weights (Eq. 2-10).

        queries: (B, H, Q, d).
        keys, values: (B, H, R, d).
        scale: factor of their products.
        region_mask: (B, R) bool.
        Returns (B, H, Q, d) and the attention before dropout.
        """
        assert self.alignment is not None
        with self.running() as running:
            now = replace(running, dropout=dropout)
            states, attention = attend(
                scaled_product(queries, keys, scale=scale, bias=now.padding(region_mask)),
                RegionProjection(keys, values, region_mask, self._mask_keys(inputs, now)),
                self.alignment,
                queries=queries,
                hidden=inputs.hidden,
                decoder_pass=now,
            )
        self.record(attention, region_mask)
        return states, attention

    def _mask_keys(self, inputs: CrossInputs, now: DecoderPass) -> Tensor:
        """Project the regions for the mask network, once per KV cache."""
        assert self.alignment is not None
        held = None if inputs.cache is None else vars(inputs.cache).setdefault("a2_mask_keys", {})
        if held is not None and inputs.is_cached and self.layer in held:
            keys: Tensor = held[self.layer]
            return keys
        # the loss of the perturbed pass must not reach an encoder outside of the pass
        regions = inputs.regions.detach() if now.perturbed else inputs.regions
        projected = self.alignment.mask_network.project(regions)
        if held is not None:
            held[self.layer] = projected
        return projected
