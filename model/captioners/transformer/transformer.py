"""The A2 Transformer captioner (Fei, "Attention-Aligned Transformer for Image Captioning", 2022).

Two passes over the same captions train it. The aligned pass uses the fused attention of Eq. 5-10
and trains theta, the captioner; the perturbed pass uses the attention of Eq. 3 and trains theta_m,
the mask networks. Each pass holds the other side's parameters constant while its graph is built,
so that a plain `backward()` of the sum of both losses moves each side by its own loss only.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import AlignedAttention, Alignment, DecoderPass
from a2cap.model.attention.multi_head import RegionProjection
from a2cap.model.captioner import (
    DecoderState,
    Memory,
    SpecialTokens,
    StepOutput,
    decoder_input,
    summarise,
)
from a2cap.model.captioners.transformer.decoder import Begun, CaptionDecoder
from a2cap.model.captioners.transformer.encoder import BOX_VALUES, RegionEncoder
from a2cap.model.config import ModelConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers.kv_cache import next_places
from a2cap.model.layers.packed_linear import packed


@contextmanager
def held_constant(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """What is computed inside gives these parameters no gradient, but still lets it through."""
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


@dataclass(frozen=True)
class Scored:
    """How probable given captions are, and the attention that each layer paid.

    log_probs: (B, K, L) float, of each token after those before it, 0 on padding.
    attention: one per layer, over the K * L positions of an image.
    """

    log_probs: Tensor
    attention: tuple[AlignedAttention, ...]


class TransformerCaptioner(nn.Module):
    """Visual encoder and caption decoder with aligned cross-attention, behind `Captioner`.

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
        """Whether any layer is aligned, so that there is a mask loss."""
        return any(True for _ in self.mask_parameters())

    def mask_parameters(self) -> Iterator[nn.Parameter]:
        """theta_m: the mask networks'."""
        for module in self.modules():
            if isinstance(module, Alignment):
                yield from module.mask_network.parameters()

    def caption_parameters(self) -> Iterator[nn.Parameter]:
        """theta: all others."""
        masks = {id(parameter) for parameter in self.mask_parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in masks)

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Encodes B images and projects their regions for every decoder layer, once.

        features: (B, R, F) float; boxes: (B, R, 5) float, x1, y1, x2, y2 and share of the area,
        all in [0, 1], unused without `box_geometry`; region_mask: (B, R) bool.
        """
        self._check_regions(features, boxes, region_mask)
        states = self.encoder(features, boxes, region_mask)
        with held_constant(self.mask_parameters()):
            projections = tuple(
                cross_attention.project(states)
                for cross_attention in self.decoder.cross_attentions()
            )
        return Memory(states, region_mask, projections)

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """The state before <bos>, with rows_per_image rows for each image.

        Without gradients the state may hold a copy of the weights as they are now, packed.
        """
        rows = len(memory) * rows_per_image
        places = torch.empty((rows, 0), dtype=torch.int64, device=memory.states.device)
        return DecoderState(
            memory, rows_per_image, cached=(places,), decoder=packed(self.decoder, rows)
        )

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Takes one token per row, (N,) int64, <bos> first; log-probabilities of the next, (N, V).

        The state that was given stays usable.
        """
        memory, rows_per_image = state.memory, state.rows_per_image
        self._check_tokens(tokens, (len(memory) * rows_per_image,))
        decoder = state.decoder or self.decoder
        places = next_places(state.cached[0], rows_per_image)
        with held_constant(self.mask_parameters()):
            decoded, stores = decoder.step(
                tokens.reshape(-1, rows_per_image),
                memory.projections,
                region_mask=memory.region_mask,
                stores=state.stores,
                places=places,
                decoder_pass=DecoderPass(self.schedule_step),
            )
        return StepOutput(
            decoder.log_probs(decoded.states.flatten(0, 1)),
            summarise(tuple(map(_by_row, decoded.attention))) if attention else None,
            replace(state, cached=(places,), stores=stores),
        )

    def reorder(self, state: DecoderState, index: Tensor) -> DecoderState:
        """The state with row index[i] at row i; index: (N,) int64, each within its own image."""
        return state.reordered(index)

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Teacher forcing, the aligned pass.

        tokens: (B, K, L) int64, <bos> first. Returns log-probabilities (B, K, L, V); position t
        predicts token t + 1. Gives the mask networks no gradient.
        """
        self._check_tokens(tokens, (len(memory), *tokens.shape[1:]))
        with held_constant(self.mask_parameters()):
            decoded = self.decoder(
                tokens.flatten(0, 1),
                memory.projections,
                region_mask=memory.region_mask,
                decoder_pass=DecoderPass(self.schedule_step),
            )
        log_probs = self.decoder.log_probs(decoded.states)
        return log_probs.reshape(*tokens.shape, -1)

    def score(self, memory: Memory, captions: Tensor, *, perturbed: bool = False) -> Scored:
        """Log-probability of each token of given captions; computes nothing for padding's words.

        captions: (B, K, L) int64, words, <eos>, padding, no <bos>. perturbed: the pass that trains
        the mask networks, and gives nothing else (the memory included) a gradient; otherwise the
        aligned pass, which gives the mask networks none.
        """
        self._check_tokens(captions, (len(memory), *captions.shape[1:]))
        begun = self._begin(memory, captions)
        if perturbed:
            return self._score_perturbed(memory, captions, begun)
        return self._score_aligned(memory, captions, begun)

    def score_both(self, memory: Memory, captions: Tensor) -> tuple[Scored, Scored]:
        """`score` of the aligned and of the perturbed pass, which are one up to the first mask.

        With dropout they also drop the same units up to there.
        """
        self._check_tokens(captions, (len(memory), *captions.shape[1:]))
        begun = self._begin(memory, captions)
        aligned = self._score_aligned(memory, captions, begun)
        return aligned, self._score_perturbed(memory, captions, begun)

    def _begin(self, memory: Memory, captions: Tensor) -> Begun:
        tokens = decoder_input(captions, bos=self.special.bos)
        return self.decoder.begin(
            tokens.flatten(0, 1),
            memory.projections,
            region_mask=memory.region_mask,
            decoder_pass=DecoderPass(self.schedule_step),
        )

    def _score_aligned(self, memory: Memory, captions: Tensor, begun: Begun) -> Scored:
        with held_constant(self.mask_parameters()):
            return self._scored(memory, captions, begun, perturbed=False)

    def _score_perturbed(self, memory: Memory, captions: Tensor, begun: Begun) -> Scored:
        with held_constant(self.caption_parameters()):
            return self._scored(self._for_masks(memory), captions, begun.detached(), perturbed=True)

    def _scored(self, memory: Memory, captions: Tensor, begun: Begun, *, perturbed: bool) -> Scored:
        decoded = self.decoder.end(
            begun,
            memory.projections,
            region_mask=memory.region_mask,
            decoder_pass=DecoderPass(self.schedule_step, perturbed=perturbed),
        )
        is_token = captions != self.special.pad
        logits = self.decoder.output(decoded.states.reshape(*captions.shape, -1)[is_token])
        log_probs = -functional.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)),
            captions[is_token],
            reduction="none",
        )
        scattered = log_probs.new_zeros(captions.shape).masked_scatter(is_token, log_probs)
        return Scored(scattered, decoded.attention)

    def _for_masks(self, memory: Memory) -> Memory:
        """The memory as a constant, but for what the mask networks themselves make of it."""
        states = memory.states.detach()
        projections = tuple(
            RegionProjection(
                projected.keys.detach(),
                projected.values.detach(),
                cross_attention.project_masks(states),
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
                "words; encode the captions with the vocabulary that it was trained on"
            )


def _by_row(attention: AlignedAttention) -> AlignedAttention:
    """Attention of one step with the K rows of an image unfolded: (B, H, K, R) -> (N, H, R)."""

    def unfolded(values: Tensor) -> Tensor:
        return values.transpose(1, 2).flatten(0, 1)

    return AlignedAttention(
        unfolded(attention.original),
        unfolded(attention.used),
        None if attention.keep is None else unfolded(attention.keep),
        None if attention.gate is None else unfolded(attention.gate),
    )
