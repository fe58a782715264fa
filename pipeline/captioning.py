"""Captions of any picture: extraction and decoding in one process, from a trained directory."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from a2.data.batches import Item, collate, strongest
from a2.data.errors import A2Error, ConfigError, InputError
from a2.data.identity import image_id
from a2.data.instances import read_boxes
from a2.data.json_files import read_json
from a2.extract.config import ExtractConfig
from a2.extract.extractor import Extractor
from a2.extract.picture import read_picture
from a2.extract.weights import load_detector
from a2.pipeline.config import EvaluateConfig, RuntimeConfig
from a2.pipeline.decoding import Beam, caption_batches
from a2.pipeline.device import prepare_device
from a2.pipeline.model_errors import model_errors
from a2.pipeline.saved_model import EXTRACTOR, EXTRACTOR_WEIGHTS, SavedModel, load_model

logger = logging.getLogger(__name__)


def caption_files(
    pictures: Sequence[Path], *, model: Path, boxes: Path | None, beam_size: int, device: str
) -> Iterator[tuple[Path, list[Beam] | A2Error]]:
    """Yields each picture with its beams, best first, or with the error that skipped it.

    Raises A2Error before any work where the model cannot be used, and ConfigError where it was
    trained on given boxes and none are named.
    """
    where = prepare_device(RuntimeConfig(device=device))
    saved = load_model(model, device=where)
    config = extract_config(model)
    given = _given_boxes(config, boxes, model)
    detector = load_detector(model / EXTRACTOR_WEIGHTS)
    extractor = Extractor(detector, config=config, device=str(where))
    for path in pictures:
        try:
            yield path, _caption(path, extractor, saved, given, beam_size=beam_size)
        except A2Error as error:
            yield path, error


def extract_config(model: Path) -> ExtractConfig:
    """How the regions were made that the captioner in `model` was trained on."""
    content = read_json(model / EXTRACTOR)
    try:
        if isinstance(content, dict):
            return ExtractConfig.model_validate(content.get("config"))
    except ValidationError as error:
        logger.debug("%s", error)
    raise InputError(
        f"extractor.json does not say how regions are made: {str(model)!r}; "
        "copy the whole directory again, or train again"
    )


def _caption(
    path: Path,
    extractor: Extractor,
    saved: SavedModel,
    given: dict[str, NDArray[np.float32]] | None,
    *,
    beam_size: int,
) -> list[Beam]:
    name = image_id(path.name)
    if given is not None and name not in given:
        raise InputError(f"no boxes for image {name!r}; add them to the file of --boxes")
    found = extractor(read_picture(path), None if given is None else given[name])
    # Rounded and chosen as in training: its regions came out of a store of this dtype.
    stored = replace(found, features=found.features.astype(extractor.config.dtype))
    batch = collate([Item(name, strongest(stored, saved.description.max_regions), None)])
    decoded = caption_batches(
        saved.captioner,
        [batch],
        saved.vocabulary,
        beam_size=beam_size,
        max_length=EvaluateConfig().max_length,
        device=extractor.device,
    )
    with model_errors():
        return next(iter(decoded))[1]


def _given_boxes(
    config: ExtractConfig, boxes: Path | None, model: Path
) -> dict[str, NDArray[np.float32]] | None:
    if config.boxes == "given":
        if boxes is None:
            raise ConfigError(
                f"the captioner in {str(model)!r} was trained on given boxes; "
                "name the pictures' boxes with --boxes FILE (COCO instances)"
            )
        return read_boxes(boxes)
    if boxes is not None:
        raise ConfigError(
            f"the captioner in {str(model)!r} was trained on detected boxes; leave --boxes out"
        )
    return None
