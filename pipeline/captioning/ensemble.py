"""Loading of one trained captioner, or of several as an ensemble."""

from collections.abc import Sequence
from pathlib import Path

import torch

from a2cap.data.errors import InputError
from a2cap.extract.record import ExtractorRecord
from a2cap.model.captioner import Captioner
from a2cap.model.decoding.ensemble import Average, Ensemble
from a2cap.pipeline.captioning.saved_captioner import (
    EXTRACTOR,
    LoadedCaptioner,
    load_model,
    require_files,
)

_ADVICE = "an ensemble needs captioners that were trained on the same features and vocabulary"


def load_captioner(
    models: Sequence[Path], *, device: torch.device, average: Average = "probabilities"
) -> LoadedCaptioner[Captioner]:
    """Load a trained directory, or several as an ensemble; raise A2Error if they do not fit."""
    loaded = [load_model(directory, device=device) for directory in models]
    if not loaded:
        raise InputError("no trained model is named; name one or more directories")
    for directory, other in zip(models[1:], loaded[1:], strict=True):
        _check_compatible(directory, other, models[0], loaded[0])
    first = loaded[0]
    captioner: Captioner = first.captioner
    if len(loaded) > 1:
        captioner = Ensemble([model.captioner for model in loaded], average=average)
    return LoadedCaptioner(captioner, first.vocabulary, first.description)


def _check_compatible(
    directory: Path,
    model: LoadedCaptioner[Captioner],
    first_directory: Path,
    first: LoadedCaptioner[Captioner],
) -> None:
    """Raise InputError if a model cannot be in an ensemble with the first one."""
    properties = {
        "vocabulary": (model.vocabulary.digest[:12], first.vocabulary.digest[:12]),
        "region width": (model.description.region_width, first.description.region_width),
        "max_regions": (model.description.max_regions, first.description.max_regions),
    }
    for name, (found, expected) in properties.items():
        if found != expected:
            raise InputError(
                f"{name} of {str(directory)!r} is {found}, that of {str(first_directory)!r} is "
                f"{expected}; {_ADVICE}"
            )
    # the same width does not mean the same features
    different = _extractor(directory).differences(_extractor(first_directory))
    if different:
        raise InputError(
            f"regions of {str(directory)!r} and {str(first_directory)!r} come from different "
            f"extractors (extractor.json differs in {', '.join(different)}); {_ADVICE}"
        )


def _extractor(directory: Path) -> ExtractorRecord:
    require_files(directory, EXTRACTOR)
    return ExtractorRecord.read(directory / EXTRACTOR)
