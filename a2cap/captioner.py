"""Trained captioners for images of Python programs."""

import logging
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from functools import partial
from html import escape
from itertools import islice
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal, cast, overload

from numpy.typing import ArrayLike

from a2cap.caption import Caption
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.json_file import read_json
from a2cap.images import AnyImage, Channels, as_boxes, as_pixels, is_image, listed, path_of
from a2cap.pipeline.captioning.captioned_image import CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.image_captioner import open_captioner
from a2cap.pipeline.configuration import config_from
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.training.learning_curve import LearningCurve
from a2cap.pipeline.weights.captioners import DEFAULT, captioner_name

logger = logging.getLogger(__name__)

_PROVENANCE = "provenance.json"
"""Of a bundled captioner; `benchmarks.photos` writes it."""

_lock = Lock()
"""Of images in memory: Pillow loads one lazily, and threads may have the same."""


class Captioner:
    """A trained captioner, or an ensemble; call it with an image or with many.

    It may be called from several threads, pickled and copied.
    """

    def __init__(self, models: Sequence[Path], *, device: str = "auto", **decoding: object) -> None:
        # the batch size is an argument of each call
        fields = [name for name in CaptioningConfig.model_fields if name != "batch_size"]
        if unknown := sorted(decoding.keys() - set(fields)):
            valid = ", ".join(fields)
            raise ConfigError(f"unknown setting of decoding: {unknown[0]!r}; valid names: {valid}")
        config = config_from({"evaluate": decoding, "runtime": {"device": device}})
        self._captioner = open_captioner(models, decoding=config.evaluate, runtime=config.runtime)
        self.name = captioner_name(models)
        self._models = list(models)

    @property
    def facts(self) -> dict[str, str]:
        """What is known of the captioner: model, vocabulary, regions, decoding, scores."""
        validation = "; ".join(filter(None, map(_validation, self._models)))
        return self._captioner.facts | ({"validation": validation} if validation else {})

    def __repr__(self) -> str:
        shown = ("model", "vocabulary", "decoding", "validation")
        facts = "; ".join(f"{name} {self.facts[name]}" for name in shown if name in self.facts)
        return f"Captioner({self.name!r}: {facts})"

    def _repr_html_(self) -> str:
        """Return name and facts as a small table, as a notebook shows it."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self.facts.items()
        )
        return f"<table><caption>Captioner {escape(self.name)}</caption>{rows}</table>"

    @overload
    def __call__(
        self, images: AnyImage, *, boxes: ArrayLike | None = None, channels: Channels = "rgb"
    ) -> Caption: ...

    @overload
    def __call__(
        self,
        images: list[AnyImage] | tuple[AnyImage, ...],
        *,
        batch_size: int = 16,
        on_error: Literal["raise", "skip"] = "raise",
        progress: bool = True,
        channels: Channels = "rgb",
    ) -> list[Caption]: ...

    @overload
    def __call__(
        self,
        images: Iterator[AnyImage],
        *,
        batch_size: int = 16,
        on_error: Literal["raise", "skip"] = "raise",
        progress: bool = True,
        channels: Channels = "rgb",
    ) -> Iterator[Caption]: ...

    def __call__(
        self,
        images: AnyImage | Iterable[AnyImage],
        *,
        boxes: ArrayLike | None = None,
        batch_size: int = 16,
        on_error: Literal["raise", "skip"] = "raise",
        progress: bool = True,
        channels: Channels = "rgb",
    ) -> Caption | list[Caption] | Iterator[Caption]:
        """Caption an image, or each of many as `many` does.

        images: an image, which returns its Caption, is a path, a PIL image, an array of uint8,
            (H, W), (H, W, 3) or (H, W, 4), or a tensor, (C, H, W) of uint8 or of floats in [0, 1].
            A list, or anything else with a length such as a column of a table or an array of four
            axes, returns a list; a folder or generator returns an iterator.
        boxes: (R, 4) x1 y1 x2 y2 in pixels of a single image, for a captioner trained on given
            boxes.
        channels: order of the colours of arrays.

        Raises InputError for a web address, an unusable image or unusable boxes.
        """
        if is_image(images):
            opened = partial(self._open, images, boxes, channels)
            [shown] = self._captioner.caption_each([opened], attention=True)
            if isinstance(shown, A2Error):
                raise shown
            return self._caption(images, shown, channels)
        if boxes is not None:
            raise InputError("boxes are of one image, but there are many; give them to `many`")
        captions = self.many(
            images,  # type: ignore[arg-type]
            batch_size=batch_size,
            on_error=on_error,
            progress=progress,
            channels=channels,
        )
        is_folder = isinstance(images, str | PathLike)
        return list(captions) if isinstance(images, Sized) and not is_folder else captions

    def many(
        self,
        images: str | PathLike[str] | Iterable[AnyImage],
        *,
        boxes: Iterable[ArrayLike | None] | None = None,
        batch_size: int = 16,
        on_error: Literal["raise", "skip"] = "raise",
        progress: bool = True,
        channels: Channels = "rgb",
    ) -> Iterator[Caption]:
        """Yield the captions of the images of a folder or an iterable, in their order.

        batch_size: images that are decoded together; captions do not depend on it, unless they are
            sampled.
        boxes: those of each image.
        on_error: "skip" leaves out unusable images, with a warning in the log; captions state their
            `path`.
        progress: show a bar on a terminal or in a notebook.
        Captions of files read them again when they are shown, so that many fit into memory.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; give 1 or more")
        if on_error not in ("raise", "skip"):
            raise InputError(f'on_error is unknown: {on_error!r}; choose "raise" or "skip"')
        paths = listed(images)

        def captions() -> Iterator[Caption]:
            rest = enumerate(_pairs(paths, boxes))
            total = len(paths) if isinstance(paths, Sized) else 0
            with track("caption", total=total, shown=progress) as bar:
                while group := list(islice(rest, batch_size)):
                    works = [partial(self._open, *pair, channels) for _, pair in group]
                    captioned = self._captioner.caption_each(works, attention=True)
                    bar.advance(len(group))
                    for (number, (image, _)), image_result in zip(group, captioned, strict=True):
                        if not isinstance(image_result, A2Error):
                            yield self._caption(image, image_result, channels)
                            continue
                        text = f"image {number}: {image_result}"
                        if on_error == "raise":
                            raise type(image_result)(text) from image_result
                        logger.warning("skipped %s", text)

        return captions()

    def _open(self, image: AnyImage, boxes: ArrayLike | None, channels: Channels) -> OpenedImage:
        with nullcontext() if path_of(image) else _lock:
            pixels = as_pixels(image, channels=channels)
        return OpenedImage(pixels, as_boxes(boxes))

    def _caption(self, image: AnyImage, captioned: CaptionedImage, channels: Channels) -> Caption:
        path = path_of(image)
        kept = as_pixels(image, channels=channels)[:, :, ::-1] if path is None else None
        return Caption(**vars(captioned), path=path, model=self.name, kept=kept)


