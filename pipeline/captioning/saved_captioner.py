"""A trained captioner on disk: a directory that captions images with nothing else beside it.

`model.safetensors` (tensors), `model.json` (plain configuration), `vocabulary.json`,
`extractor.json` (how the regions it was trained on were made) and the extractor's weights.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.tensors import save_tensors, skip_init
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.config import ModelConfig
from a2cap.pipeline.engine.artifacts import CAPTIONER

TENSORS, DESCRIPTION, VOCABULARY = "model.safetensors", "model.json", "vocabulary.json"
EXTRACTOR, EXTRACTOR_WEIGHTS = "extractor.json", "weights.safetensors"


class ModelDescription(BaseModel):
    """What stands in `model.json`: all that is needed to build the captioner again."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: ModelConfig
    """The captioner's configuration."""
    region_width: int
    """F, the width of the region features that it was trained on."""
    vocabulary_size: int
    """V, specials included."""
    vocabulary_digest: str
    """Digest of the vocabulary that the output rows stand for."""
    max_regions: int | None
    """Most regions of an image that it sees."""


@dataclass(frozen=True)
class SavedModel:
    """A loaded captioner, in evaluation mode, and what belongs to it."""

    captioner: TransformerCaptioner
    vocabulary: Vocabulary
    description: ModelDescription


def new_captioner(description: ModelDescription) -> TransformerCaptioner:
    """An untrained captioner of this description."""
    return TransformerCaptioner(
        description.model,
        feature_width=description.region_width,
        vocabulary_size=description.vocabulary_size,
    )


def save_model(
    directory: Path,
    *,
    tensors: dict[str, torch.Tensor],
    description: ModelDescription,
    vocabulary: Vocabulary,
) -> None:
    """Writes tensors, description and vocabulary into `directory`."""
    save_tensors(directory / TENSORS, tensors)
    write_json(directory / DESCRIPTION, description.model_dump(mode="json"))
    vocabulary.save(directory / VOCABULARY)


def load_model(directory: Path, *, device: torch.device) -> SavedModel:
    """Reads a trained captioner; A2Error where files are missing or do not belong together."""
    missing = [
        name for name in (TENSORS, DESCRIPTION, VOCABULARY) if not (directory / name).is_file()
    ]
    if missing:
        raise A2Error(
            f"no trained model in {str(directory)!r}: {missing[0]} is missing; "
            'name a directory that "a2 train" has finished'
        )
    try:
        description = ModelDescription.model_validate(read_json(directory / DESCRIPTION))
    except ValidationError as error:
        raise A2Error(
            f"model.json cannot be used: {str(directory)!r} ({error.error_count()} wrong fields); "
            "retrain with this version"
        ) from error
    vocabulary = Vocabulary.load(directory / VOCABULARY)
    if vocabulary.digest != description.vocabulary_digest:
        raise A2Error(
            f"vocabulary and model do not belong together: {str(directory)!r} has vocabulary "
            f"{vocabulary.digest[:12]}, the model was trained with "
            f"{description.vocabulary_digest[:12]}; use the vocabulary.json it was trained with"
        )
    with skip_init():
        captioner = new_captioner(description)
    try:
        captioner.load_state_dict(load_file(directory / TENSORS))
    except (SafetensorError, RuntimeError) as error:
        raise A2Error(
            f"tensors cannot be used: {str(directory / TENSORS)!r} "
            f"({str(error).splitlines()[0].rstrip(':')}); train again, or copy the directory anew"
        ) from error
    return SavedModel(captioner.to(device).eval(), vocabulary, description)


def save_captioner(
    directory: Path,
    tensors: dict[str, torch.Tensor],
    description: ModelDescription,
    vocabulary: Vocabulary,
    *,
    features: Path,
) -> None:
    """Writes all that captions need: captioner, vocabulary, and what made the regions."""
    save_model(directory, tensors=tensors, description=description, vocabulary=vocabulary)
    shutil.copyfile(features / EXTRACTOR, directory / EXTRACTOR)
    _link(features / EXTRACTOR_WEIGHTS, directory / EXTRACTOR_WEIGHTS)


def _link(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or a copy where the disk cannot link."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def captioner_folder(path: Path, field: str) -> Path:
    """The result of a training that `field` names; InputError where one of its files is missing."""
    for name in CAPTIONER:
        if not (path / name).is_file():
            raise InputError(
                f"{field} names no trained captioner: {str(path)!r} has no {name}; "
                'name a directory that "a2 train" has finished'
            )
    return path
