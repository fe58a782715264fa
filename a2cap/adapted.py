"""Captioners of `transformers` with the attention, figures and alignment of a2's captioners.

>>> import a2cap
>>> captioner = a2cap.adapt(model, processor)  # doctest: +SKIP
>>> captioner("dog.jpg").figure().savefig("attention.png")  # doctest: +SKIP

Written for transformers 5.23 (the extra `transformers`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

try:
    import transformers  # noqa: F401  (the modules below need it)
except ImportError as error:
    from a2cap.data.errors import ConfigError

    raise ConfigError(
        'transformers is not installed; run pip install "a2cap[transformers]"'
    ) from error

from a2cap.caption import Caption
from a2cap.data.errors import ConfigError, InputError
from a2cap.data.image_ids import image_id
from a2cap.images import AnyImage, as_pixels, listed, path_of
from a2cap.model.adapting.adapted_losses import adapted_losses
from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.errors import ModelError
from a2cap.model.losses import TwoLosses
from a2cap.pipeline.captioning.adapted.adapted_model import AdaptedModel
from a2cap.pipeline.captioning.adapted.load_model import (
    SETTINGS,
    WEIGHTS,
    load_alignment,
    load_network,
)
from a2cap.pipeline.configuration import config_from
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.evaluation.score_captions import score_evaluation, write_evaluation
from a2cap.pipeline.metrics.spice import NOT_REQUESTED
from a2cap.pipeline.metrics.tokenization import tokenize
from a2cap.pipeline.report.image_card import ImageCard

_TOGETHER = 8  # images that are captioned together; attention of every beam is held


class AdaptedCaptioner:
    """A captioner of `transformers`; call it with an image.

    model: the given model, whose attention to the image is recorded, and aligned if asked for. It
    saves, moves and trains as before.
    """

    def __init__(self, adapted: AdaptedModel, alignment: AlignmentConfig) -> None:
        self._adapted = adapted
        self.model: Any = adapted.network
        self.alignment = alignment
        if alignment.fusion != "none":
            setattr(self.model.config, SETTINGS, alignment.model_dump(mode="json"))

    def __call__(self, image: AnyImage, **generation: Any) -> Caption:
        """Caption one image; generation: arguments of the model's `generate`.

        The words are those of `generate` alone. `beams` has `num_return_sequences` captions, with
        log-probabilities in nats that no length penalty changes. Attention is None where the
        tokens of the image are not the cells of a grid. Raises InputError for an unusable image.
        """
        return next(self.many([image], progress=False, **generation))

    def many(
        self,
        images: str | PathLike[str] | Iterable[AnyImage],
        *,
        batch_size: int = _TOGETHER,
        attention: bool = True,
        progress: bool = True,
        **generation: Any,
    ) -> Iterator[Caption]:
        """Yield the captions of the images of a folder or an iterable, in their order.

        batch_size: images that are decoded together.
        attention: record it, at some cost.
        progress: show a bar on a terminal or in a notebook.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; give 1 or more")
        paths = listed(images)
        total = len(paths) if isinstance(paths, Sized) else 0
        rest = ((path_of(image), as_pixels(image)) for image in paths)
        name = type(self.model).__name__
        with track("caption", total=total, shown=progress) as work:
            while group := list(islice(rest, batch_size)):
                pixels = [pixel_array for _, pixel_array in group]
                captioned = self._adapted.caption(pixels, attention=attention, **generation)
                work.advance(len(group))
                for (path, image), caption in zip(group, captioned, strict=True):
                    kept = image[:, :, ::-1] if path is None else None
                    yield Caption(**vars(caption), path=path, model=name, kept=kept)

    def losses(self, *, step: int = 0, **batch: Any) -> TwoLosses:
        """Compute the caption loss (Eq. 11) and the mask loss (Eq. 4) of a batch.

        batch: arguments of the model's `forward` with `labels`, (B, L) int64, -100 where there is
        no token. step: optimiser updates so far, for the exponential decay (Eq. 8). The caption
        loss gives theta_m no gradient, the mask loss gives theta none.
        """
        try:
            return adapted_losses(self.model, self._adapted.layers, self.alignment, batch, step)
        except ModelError as error:
            raise InputError(str(error)) from error

    def sides(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return theta and theta_m, the mask networks', for an optimiser each."""
        return list(caption_parameters(self.model)), list(mask_parameters(self.model))

    def freeze(self) -> None:
        """Freeze the model; from now on the parameters of alignment alone are trained."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(WEIGHTS in name)

    def save_pretrained(self, directory: str | Path) -> None:
        """Save the model with its alignment, processor and tokenizer; `a2cap.adapt` loads it."""
        self.model.save_pretrained(directory)
        parts: tuple[Any, ...] = (self._adapted.processor, self._adapted.tokenizer)
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
            (name, ImageCard.of_regions(files[name], c.regions, attention=c.attention))
            for name, c in made.items()
        )
        write_evaluation(Path(directory), evaluation, cards)
        return dict(evaluation.scores.metrics)


def adapt(
    model: nn.Module | str | Path,
    processor: Callable[..., Mapping[str, Tensor]] | None = None,
    *,
    tokenizer: object = None,
    alignment: AlignmentConfig | Mapping[str, object] | None = None,
    prompt: str | None = None,
) -> AdaptedCaptioner:
    """Adapt a captioner of `transformers` in place, for its attention and to align it.

    model: a model whose decoder attends to the image, or a directory that `save_pretrained` wrote.
    processor: its processor or image processor, called with images.
    tokenizer: if that has none.
    alignment: fields of `model.alignment`; by default those that the model was saved with, or no
        alignment, which leaves its logits as they are, bit for bit.
    prompt: text that it continues, by default that of its class.
    Raises ConfigError for a model or setting that cannot be used, WeightsError for a damaged
    directory.

    >>> captioner = adapt("my-captioner", processor)  # doctest: +SKIP
    """
    network: Any = load_network(Path(model)) if isinstance(model, str | Path) else model
    saved = getattr(network.config, SETTINGS, None)
    is_saved = alignment is None and saved is not None
    fields = saved if is_saved else alignment
    if not isinstance(fields, AlignmentConfig):
        section = {"alignment": dict(fields or {"fusion": "none"})}
        fields = config_from({"model": section}).model.alignment
    is_adapted = any(WEIGHTS in name for name, _ in network.named_parameters())
    if is_saved and is_adapted:
        raise ConfigError("the model is adapted already; use its captioner, or give alignment=")
    adapted = AdaptedModel(network, processor, tokenizer=tokenizer, alignment=fields, prompt=prompt)
    if is_saved:
        load_alignment(network, Path(network.name_or_path))
    return AdaptedCaptioner(adapted, fields)
