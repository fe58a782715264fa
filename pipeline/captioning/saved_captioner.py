"""A trained captioner on disk: one directory with all that captioning needs.

It contains `model.safetensors` (tensors), `model.json` (plain configuration), `vocabulary.json`,
`extractor.json` (record of the extractor of its training regions) and the extractor's weights.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error
from a2cap.data.files.atomic import link_or_copy
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.sealed_folder import installed_versions, read_manifest, require_intact
from a2cap.data.files.tensors import save_tensors, skip_init
from a2cap.model.captioner import Captioner
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.config import ModelConfig
from a2cap.pipeline.engine.artifacts import CAPTIONER, MANIFEST
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.weights import captioners, detectors

TENSORS, DESCRIPTION, VOCABULARY = "model.safetensors", "model.json", "vocabulary.json"
EXTRACTOR, EXTRACTOR_WEIGHTS = "extractor.json", "weights.safetensors"


class ModelDescription(BaseModel):
    """Content of `model.json`: all that rebuilds the captioner."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: ModelConfig
    """The captioner's configuration."""
    region_width: int
    """Width of its region features, F."""
    vocabulary_size: int
    """Vocabulary size with special tokens, V."""
    vocabulary_digest: str
    """Digest of the vocabulary of its training."""
    max_regions: int | None
    """Maximum regions per image, None for all."""
    trained_on: str | None = None
    """Name that the annotations gave their data, such as "coco"; None if they gave none."""


Captioner_co = TypeVar("Captioner_co", bound=Captioner, covariant=True)


@dataclass(frozen=True)
class LoadedCaptioner(Generic[Captioner_co]):
    """A captioner in evaluation mode with its vocabulary."""

    captioner: Captioner_co  # a single model or an `Ensemble`
    vocabulary: Vocabulary
    description: ModelDescription  # of the first model


def new_captioner(description: ModelDescription) -> EncoderDecoder:
    """Create an untrained captioner."""
    return make_captioner(
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
    """Write tensors, description and vocabulary into `directory`."""
    save_tensors(directory / TENSORS, tensors)
    fields = {**description.model_dump(mode="json"), "model": key_fields(description.model)}
    if description.trained_on is None:  # a later field: without it, files stay as they were
        del fields["trained_on"]
    write_json(directory / DESCRIPTION, fields)
    vocabulary.save(directory / VOCABULARY)


def require_files(directory: Path, *names: str) -> None:
    """Raise A2Error if a file of a trained captioner is missing."""
    for name in names:
        if not (directory / name).is_file():
            raise A2Error(
                f"no trained model in {str(directory)!r}: {name} is missing; "
                'name a directory that "a2 train" has finished'
            )


def load_description(directory: Path) -> tuple[ModelDescription, Vocabulary]:
    """Load what a captioner states about itself; raise A2Error for files that do not match."""
    require_files(directory, TENSORS, DESCRIPTION, VOCABULARY)
    try:
        description = ModelDescription.model_validate(read_json(directory / DESCRIPTION))
    except ValidationError as error:
        has_manifest = (directory / MANIFEST).is_file()
        found = read_manifest(directory).versions.get("a2cap") if has_manifest else None
        raise A2Error(
            f"model.json cannot be used: {str(directory)!r} ({error.error_count()} wrong fields), "
            f"written by a2cap {found or 'of unknown version'}, this is "
            f"{installed_versions().get('a2cap', 'another')}; upgrade with pip install -U a2cap, "
            "or retrain with this version"
        ) from error
    vocabulary = Vocabulary.load(directory / VOCABULARY)
    if vocabulary.digest != description.vocabulary_digest:
        raise A2Error(
            f"vocabulary does not match the model: {str(directory)!r} has vocabulary "
            f"{vocabulary.digest[:12]}, the model was trained with "
            f"{description.vocabulary_digest[:12]}; use the vocabulary.json it was trained with"
        )
    return description, vocabulary


def load_model(directory: Path, *, device: torch.device) -> LoadedCaptioner[EncoderDecoder]:
    """Load a trained captioner; raise A2Error for files that are missing or do not match."""
    require_files(directory, TENSORS, DESCRIPTION, VOCABULARY)
    require_intact(directory, *CAPTIONER)
    description, vocabulary = load_description(directory)
    with skip_init():
        captioner = new_captioner(description)
    try:
        tensors = load_file(directory / TENSORS)
        captioner.load_state_dict(tensors)
        wrong = sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all())
        if wrong:
            raise ValueError(f"{wrong[0]!r} has numbers that are not finite")
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise A2Error(
            f"tensors cannot be used: {str(directory / TENSORS)!r} "
            f"({str(error).splitlines()[0].rstrip(':')}); train again, or copy the directory again"
        ) from error
    return LoadedCaptioner(captioner.to(device).eval(), vocabulary, description)


def save_captioner(
    directory: Path,
    tensors: dict[str, torch.Tensor],
    description: ModelDescription,
    vocabulary: Vocabulary,
    *,
    features: Path,
) -> None:
    """Write the captioner, its vocabulary, and the extractor of its features."""
    save_model(directory, tensors=tensors, description=description, vocabulary=vocabulary)
    shutil.copyfile(features / EXTRACTOR, directory / EXTRACTOR)
    if (features / EXTRACTOR_WEIGHTS).is_file():  # imported features have no extractor
        link_or_copy(features / EXTRACTOR_WEIGHTS, directory / EXTRACTOR_WEIGHTS)


def captioner_outputs(features: Path) -> tuple[str, ...]:
    """Return the files of a captioner that is trained on these features."""
    has_weights = (features / EXTRACTOR_WEIGHTS).is_file()  # imported features have no extractor
    return (*CAPTIONER, EXTRACTOR_WEIGHTS) if has_weights else CAPTIONER


def extractor_weights(directory: Path) -> Path:
    """Return the file of the extractor's weights, of a bundled captioner the bundled detector."""
    for name, folder in captioners.BUNDLED.items():
        if directory == folder:
            return detectors.BUNDLED[name].path
    return directory / EXTRACTOR_WEIGHTS
