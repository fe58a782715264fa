"""Captioners of `transformers` with the attention, figures and alignment of a2's captioners.

>>> import a2cap
>>> captioner = a2cap.adapt(model, processor)  # doctest: +SKIP
>>> captioner("dog.jpg").figure().savefig("attention.png")  # doctest: +SKIP

Written for transformers 5.23 (the extra `transformers`).
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

try:
    import transformers
except ImportError as error:
    from a2cap.data.errors import ConfigError

    raise ConfigError(
        'transformers is not installed; run pip install "a2cap[transformers]"'
    ) from error

from a2cap.caption import Caption
from a2cap.data.errors import ConfigError, InputError, WeightsError
from a2cap.data.image_ids import image_id
from a2cap.data.regions import Regions, cell_boxes
from a2cap.extract.detector.input import Pixels
from a2cap.images import AnyImage, as_pixels, listed, path_of
from a2cap.model.adapting.adapted_losses import adapted_losses
from a2cap.model.adapting.cross_attention import adapt_layers
from a2cap.model.adapting.generation import GeneratedCaption, generate_captions
from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.errors import ModelError
from a2cap.model.losses import TwoLosses
from a2cap.pipeline.captioning.attention import join_steps, of_image
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.subwords import average_tokens, merge_tokens
from a2cap.pipeline.configuration import config_from
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.evaluation.score_captions import score_evaluation, write_evaluation
from a2cap.pipeline.metrics.spice import NOT_REQUESTED
from a2cap.pipeline.metrics.tokenization import tokenize
from a2cap.pipeline.report.image_card import ImageCard

logger = logging.getLogger(__name__)

_SETTINGS = "a2_alignment"
"""Field of the model's config.json."""
_WEIGHTS = ".a2."
"""Part of the name of every parameter of alignment."""
_LONGEST = 200  # characters of a reason
_TOGETHER = 8  # images that are captioned together; attention of every beam is held


