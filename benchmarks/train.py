"""A cross-entropy step with both losses and beam search, compared with plain versions.

A plain step runs two separate forward passes, encoder and padding included, with log-probabilities
of all tokens, and takes from each the gradients of the parameters that it trains. Plain beam search
has no KV cache: each step runs teacher forcing over the prefix. The results are equal.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from a2cap.extract.detector.proposal_precision import has_bfloat16
from a2cap.model.alignment import AlignedAttention, DecoderPass, caption_parameters, mask_parameters
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import CaptionModel, DecoderState, Memory, StepOutput, decoder_input
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.decoding.beam_search import Hypothesis, beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.losses import caption_loss, mask_loss, mask_penalty, two_losses
from a2cap.model.mixed_precision import mixed_precision
from a2cap.model.replaced_parameters import linear_cast, replaced
from benchmarks.measure import Form

A2, PLAIN, MIXED = "a2", "plain", "a2, bf16"
BEAM_SIZE, STEPS = 5, 20
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch: B images of R regions with K captions of up to L tokens from V words.

    mean, deviation: of the tokens of a caption, <eos> included, normally distributed; by default
    those of 105,700 captions of COCO.
    """

    images: int = 10
    captions: int = 5
    tokens: int = 20
    mean: float = 11.4
    deviation: float = 2.3
    regions: int = 50
    feature_width: int = 2048
    vocabulary: int = 10_201


QUICK = Sizes(2, 2, tokens=5, regions=6, feature_width=16, vocabulary=50)

SMALL = TransformerConfig(encoder_layers=2, decoder_layers=2, width=128, feed_forward=512)
MODELS = {"2+2 layers of 128": SMALL, "6+6 layers of 512": TransformerConfig()}


@dataclass(frozen=True)
class Batch:
    """features: (B, R, F); boxes: (B, R, 5); region_mask: (B, R); captions: (B, K, L) int64.

    Captions are padded with 0 to the longest of the batch.
    """

    features: Tensor
    boxes: Tensor
    region_mask: Tensor
    captions: Tensor

    @property
    def is_token(self) -> Tensor:
        """False on padding, (B, K, L)."""
        return self.captions != 0


def make_batch(sizes: Sizes) -> Batch:
    """Return random features and tokens."""
    shape = (sizes.images, sizes.regions)
    drawn = sizes.mean + sizes.deviation * torch.randn(sizes.images, sizes.captions)
    lengths = drawn.round().clamp(2, sizes.tokens).long()
    is_token = torch.arange(int(lengths.max())) < lengths[..., None]
    return Batch(
        features=torch.rand(*shape, sizes.feature_width),
        boxes=torch.rand(*shape, 5),
        region_mask=torch.ones(shape, dtype=torch.bool),
        captions=torch.randint(4, sizes.vocabulary, is_token.shape) * is_token,
    )


def new_captioner(config: TransformerConfig, sizes: Sizes) -> TransformerCaptioner:
    """Return an untrained captioner for these features and words."""
    return TransformerCaptioner(
        config, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    )


def a2_gradients(captioner: EncoderDecoder, batch: Batch) -> None:
    """Compute both losses over one encoded memory with one backward pass."""
    memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
    torch.autograd.backward(two_losses(captioner, memory, batch.captions).total())


def mixed_gradients(captioner: TransformerCaptioner, batch: Batch) -> None:
    """Compute the same gradients with the linear layers in bfloat16."""
    with mixed_precision("bfloat16", torch.device("cpu"), captioner):
        memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
        losses = two_losses(captioner, memory, batch.captions)
    torch.autograd.backward(losses.total())


