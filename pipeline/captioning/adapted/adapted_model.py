"""A captioner of `transformers` with its processor: batches of images to captions and attention."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import ConfigError, InputError
from a2cap.data.regions import Regions
from a2cap.extract.detector.input import Pixels
from a2cap.model.adapting.adapted_layers import adapt_layers
from a2cap.model.adapting.generation import (
    SUBSETS,
    GeneratedCaption,
    force_caption,
    generate_captions,
    kept_token_log_probs,
)
from a2cap.model.adapting.gradients import token_gradients
from a2cap.model.alignment import AlignedAttention
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.erasure import ErasureMeter
from a2cap.model.errors import ModelError
from a2cap.model.faithfulness import FaithfulnessMeter, region_orders
from a2cap.pipeline.captioning.adapted.prompts import as_text, prompt_of
from a2cap.pipeline.captioning.adapted.tiles import process_ramps
from a2cap.pipeline.captioning.adapted.token_map import NoGrid, TokenMap, map_tokens
from a2cap.pipeline.captioning.attention import certificates, join_steps, of_image
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.subwords import average_tokens, merge_tokens

logger = logging.getLogger(__name__)

Processor = Callable[..., Mapping[str, Tensor]]

_MOST_SIZES = 256
"""Sizes of images whose tokens are known at once."""
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_FAULTS = (RuntimeError, ValueError, IndexError)
"""What models of transformers raise for inputs that they cannot take."""


class AdaptedModel:
    """A captioner of `transformers` whose attention to the image is recorded.

    network: the model, which saves, moves and trains as before. prompt: text that it continues,
    None for the default of its class.
    """

    def __init__(
        self,
        network: nn.Module,
        processor: Processor | None,
        *,
        tokenizer: Any,
        alignment: AlignmentConfig,
        prompt: str | None,
    ) -> None:
        self.network: Any = network
        self.processor = processor
        self.tokenizer: Any = tokenizer or getattr(processor, "tokenizer", None)
        self.prompt = prompt_of(network, prompt)
        self._has_warned = False
        self._rows = SUBSETS
        self._maps: dict[tuple[int, int, int], TokenMap | NoGrid] = {}
        try:
            self.layers = adapt_layers(network, alignment)
        except ModelError as error:
            raise ConfigError(str(error)) from error

    def caption(
        self, images: Sequence[Pixels], *, attention: bool = True, **generation: Any
    ) -> list[CaptionedImage]:
        """Caption images together, each (H, W, 3) uint8 BGR.

        generation: arguments of the model's `generate`. Without memory for all, half of the images
        are captioned at a time. Raises InputError for images that the model cannot take.
        """
        try:
            with self._running():
                inputs = self._inputs([_pil(pixels) for pixels in images])
                options = {"attention": attention, **generation}
                generated = generate_captions(self.network, self.layers, inputs, **options)
        except InputError as error:
            if not _is_memory(error.__cause__) or len(images) == 1:
                raise
        else:
            self._warn_of_cut(generated)
            return [self._captioned(*pair) for pair in zip(images, generated, strict=True)]
        half = len(images) // 2
        logger.warning("out of memory with %s images together; trying %s", len(images), half or 1)
        parts = images[:half], images[half:]
        return [
            captioned
            for part in parts
            for captioned in self.caption(part, attention=attention, **generation)
        ]

    def attend(self, pixels: Pixels, caption: str) -> CaptionedImage:
        """Return a given caption of an image, with the attention at each of its words.

        Raises InputError as `caption` does, and for a caption that the tokenizer does not have.
        """
        return self._captioned(pixels, [self._forced(pixels, caption)[1]])

    def measure(
        self,
        pixels: Pixels,
        caption: str,
        erasure: ErasureMeter,
        faithfulness: FaithfulnessMeter | None = None,
    ) -> None:
        """Measure which tokens of an image the tokens of a given caption depend on.

        The orders of erasure are those of `region_orders`. faithfulness: measure the attention of
        each layer against gradients too, whose product with their input is one more order. Raises
        InputError as `attend` does.
        """
        inputs, forced = self._forced(pixels, caption)
        # (1, H, N) of each token and layer -> (T, H, N) of each layer
        by_layer = zip(*(step.layers for step in forced.steps or ()), strict=True)
        layers = [AlignedAttention.stacked(rows, dim=1).each(lambda v: v[0]) for rows in by_layer]
        orders = region_orders(layers)
        with self._running():
            if faithfulness is not None:
                gradients = token_gradients(self.network, self.layers, inputs, forced.tokens)
                exists = torch.ones_like(gradients.importance[0], dtype=torch.bool)
                faithfulness.add(layers, gradients.importance[0], exists)
                orders["gradient"] = gradients.product[0]
            erasure.measure(partial(self._kept_log_probs, inputs, forced), orders, empty=True)

    def certify(self, pixels: Pixels, caption: str) -> NDArray[np.float32] | None:
        """Return the probability of each word of a given caption, and without what it looked at.

        (W, 2) or, with alignment, (W, 3), as of `certify_captions`: without the token of the image
        that the word, averaged over its own tokens, attends to most. None with one token
        of the image. Raises InputError as `attend` does.
        """
        inputs, forced = self._forced(pixels, caption)
        shares = torch.from_numpy(merge_tokens(self.tokenizer, forced.tokens)[1])
        shares = shares.to(self.network.device)
        steps = forced.steps or ()
        kinds = [torch.cat([step.original for step in steps])]
        if steps[0].keep is not None:
            kinds.append(torch.cat([step.aligned for step in steps]))
        if kinds[0].shape[1] < 2:
            return None
        with self._running():
            return certificates(
                [shares @ rows.float() for rows in kinds],
                partial(self._kept_log_probs, inputs, forced),
                words=(shares > 0).float(),
            )

    def _kept_log_probs(
        self, inputs: Mapping[str, Tensor], forced: GeneratedCaption, kept: Tensor
    ) -> Tensor:
        """Compute the log-probability of each token given subsets of the image's tokens, (S, T).

        Without memory, fewer subsets are computed together from then on.
        """
        while True:
            try:
                return kept_token_log_probs(
                    self.network,
                    self.layers,
                    inputs,
                    forced.tokens,
                    kept,
                    rows=self._rows,
                )
            except _FAULTS as error:
                if not _is_memory(error) or self._rows == 1:
                    raise
            half = self._rows // 2
            text = "out of memory with %s subsets of an image together; trying %s"
            logger.warning(text, self._rows, half)
            self._rows = half

    def _forced(self, pixels: Pixels, caption: str) -> tuple[dict[str, Tensor], GeneratedCaption]:
        """Return the inputs of an image, and a caption as the tokens that are likeliest."""
        forced = []
        with self._running():
            inputs = self._inputs([_pil(pixels)])
            # tokenizers differ in the space before the first word
            for text in (caption, f" {caption}"):
                tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                if merge_tokens(self.tokenizer, tokens)[0] == caption.split() != []:
                    forced.append(force_caption(self.network, self.layers, inputs, tokens))
        if not forced:
            raise InputError(
                f"the tokenizer of {type(self.network).__name__} has no tokens for {caption!r}; "
                "name a captioner that has its words"
            )
        return inputs, max(forced, key=lambda candidate: candidate.score)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Evaluate the network in the block; raise its faults as InputError."""
        was_training = self.network.training
        self.network.eval()
        try:
            yield
        except _FAULTS as error:
            name, reason = type(self.network).__name__, " ".join(str(error).split())
            remedy = (
                "use a smaller model" if _is_memory(error) else "check its prompt and processor"
            )
            raise InputError(f"{name} cannot caption: {reason:.200}; {remedy}") from error
        finally:
            self.network.train(was_training)

    def _warn_of_cut(self, generated: Sequence[Sequence[GeneratedCaption]]) -> None:
        """Warn once of captions that end where they were cut."""
        cut = [captions[0] for captions in generated if captions[0].is_cut]
        if cut and not self._has_warned:
            self._has_warned = True
            text = "captions that do not end are cut, the first at %s tokens; raise %s"
            logger.warning(text, len(cut[0].tokens), "--max-new-tokens, evaluate.max_length")

    def _inputs(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return the processor's tensors on the model's device and in its precision."""
        if self.processor is None or self.tokenizer is None:
            missing = "processor" if self.processor is None else "tokenizer"
            raise ConfigError(f"no {missing} to caption with; give a2cap.adapt(..., {missing}=...)")
        text = as_text(self.network, self.processor, self.prompt)
        if text is None:
            tensors = self.processor(images=list(images), return_tensors="pt")
        else:
            nested = [[image] for image in images]
            texts = [text] * len(images)
            tensors = self.processor(images=nested, text=texts, return_tensors="pt", padding=True)
        dtype, device = self.network.dtype, self.network.device
        return {
            name: values.to(device, dtype) if values.is_floating_point() else values.to(device)
            for name, values in tensors.items()
            if isinstance(values, Tensor) and name != "labels"
        }

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image of this size; 0 if they are not known beforehand."""
        processor: Any = self.processor
        try:
            return sum(processor._get_num_multimodal_tokens([(height, width)]).num_image_tokens)
        except Exception:  # of a processor that has no such rule: it is a matter of speed alone
            return 0

    def _captioned(self, pixels: Pixels, generated: Sequence[GeneratedCaption]) -> CaptionedImage:
        merged = [merge_tokens(self.tokenizer, caption.tokens) for caption in generated]
        beams = [
            Beam(" ".join(words), caption.score)
            for (words, _), caption in zip(merged, generated, strict=True)
        ]
        height, width = pixels.shape[:2]
        steps, attention, boxes = generated[0].steps, None, np.zeros((0, 4), np.float32)
        if steps and beams[0].caption:
            whole = join_steps(steps, layers=True)
            tokens = whole.original.shape[-1]
            of_tokens = of_image(whole, 0, len(steps), tokens)
            attention, boxes = self._on_grid(
                average_tokens(of_tokens, merged[0][1]), width, height, tokens
            )
        none = np.zeros(len(boxes), np.float32)
        features = np.zeros((len(boxes), 0), np.float32)
        regions = Regions(boxes, features, none, none.astype(np.int32), None, width, height)
        return CaptionedImage(beams, regions, attention)

    def _on_grid(
        self, attention: CaptionAttention, width: int, height: int, tokens: int
    ) -> tuple[CaptionAttention | None, NDArray[np.float32]]:
        """Return the attention to the cells of the image's grid, and their boxes."""
        key = width, height, tokens
        if key not in self._maps:
            if len(self._maps) == _MOST_SIZES:
                self._maps.clear()
            self._maps[key] = self._map(*key)
        grid = self._maps[key]
        if isinstance(grid, NoGrid):
            return None, np.zeros((0, 4), np.float32)
        return grid.attention(attention), grid.boxes

    def _map(self, width: int, height: int, tokens: int) -> "TokenMap | NoGrid":
        try:
            ramps = process_ramps(self._inputs, self.network.config, width=width, height=height)
            return map_tokens(self.network, ramps, tokens)
        except NoGrid as error:
            logger.warning("no attention to show for images of %s x %s: %s", width, height, error)
            return error


def _is_memory(error: BaseException | None) -> bool:
    return any(text in str(error).lower() for text in _OUT_OF_MEMORY)


def _pil(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