class AdaptedCaptioner:
    """A captioner of `transformers`; call it with an image.

    model: the given model, whose cross-attentions are recorded, and aligned if asked for. It saves,
    moves and trains as before.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Callable[..., Mapping[str, Tensor]] | None,
        *,
        tokenizer: Any,
        alignment: AlignmentConfig,
        text: str | None,
    ) -> None:
        self.model: Any = model
        self.alignment = alignment
        self._processor, self._text = processor, text
        self._tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        try:
            self._layers = adapt_layers(model, alignment)
        except ModelError as error:
            raise ConfigError(str(error)) from error
        if alignment.fusion != "none":
            setattr(model.config, _SETTINGS, alignment.model_dump(mode="json"))

    def __call__(self, image: AnyImage, **generation: Any) -> Caption:
        """Caption one image; generation: arguments of the model's `generate`.

        The words are those of `generate` alone. `beams` has `num_return_sequences` captions, with
        log-probabilities in nats that no length penalty changes. Attention is None where the
        encoder's states are not those of a square grid. Raises InputError for an unusable image.
        """
        return next(self.many([image], progress=False, **generation))

    def many(
        self,
        images: str | PathLike[str] | Iterable[AnyImage],
        *,
        batch_size: int = _TOGETHER,
        progress: bool = True,
        **generation: Any,
    ) -> Iterator[Caption]:
        """Yield the captions of the images of a folder or an iterable, in their order.

        batch_size: images that are decoded together. progress: show a bar on a terminal or in a
        notebook.
        """
        if self._processor is None or self._tokenizer is None:
            missing = "processor" if self._processor is None else "tokenizer"
            raise ConfigError(f"no {missing} to caption with; give a2cap.adapt(..., {missing}=...)")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; give 1 or more")
        given = listed(images)
        total = len(given) if isinstance(given, Sized) else 0
        rest = ((path_of(image), as_pixels(image)) for image in given)
        was_training = self.model.training
        with track("caption", total=total, shown=progress) as work:
            while group := list(islice(rest, batch_size)):
                inputs = self._inputs([pixels for _, pixels in group])
                self.model.eval()
                try:
                    found = generate_captions(self.model, self._layers, inputs, **generation)
                finally:
                    self.model.train(was_training)
                work.advance(len(group))
                for (path, pixels), captions in zip(group, found, strict=True):
                    yield self._caption(path, pixels, captions)

    def losses(self, *, step: int = 0, **batch: Any) -> TwoLosses:
        """Compute the caption loss (Eq. 11) and the mask loss (Eq. 4) of a batch.

        batch: arguments of the model's `forward` with `labels`, (B, L) int64, -100 where there is
        no token. step: optimiser updates so far, for the exponential decay (Eq. 8). The caption
        loss gives theta_m no gradient, the mask loss gives theta none.
        """
        try:
            return adapted_losses(self.model, self._layers, self.alignment, batch, step)
        except ModelError as error:
            raise InputError(str(error)) from error

    def sides(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return theta and theta_m, the mask networks', for an optimiser each."""
        return list(caption_parameters(self.model)), list(mask_parameters(self.model))

    def save_pretrained(self, directory: str | Path) -> None:
        """Save the model with its alignment, processor and tokenizer; `a2cap.adapt` loads it."""
        self.model.save_pretrained(directory)
        parts: tuple[Any, ...] = (self._processor, self._tokenizer)
        for part in parts:
            if hasattr(part, "save_pretrained"):
                part.save_pretrained(directory)

    def report(
        self,
        directory: str | Path,
        references: Mapping[str | Path, Sequence[str]],
        **generation: Any,
    ) -> dict[str, float]:
        """Caption image files and write report.html with their attention; return the metrics.

        references: image file -> its reference captions; of two images or more for CIDEr.
        """
        files = {image_id(Path(file).name): Path(file) for file in references}
        if len(files) < len(references):
            raise InputError("two images have one name, which is their id; rename one of them")
        made = dict(zip(files, self.many(files.values(), **generation), strict=True))
        shown = dict(zip(files, map(list, references.values()), strict=True))
        evaluation = score_evaluation(
            type(self.model).__name__,
            {name: caption.caption for name, caption in made.items()},
            tokenize(shown),
            tokenizer="karpathy",
            no_spice=NOT_REQUESTED,
            groups={},
            scenes=None,
            shown=shown,
        )
        cards = (
            (name, ImageCard.of_regions(files[name], one.regions, attention=one.attention))
            for name, one in made.items()
        )
        write_evaluation(Path(directory), evaluation, cards)
        return dict(evaluation.scores.metrics)

    def _inputs(self, images: Sequence[Pixels]) -> dict[str, Tensor]:
        """Return the processor's tensors on the model's device and in its precision."""
        assert self._processor is not None
        options: dict[str, Any] = {} if self._text is None else {"text": [self._text] * len(images)}
        rgb = [Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1])) for pixels in images]
        given = self._processor(images=rgb, return_tensors="pt", **options)
        known = {name: one for name, one in given.items() if isinstance(one, Tensor)}
        dtype, device = self.model.dtype, self.model.device
        return {
            name: one.to(device, dtype) if one.is_floating_point() else one.to(device)
            for name, one in known.items()
        }

    def _caption(
        self, path: Path | None, pixels: Pixels, found: Sequence[GeneratedCaption]
    ) -> Caption:
        merged = [merge_tokens(self._tokenizer, one.tokens) for one in found]
        beams = [
            Beam(" ".join(words), one.score) for (words, _), one in zip(merged, found, strict=True)
        ]
        height, width = pixels.shape[:2]
        attention, cells = None, 0
        if found[0].steps is None:
            logger.warning("no attention to show: the encoder's states are not a square grid")
        elif found[0].steps and beams[0].caption:
            whole = join_steps(found[0].steps, layers=True)
            cells = whole.original.shape[-1]
            of_tokens = of_image(whole, 0, len(found[0].steps), cells)
            attention = average_tokens(of_tokens, merged[0][1])
        boxes = cell_boxes(math.isqrt(cells), _seen_area(self._processor, width, height))
        none = np.zeros(cells, np.float32)
        features = np.zeros((cells, 0), np.float32)
        regions = Regions(boxes, features, none, none.astype(np.int32), None, width, height)
        kept = pixels[:, :, ::-1] if path is None else None
        name = type(self.model).__name__
        return Caption(beams, regions, attention, path=path, model=name, kept=kept)