def plain_gradients(captioner: TransformerCaptioner, batch: Batch) -> None:
    """Compute each loss with a separate forward pass, differentiated for its parameters."""
    sides = (
        (list(caption_parameters(captioner)), _plain_caption_loss),
        (list(mask_parameters(captioner)), _plain_mask_loss),
    )
    for parameters, loss in sides:
        gradients = torch.autograd.grad(loss(captioner, batch), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def _plain_caption_loss(captioner: TransformerCaptioner, batch: Batch) -> Tensor:
    log_probs, _ = _plain_forward(captioner, batch, perturbed=False)
    return caption_loss(log_probs, batch.is_token)


def _plain_mask_loss(captioner: TransformerCaptioner, batch: Batch) -> Tensor:
    log_probs, attention = _plain_forward(captioner, batch, perturbed=True)
    keeps = [layer.keep for layer in attention if layer.keep is not None]
    return mask_loss(
        caption_loss(log_probs, batch.is_token),
        mask_penalty(keeps, batch.is_token),
        penalty_weight=captioner.config.alignment.penalty_weight,
    )


def _plain_forward(
    captioner: TransformerCaptioner, batch: Batch, *, perturbed: bool
) -> tuple[Tensor, tuple[AlignedAttention, ...]]:
    """Return log-probabilities (B, K, L) of the captions' tokens, and attention."""
    decoder = captioner.decoder
    states = captioner.encoder(batch.features, batch.boxes, batch.region_mask)
    memory = Memory(states, batch.region_mask, decoder.project(states, batch.region_mask))
    tokens = decoder_input(batch.captions, bos=captioner.special.bos)
    decoder_pass = DecoderPass(captioner.schedule_step, perturbed=perturbed)
    decoded = decoder(tokens.flatten(0, 1), memory, decoder_pass)
    log_probs = captioner.log_probs(decoded.states).reshape(*tokens.shape, -1)
    return log_probs.gather(-1, batch.captions[..., None])[..., 0], decoded.attention


AnyCaptioner = TypeVar("AnyCaptioner", bound=nn.Module)
Gradients = Callable[[AnyCaptioner, Batch], None]
EXACT: Mapping[str, Gradients[TransformerCaptioner]] = {A2: a2_gradients, PLAIN: plain_gradients}


def training_step(
    captioner: AnyCaptioner, gradients: Gradients[AnyCaptioner]
) -> Callable[[Batch], None]:
    """Return an update on a batch: gradients, clipping of each side, both optimisers."""
    both = [list(caption_parameters(captioner)), list(mask_parameters(captioner))]
    sides = [side for side in both if side]  # without alignment there are no masks
    optimisers = [torch.optim.Adam(side, lr=1e-5, betas=(0.9, 0.98), fused=True) for side in sides]

    def step(batch: Batch) -> None:
        captioner.zero_grad()
        gradients(captioner, batch)
        for side, optimiser in zip(sides, optimisers, strict=True):
            nn.utils.clip_grad_norm_(side, CLIP_NORM)
            optimiser.step()

    return step


def gradient_difference(captioner: TransformerCaptioner, batch: Batch) -> float:
    """Return the largest gradient difference of both forms, relative to the largest gradient.

    Computed without dropout, which is random.
    """
    captioner.eval()
    flattened = []
    for gradients in EXACT.values():
        captioner.zero_grad()
        gradients(captioner, batch)
        flattened.append(
            torch.cat([p.grad.flatten() for p in captioner.parameters() if p.grad is not None])
        )
    captioner.zero_grad()
    ours, plain = flattened
    return float((ours - plain).abs().max() / plain.abs().max())


def step_forms(captioner: TransformerCaptioner, batch: Batch) -> dict[str, Form]:
    """Return a training step in each form, also in bfloat16 where the processor has it."""
    captioner.train()
    steps = dict(EXACT)
    # emulated bfloat16 takes minutes per round
    if has_bfloat16(torch.device("cpu")):
        steps[MIXED] = mixed_gradients
    return {
        name: partial(training_step(captioner, gradients), batch)
        for name, gradients in steps.items()
    }


class UncachedCaptioner:
    """A captioner without a KV cache: it runs teacher forcing over all tokens at every step."""

    def __init__(self, captioner: TransformerCaptioner) -> None:
        self._captioner = captioner
        self.special = captioner.special
        self.vocabulary_size = captioner.vocabulary_size

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Encode as the captioner does."""
        return self._captioner.encode(features, boxes, region_mask)

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """Create a state without tokens."""
        return DecoderState(memory, rows_per_image)

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Append one token per row, (N,), to the tokens (N, t) in the state; no attention."""
        prefix = torch.cat((*state.tensors, tokens[:, None]), dim=1)
        by_image = prefix.reshape(len(state.memory), state.rows_per_image, -1)
        log_probs = self.forward(state.memory, by_image)[:, :, -1].flatten(0, 1)
        return StepOutput(log_probs, None, replace(state, tensors=(prefix,)))

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return the captioner's log-probabilities."""
        log_probs: Tensor = self._captioner(memory, tokens)
        return log_probs


def search(captioner: CaptionModel, batch: Batch) -> list[list[Hypothesis]]:
    """Encode and run beam search of exactly STEPS steps: no caption may end."""
    config = DecodingConfig(beam_size=BEAM_SIZE, max_length=STEPS)
    with torch.inference_mode():
        memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
        return beam_search(captioner, memory, config, forbidden=range(4))


def search_in(
    precision: str, captioner: TransformerCaptioner
) -> Callable[[Batch], list[list[Hypothesis]]]:
    """Return `search` in fp32 or bf16; the weights are cast once, as for many batches."""
    if precision == "fp32":
        return partial(search, captioner)
    casts = linear_cast(captioner, torch.bfloat16)

    def searched(batch: Batch) -> list[list[Hypothesis]]:
        with mixed_precision("bfloat16", torch.device("cpu")), replaced(captioner, casts):
            return search(captioner, batch)

    return searched


def search_forms(
    captioner: TransformerCaptioner, batch: Batch
) -> dict[str, Callable[[], list[list[Hypothesis]]]]:
    """Return beam search with and without the KV cache."""
    captioner.eval()
    uncached = UncachedCaptioner(captioner)
    return {
        "cached": partial(search, captioner, batch),
        "plain": partial(search, uncached, batch),
    }


def price(config: TransformerConfig, sizes: Sizes, batch: Batch, *, rounds: int) -> str:
    """Return the parameters, training step and beam search with alignment over those without."""
    plain = config.model_copy(update={"alignment": AlignmentConfig(fusion="none")})
    forms: dict[str, Form] = {}
    parameters = {}
    for label, model in (("aligned", config), ("plain", plain)):
        trained, searched = (new_captioner(model, sizes) for _ in range(2))
        parameters[label] = sum(parameter.numel() for parameter in trained.parameters())
        forms[f"step {label}"] = partial(training_step(trained.train(), a2_gradients), batch)
        forms[f"search {label}"] = partial(search, searched.eval(), batch)
    # the least CPU time of each: other programs only ever add to it
    best = dict.fromkeys(forms, math.inf)
    for _ in range(rounds):
        for label, form in forms.items():
            started = time.process_time()
            form()
            best[label] = min(best[label], time.process_time() - started)
    added = parameters["aligned"] / parameters["plain"] - 1
    times = [
        f"{what} takes {best[f'{form} aligned'] / best[f'{form} plain']:.2f} times as long "
        f"({best[f'{form} aligned']:.3g} s and {best[f'{form} plain']:.3g} s)"
        for form, what in (("step", "a training step"), ("search", "beam search"))
    ]
    return f"alignment adds {added:.1%} of parameters; in CPU time, {', '.join(times)}"
