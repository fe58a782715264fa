"""A captioner of an encoder and a decoder: the passes and checks that every kind shares.

Training runs two passes over the same captions. The aligned pass uses the fused attention of
Eq. 5-10 and trains theta, the captioner. The perturbed pass uses the attention of Eq. 3 and trains
theta_m, the mask networks. Each pass freezes the other side's parameters while it builds its graph,
so that one `backward()` of the sum of both losses gives each side the gradient of its own loss.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, NotRequired, Protocol, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import (
    AlignedAttention,
    DecoderPass,
    RegionProjection,
    caption_parameters,
    mask_parameters,
    padding_bias,
    uniform_average,
)
from a2cap.model.attention.supervised_attention import ProphetAttention, supervision_penalty
from a2cap.model.captioner import (
    PLAIN,
    DecoderState,
    Memory,
    ScoredCaptions,
    SpecialTokens,
    StepOutput,
    Teaching,
    Tensors,
    average_attention,
    decoder_input,
)
from a2cap.model.captioners.captioner_settings import CaptionerSettings
from a2cap.model.errors import ModelError
from a2cap.model.replaced_parameters import frozen

BOX_VALUES = 5
"""Values per box: x1, y1, x2, y2 in [0, 1] of the image's sides, and the box's area share."""


class Sizes(TypedDict):
    """What every captioner is made for: F, V with special tokens, and their ids."""

    feature_width: int
    vocabulary_size: int
    special: NotRequired[SpecialTokens | None]


@dataclass(frozen=True)
class DecoderOutput:
    """States before the output layer, (N, L, D) or (N, D), and attention of each layer."""

    states: Tensor
    attention: tuple[AlignedAttention, ...]


class Decoder(Protocol):
    """The part of a captioner that differs between kinds: an nn.Module from states to states."""

    @property
    def output(self) -> nn.Module:
        """Layer from states to logits."""

    def __call__(self, tokens: Tensor, memory: Memory, decoder_pass: DecoderPass) -> DecoderOutput:
        """Decode whole captions, (N, L) int64, <bos> first."""

    def project(self, states: Tensor, region_mask: Tensor) -> tuple[RegionProjection, ...]:
        """Project the encoder's output for each attention, once for all captions of an image."""

    def project_mask_keys(self, states: Tensor) -> tuple[Tensor | None, ...]:
        """Project the encoder's output for each mask network, in the order of `project`."""

    def start(self, memory: Memory) -> Tensors:
        """Return the state before the first token, tensors of B images."""

    def step(
        self, tokens: Tensor, state: DecoderState, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, DecoderState]:
        """Decode one token per row, (N,) int64, from a state of N rows; return the next state."""


class Standardisation(nn.Module):
    """Features with the mean 0 and the deviation 1 over the training images."""

    def __init__(self, feature_width: int):
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.zeros(feature_width))
        self.register_buffer("deviation", torch.ones(feature_width))

    def measure(self, images: Iterable[Tensor]) -> None:
        """Take mean and deviation from the features of images, (R, F) each."""
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for features in images:
            values = features.double()
            count += len(values)
            total = total + values.sum(dim=0)
            squares = squares + values.square().sum(dim=0)
        mean = total / count
        self.mean.copy_(mean)
        # a feature that is constant in these images stays near 0 elsewhere
        self.deviation.copy_((squares / count - mean.square()).clamp(min=0).sqrt().clamp(min=1e-2))

    def forward(self, features: Tensor) -> Tensor:
        """Standardise (B, R, F) features."""
        return (features.to(self.mean.dtype) - self.mean) / self.deviation


