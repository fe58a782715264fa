"""The files of a trained captioner's directory, and what they state about it without its tensors.

It contains `model.safetensors` (tensors), `model.json` (plain configuration), `vocabulary.json`,
`extractor.json` (record of the extractor of its training regions) and the extractor's weights.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError, near_name
from a2cap.data.files.json_file import read_json
from a2cap.data.files.paths import did_you_mean
from a2cap.data.files.sealed_folder import MANIFEST, FileContent, installed_versions, read_manifest
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.model.captioners.model_config import KIND_ERROR, ModelConfig
from a2cap.model.plug_ins import PlugIn
from a2cap.pipeline.engine.artifact_names import CAPTIONER
from a2cap.pipeline.weights import captioners, detectors

TENSORS, DESCRIPTION, VOCABULARY = "model.safetensors", "model.json", "vocabulary.json"
EXTRACTOR, EXTRACTOR_WEIGHTS = "extractor.json", "weights.safetensors"
_ADVICE = "an ensemble needs captioners that were trained on the same features and vocabulary"


class ModelDescription(FileContent):
    """Content of `model.json`: all that rebuilds the captioner."""

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
    plug_in: PlugIn | None = None
    """Package whose code the captioner was trained with; None for a kind of a2."""


def require_files(directory: Path, *names: str) -> None:
    """Raise A2Error if a file of a trained captioner is missing."""
    for name in names:
        if not (directory / name).is_file():
            near = "" if directory.exists() else near_name(str(directory), captioners.BUNDLED)
            meant = f"; {near}" if near else did_you_mean(directory)
            raise A2Error(
                f"no trained model in {str(directory)!r}: {name} is missing; "
                f'name a directory that "a2 train" has finished{meant}'
            )


def load_description(directory: Path) -> tuple[ModelDescription, Vocabulary]:
    """Load what a captioner states about itself; raise A2Error for files that do not match."""
    require_files(directory, TENSORS, DESCRIPTION, VOCABULARY)
    try:
        description = ModelDescription.model_validate(read_json(directory / DESCRIPTION))
    except ValidationError as error:
        _require_known_kind(directory, error)
        has_manifest = (directory / MANIFEST).is_file()
        version = read_manifest(directory).versions.get("a2cap") if has_manifest else None
        raise A2Error(
            f"model.json cannot be used: {str(directory)!r} ({error.error_count()} wrong fields), "
            f"written by a2cap {version or 'of unknown version'}, this is "
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


def _require_known_kind(directory: Path, error: ValidationError) -> None:
    """Raise A2Error where the code of another package is missing, or not trusted."""
    content = read_json(directory / DESCRIPTION)
    message = next((str(e["msg"]) for e in error.errors() if e["type"] == KIND_ERROR), None)
    if message is None or not isinstance(content, dict) or not content.get("plug_in"):
        return
    try:
        plug_in = TypeAdapter(PlugIn).validate_python(content["plug_in"])
    except ValidationError:
        return
    if plug_in.is_installed:
        raise A2Error(f"captioner {str(directory)!r} cannot be used: {message}") from error
    raise A2Error(
        f"captioner {str(directory)!r} needs {plug_in.requirement!r}, which is not installed; if "
        f"you trust its author: pip install {plug_in.requirement}"
    ) from error


def captioner_outputs(features: Path) -> tuple[str, ...]:
    """Return the files of a captioner that is trained on these features."""
    has_weights = (features / EXTRACTOR_WEIGHTS).is_file()  # imported features have no extractor
    return (*CAPTIONER, EXTRACTOR_WEIGHTS) if has_weights else CAPTIONER


def extractor_weights(directory: Path) -> Path:
    """Return the file of the extractor's weights."""
    for name, bundled in captioners.BUNDLED.items():
        if directory == bundled.folder:
            return detectors.BUNDLED[name].path
    return directory / EXTRACTOR_WEIGHTS


def require_compatible(models: Sequence[Path]) -> None:
    """Raise A2Error if trained directories cannot form an ensemble; load no tensors."""
    first = models[0]
    for directory in models[1:]:
        (description, _), (of_first, _) = map(load_description, (directory, first))
        require_vocabulary(directory, first)
        widths = description.region_width, of_first.region_width
        _require_equal("region width", *widths, directory, first)
        limits = description.max_regions, of_first.max_regions
        _require_equal("max_regions", *limits, directory, first)
        require_extractor(directory, first)


def require_vocabulary(directory: Path, first: Path) -> None:
    """Raise A2Error if two folders, of captioners or preprocessing, have different vocabularies."""
    actual, expected = (Vocabulary.load(path / VOCABULARY) for path in (directory, first))
    _require_equal("vocabulary", actual.digest[:12], expected.digest[:12], directory, first)


def require_extractor(directory: Path, first: Path) -> None:
    """Raise A2Error if two folders, of captioners or extractions, have different extractors."""
    # the same width does not mean the same features
    if different := _extractor(directory).differences(_extractor(first)):
        raise InputError(
            f"regions of {str(directory)!r} and {str(first)!r} come from different "
            f"extractors (extractor.json differs in {', '.join(different)}); {_ADVICE}"
        )


def _require_equal(
    name: str, actual: object, expected: object, directory: Path, first: Path
) -> None:
    if actual != expected:
        raise InputError(
            f"{name} of {str(directory)!r} is {actual}, that of {str(first)!r} is {expected}; "
            f"{_ADVICE}"
        )


def _extractor(directory: Path) -> ExtractorRecord:
    require_files(directory, EXTRACTOR)
    return ExtractorRecord.read(directory / EXTRACTOR)
