"""Captions that a model of `transformers` generates, with the attention at each of their tokens.

The attention is recorded while `generate` runs, so that it works for every class and way of
decoding in which each step runs the decoder once: greedy, beam search, sampling.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from a2cap.model.adapting.adapted_attention import Recorded, recording
from a2cap.model.adapting.adapted_layers import AdaptedLayers
from a2cap.model.adapting.image_columns import count_prompts, image_columns, padded
from a2cap.model.adapting.removal import Removal, removing
from a2cap.model.alignment import AlignedAttention
from a2cap.model.captioner import StepAttention, average_attention

SUBSETS = 64
"""Most subsets of an image's tokens at once."""
_LOGITS = 1 << 26
"""Predictions in memory at once: 256 MiB of float32."""


@dataclass(frozen=True)
class GeneratedCaption:
    """Tokens of a caption, without prompt and end; score: log-probability in nats, end included.

    steps: attention to the image's N tokens or encoder states at each token, (1, N); None if it was
    not recorded. is_cut: True if the most tokens were reached before an end.
    """

    tokens: tuple[int, ...]
    score: float
    steps: tuple[StepAttention, ...] | None
    is_cut: bool


def generate_captions(
    model: Any,
    layers: AdaptedLayers,
    inputs: Mapping[str, Tensor],
    *,
    attention: bool = True,
    **generation: object,
) -> list[list[GeneratedCaption]]:
    """Return the captions of each image, the best first; only those have attention.

    inputs: of `model.generate`, pixel_values or another image among them.
    attention: record it.
    generation: the other arguments of `generate`, whose tokens alone are those of the captions.
    """
    columns = image_columns(model, inputs)
    asked = {"return_dict_in_generate": True, "output_logits": True}
    arguments = {**inputs, **generation, **asked}
    recorded = Recorded()
    with torch.no_grad():
        if attention:
            with recording(None if columns is None else padded(columns)) as recorded:
                output = model.generate(**arguments)
        else:
            output = model.generate(**arguments)
    each = len(output.sequences) // count_prompts(inputs)
    beams = getattr(output, "beam_indices", None)
    captions = []
    for number in range(len(output.sequences)):
        rows = [number] * len(output.logits) if beams is None else beams[number].tolist()
        last = output.sequences[number, -len(rows) :].tolist()
        tokens, score = _cut(model, last, rows, output.logits)
        steps = None
        if attention and number % each == 0:
            image = number // each
            count = None if columns is None else len(columns[image])
            steps = _Trace(recorded, layers, count, image).steps(rows[: len(tokens)])
        is_cut = len(tokens) == len(output.logits)
        captions.append(GeneratedCaption(tuple(tokens), score, steps, is_cut))
    return [captions[first : first + each] for first in range(0, len(captions), each)]


class _Forced(LogitsProcessor):  # type: ignore[misc]
    """The choice of given tokens, one at each step, whatever the model predicts."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = iter(tokens)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores, (B, V), that leave no other token."""
        forced = torch.full_like(scores, -torch.inf)
        forced[:, next(self._tokens)] = 0
        return forced


