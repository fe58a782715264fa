"""Captions that a model of `transformers` generates, with the attention at each of their tokens.

The attention is recorded while `generate` runs, so that it works for every class and way of
decoding in which each step runs the decoder once: greedy, beam search, sampling.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from a2cap.model.adapting.adapted_attention import Recorded, recording
from a2cap.model.adapting.cross_attention import AdaptedLayers
from a2cap.model.alignment import AlignedAttention
from a2cap.model.captioner import StepAttention, average_attention

_MOST_EXTRA = 2  # states of an encoder beside those of its patches: DeiT's class and distillation


@dataclass(frozen=True)
class GeneratedCaption:
    """Tokens of a caption, without prompt and end; score: log-probability in nats, end included.

    steps: attention to the n * n patches of the image at each token, (1, R); None if the encoder's
    states are not those of a square grid.
    """

    tokens: tuple[int, ...]
    score: float
    steps: tuple[StepAttention, ...] | None


def generate_captions(
    model: Any, layers: AdaptedLayers, inputs: Mapping[str, Tensor], **generation: object
) -> list[list[GeneratedCaption]]:
    """Return the captions of each image, the best first; only those have attention.

    inputs: of `model.generate`, pixel_values (B, 3, height, width) among them; generation: its
    other arguments. The generated tokens are those of `model.generate` alone.
    """
    with recording() as recorded, torch.no_grad():
        asked = {"return_dict_in_generate": True, "output_logits": True}
        output = model.generate(**{**inputs, **generation, **asked})
    images = len(next(iter(inputs.values())))
    each = len(output.sequences) // images
    beams = getattr(output, "beam_indices", None)
    found = []
    for number in range(len(output.sequences)):
        rows = [number] * len(output.logits) if beams is None else beams[number].tolist()
        last = output.sequences[number, -len(rows) :].tolist()
        tokens, score = _cut(model, last, rows, output.logits)
        steps = None
        if number % each == 0:
            columns = _image_columns(model, inputs, number // each)
            trace = _Trace(recorded, layers, columns, number // each)
            steps = trace.steps(rows[: len(tokens)])
        found.append(GeneratedCaption(tuple(tokens), score, steps))
    return [found[first : first + each] for first in range(0, len(found), each)]


def _special_ids(model: Any, *names: str) -> set[int]:
    """Return ids of special tokens, such as `eos_token_id`, from all configs of a model."""
    configs: list[Any] = [model.generation_config, model.config]
    configs.append(model.config.get_text_config(decoder=True))
    found = [getattr(config, name, None) for config in configs for name in names]
    lists = [one if isinstance(one, list | tuple) else [one] for one in found]
    return {token for one in lists for token in one if token is not None}


def _cut(
    model: Any, tokens: Sequence[int], rows: Sequence[int], logits: Sequence[Tensor]
) -> tuple[list[int], float]:
    """Return the tokens before the end, and the log-probability of them and the end."""
    ends, pads = (
        _special_ids(model, "eos_token_id", "sep_token_id"),
        _special_ids(model, "pad_token_id"),
    )
    kept, score = [], 0.0
    for step, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        if row < 0 or token in pads - ends:
            break
        score += float(logits[step][row].float().log_softmax(dim=-1)[token])
        if token in ends:
            break
        kept.append(token)
    return kept, score


def _image_columns(model: Any, inputs: Mapping[str, Tensor], image: int) -> Tensor | None:
    """Return the positions of an image's states among those of its prompt; None if all are."""
    names = ("image_token_id", "image_token_index")
    token = next((one for name in names if (one := getattr(model.config, name, None))), None)
    if token is None or "input_ids" not in inputs:
        return None
    is_image: Tensor = inputs["input_ids"][image] == token
    return is_image.nonzero().squeeze(1)


@dataclass(frozen=True)
class _Trace:
    """Attention of one image in a recording; columns: of `_image_columns`."""

    recorded: Recorded
    layers: AdaptedLayers
    columns: Tensor | None
    image: int

    def steps(self, rows: Sequence[int]) -> tuple[StepAttention, ...] | None:
        """Return the attention at each token; rows: the row of the decoder that predicted it."""
        found = []
        for step, row in enumerate(rows):
            cells = [self._cells(self._at(layer, step, row)) for layer in self.layers.images]
            whole = [one for one in cells if one is not None]
            if len(whole) < len(cells):
                return None
            rows_of_one = (one.each(lambda values: values[None]) for one in whole)
            found.append(average_attention(tuple(rows_of_one)))
        return tuple(found)

    def _at(self, layer: int, step: int, row: int) -> AlignedAttention:
        """Return the attention of a layer at a token, (H, keys)."""
        calls = self.recorded.layers[layer]
        if self.layers.words:
            # the words attend to the Q-Former's outputs, and these to the image
            share = self._share_of_queries(step, row)
            return calls[0].each(lambda one: torch.einsum("q,hqr->hr", share, one[self.image]))
        found = calls[step].each(lambda one: one[row, :, -1])
        return found if self.columns is None else _only(found, self.columns)

    def _share_of_queries(self, step: int, row: int) -> Tensor:
        """Return the attention of a token to the Q-Former's outputs, (queries,), of sum 1."""
        of_layers = [self.recorded.layers[one][step].used[row, :, -1] for one in self.layers.words]
        share = torch.stack(of_layers)[..., self.columns].mean(dim=(0, 1))
        return share / share.sum()

    @staticmethod
    def _cells(attention: AlignedAttention) -> AlignedAttention | None:
        """Drop the states before those of the patches; None without a square grid."""
        states = attention.original.shape[-1]
        cells = math.isqrt(states) ** 2
        if cells < 4 or states - cells > _MOST_EXTRA:
            return None
        return _only(attention, slice(states - cells, None))


def _only(attention: AlignedAttention, columns: Tensor | slice) -> AlignedAttention:
    """Keep some of the keys; the gate is the same for all."""
    return attention.each(lambda one: one if one.shape[-1] == 1 else one[..., columns])
