"""Captions of batches of images as text, by beam search or sampling."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from a2cap.data.batches.collate import Batch
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error
from a2cap.data.image_ids import sample_ids
from a2cap.model.captioner import CaptionModel
from a2cap.model.decoding.beam_search import Hypothesis, beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.decoding.sampling import sampled_hypotheses
from a2cap.model.replaced_parameters import linear_cast, replaced
from a2cap.model.self_critical.consensus import by_consensus
from a2cap.pipeline.runtime.device import require_double
from a2cap.pipeline.runtime.runtime_config import Precision
from a2cap.pipeline.runtime.training_precision import forward_precision

logger = logging.getLogger(__name__)

Vote = Callable[[str, Sequence[Hypothesis]], Tensor]
"""Function from an image id and its K captions to their votes, (K,) float64, which are added to the
agreement of the captions."""


@dataclass(frozen=True)
class Beam:
    """One caption as text, and its score."""

    caption: str
    score: float  # log p(caption) in nats, length-normalised if configured; of repeats too


@torch.inference_mode()
def caption_batches(
    captioner: CaptionModel,
    batches: Iterable[Batch],
    vocabulary: Vocabulary,
    config: DecodingConfig,
    *,
    device: torch.device,
    precision: Precision = "fp32",
    vote: Vote | None = None,
) -> Iterator[tuple[str, list[Beam]]]:
    """Yield (image id, beams with the best first) of each image, in the order of the batches.

    vote: votes on the captions of each image, used with `consensus` alone.
    Empty captions come after the others; images whose best one was empty are logged at the end.
    """
    if config.method == "sampling":
        require_double(device, "sampling")
    search, empty = _Search(captioner, config, device, precision), list[str]()
    for batch in batches:
        for image_id, hypotheses in zip(batch.image_ids, search(batch), strict=True):
            ranked = hypotheses
            if config.consensus:
                votes = None if vote is None else vote(image_id, hypotheses)
                ranked = by_consensus(hypotheses, eos=captioner.special.eos, votes=votes)
            captions = [vocabulary.decode(hypothesis.tokens) for hypothesis in ranked]
            if config.collapse_repeats:
                captions = list(map(collapse_repeats, captions))
            scores = [hypothesis.score for hypothesis in ranked]
            beams = list(map(Beam, captions, scores))
            if not beams[0].caption:
                empty.append(image_id)
                beams.sort(key=lambda beam: not beam.caption)  # stable: others keep their order
            yield image_id, beams
    if empty:
        logger.warning(
            "the best caption of %s is empty, the next beam that is not is taken: %s",
            "1 image" if len(empty) == 1 else f"{len(empty):,} images",
            sample_ids(empty),
        )


class _Search:
    """Search of the captions of batches, or of halves of them where memory does not suffice."""

    def __init__(
        self,
        captioner: CaptionModel,
        config: DecodingConfig,
        device: torch.device,
        precision: Precision,
    ) -> None:
        self._captioner, self._config = captioner, config
        self._device, self._precision = device, precision
        self._with_casts: Callable[[], AbstractContextManager[None]] = nullcontext
        if precision == "bf16" and isinstance(captioner, nn.Module):
            # once, because each batch would cast the weights again
            casts = linear_cast(captioner, torch.bfloat16)
            self._with_casts = partial(replaced, captioner, casts)
        self._generator = torch.Generator(device).manual_seed(config.seed)
        self._together: float = math.inf

    def __call__(self, batch: Batch) -> list[list[Hypothesis]]:
        """Return the captions of each image; raises A2Error without memory for one image."""
        count = len(batch.image_ids)
        if count <= self._together:
            try:
                return self._search(batch.to(self._device))
            except torch.OutOfMemoryError as error:
                if count == 1:
                    raise A2Error(
                        f"out of memory with one image on {self._device}; lower beam_size, or use "
                        "a larger GPU"
                    ) from error
            # outside of the handler, whose error holds the tensors of the search
            torch.cuda.empty_cache()
            self._together = -(-count // 2)
            logger.warning(
                "out of memory with %d images at once; captioning %d at a time; begin so with a "
                "batch size of %d",
                *(count, self._together, self._together),
            )
        return [hypotheses for half in batch.halves() for hypotheses in self(half)]

    def _search(self, batch: Batch) -> list[list[Hypothesis]]:
        captioner, config = self._captioner, self._config
        with forward_precision(self._precision, self._device), self._with_casts():
            memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
            if config.method == "sampling":
                return sampled_hypotheses(captioner, memory, config, generator=self._generator)
            return beam_search(captioner, memory, config)


def collapse_repeats(caption: str) -> str:
    """Replace each run of one word by that word."""
    return " ".join(word for word, _ in groupby(caption.split()))