def adapt(
    model: nn.Module | str | Path,
    processor: Callable[..., Mapping[str, Tensor]] | None = None,
    *,
    tokenizer: object = None,
    alignment: AlignmentConfig | Mapping[str, object] | None = None,
    text: str | None = None,
) -> AdaptedCaptioner:
    """Adapt a captioner of `transformers` in place, for its attention and to align it.

    model: a model with cross-attention, or a directory that `save_pretrained` wrote. processor: its
    processor or image processor, called with images; tokenizer: if that has none. alignment: fields
    of `model.alignment`; by default those that the model was saved with, or no alignment, which
    leaves its logits as they are, bit for bit. text: prompt, such as "<CAPTION>". Raises
    ConfigError for a model or setting that cannot be used, WeightsError for a damaged directory.

    >>> captioner = adapt("my-captioner", processor)  # doctest: +SKIP
    """
    network: Any = _load(Path(model)) if isinstance(model, str | Path) else model
    saved = getattr(network.config, _SETTINGS, None)
    is_saved = alignment is None and saved is not None
    fields = saved if is_saved else alignment
    if not isinstance(fields, AlignmentConfig):
        section = {"alignment": dict(fields or {"fusion": "none"})}
        fields = config_from({"model": section}).model.alignment
    is_adapted = any(_WEIGHTS in name for name, _ in network.named_parameters())
    if is_saved and is_adapted:
        raise ConfigError("the model is adapted already; use its captioner, or give alignment=")
    found = AdaptedCaptioner(network, processor, tokenizer=tokenizer, alignment=fields, text=text)
    if is_saved:
        _load_alignment(network, Path(network.name_or_path))
    return found


def _load(directory: Path) -> Any:
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"not a saved model: {str(directory)!r}; name a directory of save_pretrained"
        )
    try:
        config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
        [name] = config.architectures or ["no architecture"]
        kind = getattr(transformers, name)
        # they are loaded after the model was adapted
        kind._keys_to_ignore_on_load_unexpected = [
            *(kind._keys_to_ignore_on_load_unexpected or []),
            _WEIGHTS.replace(".", r"\."),
        ]
        return kind.from_pretrained(directory)
    except Exception as error:  # of many types, for damaged files and unknown models
        reason = " ".join(str(error).split())[:_LONGEST]
        raise WeightsError(
            f"cannot load {str(directory)!r}: {reason}; name an undamaged directory of "
            "save_pretrained"
        ) from error


def _load_alignment(model: nn.Module, directory: Path) -> None:
    """Load the parameters that the model's own `from_pretrained` ignores."""
    found = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            names = [name for name in list(opened.keys()) if _WEIGHTS in name]
            found.update({name: opened.get_tensor(name) for name in names})
    wanted = {name: one for name, one in model.state_dict().items() if _WEIGHTS in name}
    odd = sorted(wanted.keys() ^ found.keys())
    if odd:
        raise WeightsError(
            f"alignment in {str(directory)!r} is not that of the model: {odd[0]!r} is in one of "
            "them; name the directory of save_pretrained, or start again with alignment="
        )
    model.load_state_dict(found, strict=False)


def _seen_area(processor: Any, width: int, height: int) -> tuple[float, float, float, float]:
    """Return the part of an image that the processor keeps, x1 y1 x2 y2 in pixels."""
    part = getattr(processor, "image_processor", processor)
    crop = getattr(part, "crop_size", None) if getattr(part, "do_center_crop", False) else None
    if not crop:
        return 0.0, 0.0, float(width), float(height)
    size = (getattr(part, "size", None) or {}) if getattr(part, "do_resize", False) else {}
    shortest = size.get("shortest_edge")
    x = y = shortest / min(width, height) if shortest else 1.0
    if not shortest and size.get("width"):
        x, y = size["width"] / width, size["height"] / height
    seen_x, seen_y = crop["width"] / x, crop["height"] / y
    return (width - seen_x) / 2, (height - seen_y) / 2, (width + seen_x) / 2, (height + seen_y) / 2
