"""The A2 Transformer captioner (Fei, "Attention-Aligned Transformer for Image Captioning", 2022).

Training runs two passes over the same captions. The aligned pass uses the fused attention of
Eq. 5-10 and trains theta, the captioner. The perturbed pass uses the attention of Eq. 3 and trains
theta_m, the mask networks. Each pass freezes the other side's parameters while it builds its graph,
so that one `backward()` of the sum of both losses gives each side the gradient of its own loss.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import AlignedAttention, Alignment, DecoderPass, RegionProjection
from a2cap.model.captioner import (
    DecoderState,
    Memory,
    ScoredCaptions,
    SpecialTokens,
    StepOutput,
    average_attention,
    decoder_input,
)
from a2cap.model.captioners.transformer.decoder import CaptionDecoder, DecoderOutput
from a2cap.model.captioners.transformer.encoder import BOX_VALUES, RegionEncoder
from a2cap.model.config import ModelConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers.kv_cache import KVCache


@contextmanager
def frozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Freeze parameters: the graph built inside gives them no gradient, but passes it on."""
    if not torch.is_grad_enabled():
        yield
        return
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


class TransformerCaptioner(nn.Module):
    """Visual encoder and caption decoder with aligned cross-attention; an `AlignedCaptioner`.

    feature_width: F; vocabulary_size: V, special tokens included.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        feature_width: int,
        vocabulary_size: int,
        special: SpecialTokens | None = None,
    ):
        super().__init__()
        self.config = config
        self.feature_width = feature_width
        self.vocabulary_size = vocabulary_size
        self.special = special or SpecialTokens()
        self.encoder = RegionEncoder(config, feature_width=feature_width)
        self.decoder = CaptionDecoder(config, vocabulary_size=vocabulary_size)
        self.schedule_step: Tensor
        self.register_buffer("schedule_step", torch.zeros((), dtype=torch.int64))

    @property
    def has_masks(self) -> bool:
        """Report whether any layer is aligned, which gives a mask loss."""
        return any(True for _ in self.mask_parameters())

    def mask_parameters(self) -> Iterator[nn.Parameter]:
        """Yield theta_m, the parameters of the mask networks."""
        for module in self.modules():
            if isinstance(module, Alignment):
                yield from module.mask_network.parameters()

    def caption_parameters(self) -> Iterator[nn.Parameter]:
        """Yield theta, all other parameters."""
        masks = {id(parameter) for parameter in self.mask_parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in masks)

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Encode B images and project their regions for every decoder layer.

        boxes are unused without `box_geometry`; shapes as in `Captioner`. Raises ModelError for
        other widths or shapes and for an image without a region.
        """
        self._check_regions(features, boxes, region_mask)
        states = self.encoder(features, boxes, region_mask)
        with frozen(self.mask_parameters()):
            projections = tuple(one.project(states) for one in self.decoder.cross_attentions())
        return Memory(states, region_mask, projections)

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """Create the state before <bos>, with rows_per_image rows for each image."""
        return DecoderState(memory, rows_per_image)

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Predict the next token, (N, V), after one token per row, (N,) int64, <bos> first.

        Raises ModelError for tokens of another shape or out of the vocabulary.
        """
        memory = state.memory
        self._check_tokens(tokens, (len(memory) * state.rows_per_image,))
        caches = list(map(KVCache, state.tensors[::2], state.tensors[1::2]))
        with frozen(self.mask_parameters()):
            decoded, caches = self.decoder.step(
                tokens,
                memory.projections,
                caches,
                region_mask=memory.region_mask,
                decoder_pass=DecoderPass(self.schedule_step),
            )
        return StepOutput(
            self.decoder.log_probs(decoded.states.squeeze(1)),
            average_attention(tuple(map(_by_row, decoded.attention))) if attention else None,
            replace(state, tensors=tuple(values for cache in caches for values in cache)),
        )

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return log-probabilities (B, K, L, V) of every next token in the aligned pass.

        tokens: (B, K, L) int64, <bos> first; position t predicts token t + 1. Gives the mask
        networks no gradient.
        """
        self._check_tokens(tokens, (len(memory), *tokens.shape[1:]))
        with frozen(self.mask_parameters()):
            decoded = self.decoder(
                tokens.flatten(0, 1),
                memory.projections,
                region_mask=memory.region_mask,
                decoder_pass=DecoderPass(self.schedule_step),
            )
        log_probs = self.decoder.log_probs(decoded.states)
        return log_probs.reshape(*tokens.shape, -1)

    def score(self, memory: Memory, captions: Tensor, *, perturbed: bool = False) -> ScoredCaptions:
        """Return the log-probability of each token of given captions.

        captions: (B, K, L) int64, tokens, <eos>, padding, no <bos>. The perturbed pass gives only
        the mask networks a gradient (the memory gets none either); the aligned pass gives them
        none.
        """
        below = self._decode_below_masks(memory, captions)
        return self._score(memory, captions, below, perturbed=perturbed)

    def score_both(self, memory: Memory, captions: Tensor) -> tuple[ScoredCaptions, ScoredCaptions]:
        """Score captions in the aligned and in the perturbed pass.

        Both drop the same units below the first mask, so their difference shows the masks.
        """
        below = self._decode_below_masks(memory, captions)
        aligned = self._score(memory, captions, below, perturbed=False)
        return aligned, self._score(memory, captions, below, perturbed=True)

    def _decode_below_masks(self, memory: Memory, captions: Tensor) -> DecoderOutput:
        self._check_tokens(captions, (len(memory), *captions.shape[1:]))
        return self.decoder.decode_below_masks(
            decoder_input(captions, bos=self.special.bos).flatten(0, 1),
            memory.projections,
            region_mask=memory.region_mask,
            decoder_pass=DecoderPass(self.schedule_step),
        )

    def _score(
        self, memory: Memory, captions: Tensor, below: DecoderOutput, *, perturbed: bool
    ) -> ScoredCaptions:
        is_token = captions != self.special.pad
        with frozen(self.caption_parameters() if perturbed else self.mask_parameters()):
            if perturbed:
                memory, below = self._detach(memory), replace(below, states=below.states.detach())
            decoded = self.decoder(
                decoder_input(captions, bos=self.special.bos).flatten(0, 1),
                memory.projections,
                region_mask=memory.region_mask,
                decoder_pass=DecoderPass(self.schedule_step, perturbed=perturbed),
                below_masks=below,
            )
            # The output layer is the largest product: skip it on padding.
            logits = self.decoder.output(decoded.states.reshape(*captions.shape, -1)[is_token])
        log_probs = -functional.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)),
            captions[is_token],
            reduction="none",
        )
        scattered = log_probs.new_zeros(captions.shape).masked_scatter(is_token, log_probs)
        return ScoredCaptions(scattered, decoded.attention)

    def _detach(self, memory: Memory) -> Memory:
        """Detach the memory, except for the mask networks' own projections of it."""
        states = memory.states.detach()
        projections = tuple(
            RegionProjection(
                projected.keys.detach(),
                projected.values.detach(),
                cross_attention.project_mask_keys(states),
            )
            for projected, cross_attention in zip(
                memory.projections, self.decoder.cross_attentions(), strict=True
            )
        )
        return Memory(states, memory.region_mask, projections)

    def _check_regions(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> None:
        if features.shape[-1] != self.feature_width:
            raise ModelError(
                f"region width is {features.shape[-1]}, the model expects {self.feature_width}; "
                "retrain, or extract with the checkpoint that it was trained on"
            )
        expected = (*features.shape[:-1], BOX_VALUES)
        if boxes.shape != expected:
            raise ModelError(
                f"boxes have shape {tuple(boxes.shape)}, the features need {expected}; "
                "give each region x1, y1, x2, y2 and its share of the area"
            )
        if not region_mask.any(dim=1).all():
            empty = (~region_mask.any(dim=1)).nonzero()[0].item()
            raise ModelError(
                f"an image has no region: position {empty} of the batch; "
                "leave the image out, or extract it again"
            )

    def _check_tokens(self, tokens: Tensor, expected: tuple[int, ...]) -> None:
        if tokens.shape != expected:
            raise ModelError(
                f"tokens have shape {tuple(tokens.shape)}, the images need {expected}; "
                "give every image the same number of rows"
            )
        if tokens.numel() and not (tokens.min() >= 0 and tokens.max() < self.vocabulary_size):
            wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary_size)][0].item()
            raise ModelError(
                f"token is out of the vocabulary: {wrong}, the model has {self.vocabulary_size} "
                "tokens; encode the captions with the vocabulary of its training"
            )


def _by_row(attention: AlignedAttention) -> AlignedAttention:
    """Unfold the K rows of an image in the attention of one step; (B, H, K, R) -> (N, H, R)."""

    def unfolded(values: Tensor | None) -> Any:  # None for None
        return None if values is None else values.transpose(1, 2).flatten(0, 1)

    return AlignedAttention(*map(unfolded, vars(attention).values()))