class EncoderDecoder(nn.Module):
    """A `Captioner` of any encoder and decoder, which the two losses of A2 can train.

    encoder: from features, boxes and region mask to states (B, R, D).
    feature_width: F.
    vocabulary_size: V, special tokens included.
    """

    settings: ClassVar[type[CaptionerSettings] | None] = None
    """Class of the settings of a captioner outside a2; those of a2 are in kinds.py."""
    encoder: nn.Module
    decoder: Decoder
    penalty_names: tuple[str, ...] = ()
    """Names of the losses that `penalties` adds to the caption loss."""
    penalties_of_truth: tuple[str, ...] = ()
    """Those that learn from true captions: self-critical training, whose captions are sampled,
    leaves them out."""

    def __init__(
        self,
        config: CaptionerSettings,
        encoder: nn.Module,
        decoder: Decoder,
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
        self.attention_dropout = config.attention_dropout
        self.encoder = encoder
        self.decoder = decoder
        if config.alignment.fusion != "none" and not self.has_masks:
            raise ModelError(
                f"alignment.fusion is {config.alignment.fusion!r}, but no attention of this "
                "captioner is aligned; set model.alignment.fusion to none, or let `has_attention` "
                "of its settings return False"
            )
        self.schedule_step: Tensor
        # saved with the weights, because Eq. 8 needs the last value in decoding
        self.register_buffer("schedule_step", torch.zeros((), dtype=torch.int64))
        self.standardisation = Standardisation(feature_width) if config.standardise else None
        self.prophet: ProphetAttention | None = None
        if weight := config.prophet:
            self.prophet = ProphetAttention(
                width=self.state_width, vocabulary_size=vocabulary_size, weight=weight
            )
            self.penalty_names = (*self.penalty_names, *ProphetAttention.names)

    @property
    def state_width(self) -> int:
        """Width D of the encoder's states."""
        return self.config.width

    @property
    def reads_relations(self) -> bool:
        """Report whether the encoder reads predicted relations beside the boxes."""
        return False

    @property
    def samples_regions(self) -> bool:
        """Report whether training samples the regions that tokens read."""
        return False

    @property
    def regions_are_a_set(self) -> bool:
        """Report whether predictions are known not to depend on the order of the regions."""
        alignment = self.config.alignment
        has_slots = alignment.fusion != "none" and alignment.mask_network == "linear"
        return self.settings is None and not has_slots

    @property
    def moving_averages(self) -> list[Tensor]:
        """Buffers that each training pass updates from its own captions, none by default."""
        return []

    @property
    def has_masks(self) -> bool:
        """Report whether any layer is aligned, which gives a mask loss."""
        return any(True for _ in mask_parameters(self))

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Encode B images and project their regions for every attention of the decoder.

        Raises ModelError for other widths or shapes and for an image without a region.
        """
        if features.shape[-1] != self.feature_width:
            raise ModelError(
                f"region width is {features.shape[-1]}, the model expects {self.feature_width}; "
                "retrain, or extract with the checkpoint that it was trained on"
            )
        expected = (*features.shape[:-1], BOX_VALUES)
        values = boxes.shape[-1]
        # beside relations, their region's number too
        is_wide = values == BOX_VALUES or values > BOX_VALUES + 1
        if boxes.shape[:-1] != expected[:-1] or not is_wide:
            raise ModelError(
                f"boxes have shape {tuple(boxes.shape)}, the features need {expected}; "
                "give each region x1, y1, x2, y2 and its share of the area"
            )
        if not self.reads_relations:
            boxes = boxes[..., :BOX_VALUES]
        self._check_regions(region_mask)
        if self.standardisation is not None:
            features = self.standardisation(features)
        states = self.encoder(features, boxes, region_mask)
        with frozen(self, mask_parameters(self)):
            return Memory(states, region_mask, self.decoder.project(states, region_mask))

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """Create the state before <bos>, with rows_per_image rows for each image."""
        tensors = (t.repeat_interleave(rows_per_image, dim=0) for t in self.decoder.start(memory))
        return DecoderState(memory, rows_per_image, tuple(tensors))

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Predict the next token, (N, V), after one token per row, (N,) int64, <bos> first.

        Raises ModelError for tokens of another shape or out of the vocabulary.
        """
        self._check_tokens(tokens, (len(state.memory) * state.rows_per_image,))
        decoder_pass = self._pass(state.memory)
        with frozen(self, mask_parameters(self)):
            decoded, state = self.decoder.step(tokens, state, decoder_pass)
        layers = tuple(map(_by_row, decoded.attention)) if attention else ()
        return StepOutput(
            self.log_probs(decoded.states),
            average_attention(layers) if layers else None,
            state,
        )

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return log-probabilities (B, K, L, V) of every next token in the aligned pass.

        tokens: (B, K, L) int64, <bos> first; position t predicts token t + 1. Gives the mask
        networks no gradient.
        """
        self._check_tokens(tokens, (len(memory), *tokens.shape[1:]))
        with frozen(self, mask_parameters(self)):
            decoded = self.decoder(tokens.flatten(0, 1), memory, self._pass(memory))
        return self.log_probs(decoded.states).reshape(*tokens.shape, -1)  # -> (B, K, L, V)

    def log_probs(self, states: Tensor) -> Tensor:
        """Return log-probabilities of the next token, at least float32; (..., D) -> (..., V)."""
        logits: Tensor = self.decoder.output(states)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(dim=-1, dtype=dtype)

    def score(
        self,
        memory: Memory,
        captions: Tensor,
        *,
        perturbed: bool = False,
        expected: bool = False,
        teaching: Teaching = PLAIN,
    ) -> ScoredCaptions:
        """Return the log-probability of each token of given captions.

        captions: (B, K, L) int64, tokens, <eos>, padding, no <bos>.
        expected: with soft attention in place of hard attention.
        The perturbed pass gives only the mask networks a gradient (the memory gets none either);
        the aligned pass gives them none.
        """
        self._check_tokens(captions, (len(memory), *captions.shape[1:]))
        # Each pass gives a gradient to one side's parameters only: the other side is detached while
        # the graph is built, so that one backward pass of the sum serves both losses. Penalties
        # are of the aligned pass alone.
        decoder_pass = self._pass(memory, perturbed=perturbed, expected=expected)
        pad, inputs, positions = self.special.pad, teaching.inputs, teaching.positions
        if inputs is None:
            inputs = decoder_input(captions, bos=self.special.bos)
        if positions is None:
            positions = (captions != pad).flatten().nonzero().squeeze(1)  # (B, K, L) -> (T,)
        with frozen(self, caption_parameters(self) if perturbed else mask_parameters(self)):
            if perturbed:
                memory = self._detach(memory)
            # (B, K, L) -> (B * K, L) -> states (B * K, L, D)
            decoded = self.decoder(inputs.flatten(0, 1), memory, decoder_pass)
            # the output layer is the largest product: skip it on padding
            states = decoded.states.flatten(0, 1).index_select(0, positions)  # -> (T, D)
            logits = self.decoder.output(states)  # -> (T, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        targets = captions.flatten().index_select(0, positions)
        log_probs = -functional.cross_entropy(logits, targets, reduction="none", ignore_index=pad)
        # (T,) -> (B * K * L,), 0 on padding
        scattered = log_probs.new_zeros(captions.numel()).index_copy(0, positions, log_probs)
        scored = ScoredCaptions(scattered.view_as(captions), decoded.attention)
        if perturbed or expected:
            return scored
        penalties = self.penalties(scored, memory, captions)
        if self.prophet is not None:
            regions = (memory.states, memory.region_mask)
            penalties |= self.prophet(decoded.attention, *regions, captions, pad=pad)
        if teaching.targets is not None:
            count = (targets != pad).sum()
            penalty = supervision_penalty(decoded.attention, teaching.targets, count)
            penalties["supervision"] = teaching.supervision * penalty
        if teaching.label_smoothing:
            uniform = logits.log_softmax(dim=-1).mean(dim=-1)
            counted = targets != pad
            total = ((log_probs - uniform) * counted).sum() / counted.sum().clamp(min=1)
            penalties["label_smoothing"] = teaching.label_smoothing * total
        return replace(scored, penalties=penalties)

    def _pass(
        self, memory: Memory, *, perturbed: bool = False, expected: bool = False
    ) -> DecoderPass:
        dropout = self.attention_dropout if self.training else 0.0
        heads = memory.projections[0].keys.shape[1] if memory.projections else 1
        bias, uniform = padding_bias(memory.region_mask, heads=heads), None
        if perturbed:
            dtype = torch.promote_types(memory.states.dtype, torch.float32)
            uniform = uniform_average(memory.region_mask, dtype=dtype)
        return DecoderPass(self.schedule_step, perturbed, expected, dropout, bias, uniform)

    def penalties(
        self, scored: ScoredCaptions, memory: Memory, captions: Tensor
    ) -> dict[str, Tensor]:
        """Return further losses of theta by name, in nats per token; captions: (B, K, L)."""
        return {}

    def _detach(self, memory: Memory) -> Memory:
        """Detach the memory, except for the mask networks' own projections of it."""
        states = memory.states.detach()
        mask_keys = self.decoder.project_mask_keys(states)
        projections = tuple(
            replace(layer, keys=layer.keys.detach(), values=layer.values.detach(), mask_keys=keys)
            for layer, keys in zip(memory.projections, mask_keys, strict=True)
        )
        return Memory(states, memory.region_mask, projections)

    def check(self, region_mask: Tensor, tokens: Tensor) -> None:
        """Check a batch that is still on the CPU, as a GPU or a compiled pass does not.

        region_mask: (B, R) bool; tokens: (B, K, L) int64. Raises ModelError for an image without a
        region and for tokens of another shape or out of the vocabulary.
        """
        self._check_regions(region_mask)
        self._check_tokens(tokens, (len(region_mask), *tokens.shape[1:]))

    def _check_regions(self, region_mask: Tensor) -> None:
        if is_readable(region_mask) and not region_mask.any(dim=1).all():
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
        # an empty tensor has no minimum
        if not is_readable(tokens) or not tokens.numel():
            return
        if not (tokens.min() >= 0 and tokens.max() < self.vocabulary_size):
            wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary_size)][0].item()
            raise ModelError(
                f"token is out of the vocabulary: {wrong}, the model has {self.vocabulary_size} "
                "tokens; encode the captions with the vocabulary of its training"
            )


def is_readable(values: Tensor) -> bool:
    """Report whether values can be read: of a GPU that would wait, and end a compiled graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def _by_row(attention: AlignedAttention) -> AlignedAttention:
    """Unfold the K rows of an image in the attention of one step; (B, H, K, R) -> (N, H, R)."""
    return attention.each(lambda values: values.transpose(1, 2).flatten(0, 1))
