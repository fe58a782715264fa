"""A trained captioner with its tensors, or an ensemble of several: saving and loading."""

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from a2cap.data.batches.collate import Batch
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.atomic import link_or_copy
from a2cap.data.files.json_file import write_json
from a2cap.data.files.sealed_folder import require_intact
from a2cap.data.files.tensors import save_tensors, skip_init
from a2cap.model.captioner import CaptionModel
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.decoding.ensemble import Average, Ensemble, check_weights
from a2cap.model.plug_ins import plug_in_of
from a2cap.pipeline.captioning.attention import attention_of_captions
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam, Vote, caption_batches
from a2cap.pipeline.captioning.model_description import (
    DESCRIPTION,
    EXTRACTOR,
    EXTRACTOR_WEIGHTS,
    TENSORS,
    VOCABULARY,
    ModelDescription,
    load_description,
    require_compatible,
    require_files,
)
from a2cap.pipeline.engine.artifact_names import CAPTIONER

logger = logging.getLogger(__name__)

Captioner_co = TypeVar("Captioner_co", bound=CaptionModel, covariant=True)


@dataclass(frozen=True)
class LoadedCaptioner(Generic[Captioner_co]):
    """A captioner in evaluation mode with its vocabulary."""

    captioner: Captioner_co  # a single model or an `Ensemble`
    vocabulary: Vocabulary
    description: ModelDescription  # of the first model
    device: torch.device

    def decode(
        self, batches: Iterable[Batch], config: CaptioningConfig, vote: Vote | None = None
    ) -> Iterator[tuple[str, list[Beam]]]:
        """Yield (image id, beams with the best first) of each image; vote: for the consensus."""
        return caption_batches(
            self.captioner,
            batches,
            self.vocabulary,
            config,
            device=self.device,
            precision=config.precision,
            vote=vote,
        )

    def attend(
        self, batches: Iterable[Batch], captions: Mapping[str, str], *, layers: bool = False
    ) -> Iterator[tuple[str, CaptionAttention]]:
        """Yield (image id, attention at each word of its caption), also of each layer and head."""
        return attention_of_captions(
            self.captioner, batches, captions, self.vocabulary, device=self.device, layers=layers
        )


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
    model = description.model.model_dump(mode="json")
    fields = {**description.model_dump(mode="json"), "model": model}
    for name in ("trained_on", "plug_in"):  # later fields: without them, files stay as they were
        if fields[name] is None:
            del fields[name]
    write_json(directory / DESCRIPTION, fields)
    vocabulary.save(directory / VOCABULARY)


def load_model(directory: Path, *, device: torch.device) -> LoadedCaptioner[EncoderDecoder]:
    """Load a trained captioner; raise A2Error for files that are missing or do not match."""
    require_files(directory, TENSORS, DESCRIPTION, VOCABULARY)
    require_intact(directory, *CAPTIONER)
    description, vocabulary = load_description(directory)
    plug_in = plug_in_of(description.model.kind)
    try:
        with skip_init():
            captioner = new_captioner(description)
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        if plug_in is not None:
            raise  # an error of its code
        raise A2Error(
            f"model.json has impossible sizes: {str(directory)!r} (region_width "
            f"{description.region_width}, vocabulary_size {description.vocabulary_size}); train "
            "again, or copy the directory again"
        ) from error
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
    if plug_in and description.plug_in and plug_in.sources != description.plug_in.sources:
        text = "the code of %s is not that of its training; captions may differ: %s"
        logger.warning(text, description.model.kind, directory)
    return LoadedCaptioner(captioner.to(device).eval(), vocabulary, description, device)


def load_captioner(
    models: Sequence[Path],
    *,
    device: torch.device,
    average: Average = "probabilities",
    weights: Sequence[float] = (),
) -> LoadedCaptioner[CaptionModel]:
    """Load a trained directory, or several as an ensemble; raise A2Error if they do not fit."""
    if not models:
        raise InputError("no trained model is named; name one or more directories")
    require_compatible(models)
    if weights:
        check_weights(weights, len(models))
    loaded = [load_model(directory, device=device) for directory in models]
    first = loaded[0]
    captioner: CaptionModel = first.captioner
    if len(loaded) > 1:
        members = [model.captioner for model in loaded]
        captioner = Ensemble(members, average=average, weights=weights)
    return LoadedCaptioner(captioner, first.vocabulary, first.description, device)


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
