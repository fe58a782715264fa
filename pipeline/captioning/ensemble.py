"""Loading of one trained captioner, or of several as an ensemble."""

from collections.abc import Sequence
from pathlib import Path

import torch

from a2cap.data.errors import InputError
from a2cap.model.captioner import Captioner
from a2cap.model.decoding.ensemble import Average, Ensemble
from a2cap.pipeline.captioning.model_description import require_compatible
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner, load_model


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
