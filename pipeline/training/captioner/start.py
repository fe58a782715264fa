"""Fine-tuning: the initial tensors of a captioner from a saved one."""

import logging
from pathlib import Path

import torch

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError
from a2cap.extract.record import ExtractorRecord
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.pipeline.captioning.model_description import (
    EXTRACTOR,
)
from a2cap.pipeline.captioning.saved_captioner import (
    LoadedCaptioner,
)

logger = logging.getLogger(__name__)

_FREE = ("alignment", "attention", "hard", "doubly_stochastic", "blind")
"""Settings that may differ, as rates of dropout may: the other tensors keep their meaning."""
_OF_WORDS = ("decoder.embedding.", "decoder.output.")


def warn_of_another_extractor(start: Path, features: Path) -> None:
    """Log a warning if a saved captioner was trained on regions of another extractor."""
    old, new = (ExtractorRecord.read(folder / EXTRACTOR) for folder in (start, features))
    if different := new.differences(old):
        logger.warning(
            "train.start was trained on regions of another extractor: %s differs in %s; extract "
            "with its weights and configuration, unless the captioner shall learn other regions",
            *(EXTRACTOR, ", ".join(different)),
        )


@torch.no_grad()
def start_from(
    start: LoadedCaptioner[EncoderDecoder],
    captioner: EncoderDecoder,
    model: ModelConfig,
    vocabulary: Vocabulary,
) -> None:
    """Copy the tensors of a saved captioner into a new one with these settings and this vocabulary.

    Words that the saved one does not know and a new alignment keep their initial values. Raises
    InputError naming the first setting or tensor that does not fit.
    """
    for name in ("kind", *type(model).model_fields):
        old, new = (getattr(one, name) for one in (start.description.model, model))
        if old != new and name not in _FREE and "dropout" not in name:
            raise InputError(
                f"train.start does not fit: its {name} is {old!r}, model.{name} is {new!r}; "
                f"set model.{name} to {old!r}, or name another captioner"
            )
    ids = {token: number for number, token in enumerate(start.vocabulary.words)}
    known = [number for number, token in enumerate(vocabulary.words) if token in ids]
    rows = [ids[vocabulary.words[number]] for number in known]
    given, wanted = start.captioner.state_dict(), captioner.state_dict()
    for name in sorted(given.keys() | wanted.keys()):
        if name not in given and "alignment" in name:
            continue
        old, new = given.get(name), wanted.get(name)
        is_of_words = name.startswith(_OF_WORDS)
        if old is None or new is None or old.shape[is_of_words:] != new.shape[is_of_words:]:
            shapes = [t if t is None else tuple(t.shape) for t in (old, new)]
            raise InputError(
                f"train.start does not fit: {name!r} has shape {shapes[0]} there and {shapes[1]} "
                "in the new captioner; set the section model as it was, or name another captioner"
            )
        if is_of_words:
            new[known] = old[rows]
        else:
            new.copy_(old)
    logger.info("train: %d of %d tokens are known from train.start", len(known), len(vocabulary))