def force_tokens(model: Any, inputs: Mapping[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """Return the log-probability of each token after the image and the tokens before, (B, L).

    It is that of the same steps as of a generated caption, so that every class has it.
    """
    single: dict[str, object] = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
    output = model.generate(
        **inputs,
        **single,
        logits_processor=[_Forced(tokens)],
        max_new_tokens=len(tokens),
        return_dict_in_generate=True,
        output_logits=True,
    )
    pairs = zip(output.logits, tokens, strict=True)
    token_log_probs = [step.float().log_softmax(dim=-1)[:, token] for step, token in pairs]
    return torch.stack(token_log_probs, dim=1)


def force_caption(
    model: Any, layers: AdaptedLayers, inputs: Mapping[str, Tensor], tokens: Sequence[int]
) -> GeneratedCaption:
    """Return a given caption of one image, with its log-probability and attention at each token.

    inputs: of `model.generate`, for one image.
    tokens: without prompt and end.
    """
    columns = image_columns(model, inputs)
    with recording(None if columns is None else padded(columns)) as recorded:
        [log_probs] = force_tokens(model, inputs, tokens)
    count = None if columns is None else len(columns[0])
    steps = _Trace(recorded, layers, count, 0).steps([0] * len(tokens))
    return GeneratedCaption(tuple(tokens), float(log_probs.sum()), steps, False)


def kept_token_log_probs(
    model: Any,
    layers: AdaptedLayers,
    inputs: Mapping[str, Tensor],
    tokens: Sequence[int],
    kept: Tensor,
    *,
    rows: int = SUBSETS,
) -> Tensor:
    """Compute the log-probability of each token given S subsets of the image's tokens, (S, L).

    inputs, tokens: as for `force_caption`.
    kept: (S, N) bool, of the N tokens to which that records attention, none in a row being allowed.
    rows: most of them at once.
    Those of a row without removed tokens are the model's own, bit for bit. The image encoder sees
    the whole image: a token that is kept may tell of one that is not.
    """
    columns = image_columns(model, inputs)
    # the words of BLIP-2 have columns, the image of its Q-Former has all keys
    positions = None if columns is None or layers.words else columns[0]
    is_whole = kept.all(dim=1)
    log_probs = kept.new_zeros(len(kept), len(tokens), dtype=torch.float32)
    if is_whole.any():
        log_probs[is_whole] = force_tokens(model, inputs, tokens)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    most = max(1, min(rows, _LOGITS // (len(tokens) * vocabulary)))
    erased = (~is_whole).nonzero()[:, 0]
    for start in range(0, len(erased), most):
        part = erased[start : start + most]
        repeated = {name: torch.cat([values] * len(part)) for name, values in inputs.items()}
        removed = ~kept[part]
        if positions is not None and model.config.is_encoder_decoder:
            # an encoder of text and image is not adapted, but reads this mask
            repeated["attention_mask"] = repeated["attention_mask"].clone()
            repeated["attention_mask"][:, positions] *= kept[part].long()
        with removing(Removal(layers.images, removed, positions)), _encoded_once(model, len(part)):
            log_probs[part] = force_tokens(model, repeated, tokens)
    return log_probs


@contextmanager
def _encoded_once(model: Any, copies: int) -> Iterator[None]:
    """Encode one of several copies of an image, and repeat what the image encoder returns."""
    encoder = model.get_encoder(modality="image")
    if encoder is model:  # a class that names it otherwise
        encoder = model.git.image_encoder if hasattr(model, "git") else model.get_encoder()
    plain: Callable[..., object] = encoder.forward

    def of_one(*args: object, **kwargs: object) -> object:
        def first(value: object) -> object:
            return value[: len(value) // copies] if isinstance(value, Tensor) else value

        image_inputs = {name: first(value) for name, value in kwargs.items()}
        return _repeated(plain(*map(first, args), **image_inputs), copies)

    encoder.forward = of_one
    try:
        yield
    finally:
        del encoder.forward


def _repeated(output: Any, copies: int) -> Any:
    """Return tensors in tuples, lists or an output of `transformers`, each several times."""
    if isinstance(output, Tensor):
        return output.repeat(copies, *[1] * (output.ndim - 1))
    if isinstance(output, Mapping):
        pairs = {name: _repeated(value, copies) for name, value in output.items()}
        return type(output)(**pairs)
    if isinstance(output, tuple | list):
        return type(output)(_repeated(value, copies) for value in output)
    return output


def _special_ids(model: Any, *names: str) -> set[int]:
    """Return ids of special tokens, such as `eos_token_id`, from all configs of a model."""
    configs: list[Any] = [model.generation_config, model.config]
    configs.append(model.config.get_text_config(decoder=True))
    values = [getattr(config, name, None) for config in configs for name in names]
    lists = [v if isinstance(v, list | tuple) else [v] for v in values]
    return {token for ids in lists for token in ids if token is not None}


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


@dataclass(frozen=True)
class _Trace:
    """Attention of one image in a recording; count: its recorded columns, None for all."""

    recorded: Recorded
    layers: AdaptedLayers
    count: int | None
    image: int

    def steps(self, rows: Sequence[int]) -> tuple[StepAttention, ...]:
        """Return the attention at each token; rows: the row of the decoder that predicted it."""
        traced = []
        for step, row in enumerate(rows):
            of_layers = [self._at(layer, step, row) for layer in self.layers.images]
            with_row = (layer.each(lambda values: values[None]) for layer in of_layers)
            traced.append(average_attention(tuple(with_row)))
        return tuple(traced)

    def _at(self, layer: int, step: int, row: int) -> AlignedAttention:
        """Return the attention of a layer at a token, (H, N)."""
        calls = self.recorded.layers[layer]
        if self.layers.words:
            # the words attend to the Q-Former's outputs, and these to the image
            share = self._share_of_queries(step, row)
            return calls[0].each(lambda w: torch.einsum("q,hqr->hr", share, w[self.image]))
        return calls[step].each(lambda w: w[row, :, -1, : self.count if w.shape[-1] > 1 else None])

    def _share_of_queries(self, step: int, row: int) -> Tensor:
        """Return the attention of a token to the Q-Former's outputs, (queries,), of sum 1."""
        of_layers = [self.recorded.layers[n][step].used[row, :, -1] for n in self.layers.words]
        share = torch.stack(of_layers)[..., : self.count].mean(dim=(0, 1))
        return share / share.sum()