def _validation(folder: Path) -> str:
    """Return the validation score that a captioner's folder states, "" if it states none."""
    if curve := LearningCurve.read(folder):
        score = curve.value(curve.best)
        return "" if score is None else f"{curve.selected_by} {score:.3f}, {curve.summary}"
    if not (folder / _PROVENANCE).is_file():
        return ""
    content: Any = read_json(folder / _PROVENANCE)
    return f"CIDEr {content['validation']['CIDEr']:.3f}"


def _pairs(
    images: Iterable[AnyImage], boxes: Iterable[ArrayLike | None] | None
) -> Iterator[tuple[AnyImage, ArrayLike | None]]:
    """Yield each image with its boxes; raise InputError if their numbers differ."""
    boxes_left = None if boxes is None else iter(boxes)
    end = object()
    for image in images:
        image_boxes = None if boxes_left is None else next(boxes_left, end)
        if image_boxes is end:
            break
        yield image, cast("ArrayLike | None", image_boxes)
    else:
        if boxes_left is None or next(boxes_left, end) is end:
            return
    raise InputError("images and boxes differ in number; give one entry of boxes for each image")


def load(
    model: str | Path | Sequence[str | Path] = DEFAULT, *, device: str = "auto", **decoding: object
) -> Captioner:
    """Load a trained captioner, or several directories as an ensemble.

    model: a directory that `a2 train` wrote, a folder above it, a name, the start of a key or
    "latest" of `a2 runs`, or a bundled captioner, "photos" or "scenes". device: auto, cpu, cuda or
    cuda:N. decoding: fields of the section `evaluate`, such as beam_size=3. Raises A2Error for an
    unusable directory or field.

    >>> captioner = load("artifacts/demo/train-xe/0123456789ab", beam_size=3)  # doctest: +SKIP
    """
    models = [model] if isinstance(model, str | Path) else list(model)
    return Captioner(find_trainings(map(Path, models)), device=device, **decoding)
