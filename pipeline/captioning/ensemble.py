"""Loading of one trained captioner, or of several as an ensemble."""

from collections.abc import Sequence
from pathlib import Path

import torch

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError
from a2cap.extract.record import ExtractorRecord
from a2cap.model.captioner import Captioner
from a2cap.model.decoding.ensemble import Average, Ensemble
from a2cap.pipeline.captioning.model_description import (
    EXTRACTOR,
    VOCABULARY,
    load_description,
    require_files,
)
from a2cap.pipeline.captioning.saved_captioner import (
    LoadedCaptioner,
    load_model,
)

_ADVICE = "an ensemble needs captioners that were trained on the same features and vocabulary"


def load_captioner(
    models: Sequence[Path], *, device: torch.device, average: Average = "probabilities"
) -> LoadedCaptioner[Captioner]:
    """Load a trained directory, or several as an ensemble; raise A2Error if they do not fit."""
    if not models:
        raise InputError("no trained model is named; name one or more directories")
    require_compatible(models)
    loaded = [load_model(directory, device=device) for directory in models]
    first = loaded[0]
    captioner: Captioner = first.captioner
    if len(loaded) > 1:
        captioner = Ensemble([model.captioner for model in loaded], average=average)
    return LoadedCaptioner(captioner, first.vocabulary, first.description)


def require_compatible(models: Sequence[Path]) -> None:
    """Raise A2Error if trained directories cannot form an ensemble; load no tensors."""
    for directory in models[1:]:
        _check_compatible(directory, models[0])


def require_vocabulary(directory: Path, first: Path) -> None:
    """Raise A2Error if two folders, of captioners or preprocessing, have different vocabularies."""
    found, expected = (Vocabulary.load(path / VOCABULARY) for path in (directory, first))
    _require_equal("vocabulary", found.digest[:12], expected.digest[:12], directory, first)


def _check_compatible(directory: Path, first: Path) -> None:
    """Raise A2Error if a captioner cannot be in an ensemble with the first one."""
    (description, _), (of_first, _) = map(load_description, (directory, first))
    require_vocabulary(directory, first)
    widths = description.region_width, of_first.region_width
    _require_equal("region width", *widths, directory, first)
    limits = description.max_regions, of_first.max_regions
    _require_equal("max_regions", *limits, directory, first)
    # the same width does not mean the same features
    different = _extractor(directory).differences(_extractor(first))
    if different:
        raise InputError(
            f"regions of {str(directory)!r} and {str(first)!r} come from different "
            f"extractors (extractor.json differs in {', '.join(different)}); {_ADVICE}"
        )


def _require_equal(
    name: str, found: object, expected: object, directory: Path, first: Path
) -> None:
    if found != expected:
        raise InputError(
            f"{name} of {str(directory)!r} is {found}, that of {str(first)!r} is {expected}; "
            f"{_ADVICE}"
        )


def _extractor(directory: Path) -> ExtractorRecord:
    require_files(directory, EXTRACTOR)
    return ExtractorRecord.read(directory / EXTRACTOR)
