"""Outputs of captions of many images: what each image has there, and who wrote it."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from a2cap.data.captions.unicode_words import without_false_spaces
from a2cap.data.errors import InputError
from a2cap.pipeline.captioning.captioned_image import CaptionedImage

State = Literal["missing", "done", "foreign"]
"""What an image has: no caption, one of a2, or a text that a2 did not write."""

_BREAKS = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
# escape codes, halves of surrogate pairs, and marks that turn the direction of the line
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")


class UnwritableError(InputError):
    """Raised for an image whose caption or figure cannot be written, unlike those of others."""


class CaptionOutput(ABC):
    """Where captions go; a context, since tables are completed at the end."""

    def __enter__(self) -> "CaptionOutput":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def state(self, image: Path) -> State:
        """Return what the image has; raise UnwritableError where its caption cannot be written."""

    @abstractmethod
    def write(self, image: Path, line: Mapping[str, Any]) -> bool:
        """Write the line of an image, as --json prints it; False if a foreign text is kept."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


@dataclass(frozen=True)
class Origin:
    """The captioner of captions, and the settings that the user set, as text."""

    model: str
    settings: str = ""

    def wrote(self, line: Mapping[str, Any]) -> bool:
        """Return True for a line of this captioner with these settings."""
        return (line.get("model"), line.get("settings") or "") == (self.model, self.settings)

    def require_same(self, place: str, lines: Iterable[Mapping[str, Any]], *, remedy: str) -> None:
        """Raise InputError if another captioner, or one of other settings, has written lines.

        place: where, such as "file: 'x.jsonl'"; remedy: option that names another place.
        """
        other = next((line for line in lines if not self.wrote(line)), None)
        if other is None:
            return
        what, ours = ("models", self.model)
        theirs = other.get("model")
        if theirs == ours:
            what, ours, theirs = "settings", self.settings, other.get("settings")
        raise InputError(
            f"captions of two {what} in one {place} has those of {theirs or 'none'!r}, this is "
            f"{ours or 'none'!r}; name another {remedy}, or caption all images again with --force"
        )


def caption_line(
    image: str | None,
    captioned: CaptionedImage,
    model: str,
    beams: int | None = None,
    settings: str = "",
) -> dict[str, Any]:
    """Return the captions of an image as JSON values.

    beams: how many of them, None for all.
    settings: those that the user set, as text.
    """
    shown = captioned.beams[:beams]
    return {
        "image": image,
        "model": model,
        **({"settings": settings} if settings else {}),
        "caption": one_line(shown[0].caption),
        "score": shown[0].score,
        "beams": [{"caption": one_line(beam.caption), "score": beam.score} for beam in shown],
        "width": captioned.regions.width,
        "height": captioned.regions.height,
        "boxes": captioned.regions.boxes.astype(float).round(1).tolist(),
    }


def one_line(caption: str) -> str:
    """Return a caption without line breaks, control characters, and spaces between Chinese words.

    Words come from the vocabulary of a captioner, which may be anyone's: an escape sequence would
    reach the terminal, a line break would be another caption.
    """
    text = without_false_spaces(_BREAKS.sub(" ", caption))
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def identity(image: Path) -> str:
    """Return the path with the links of its folders resolved: the same for all its spellings.

    A link to an image stays another image than its target: a data set may have both.
    """
    folder, name = os.path.split(image)
    return os.path.join(_real_folder(os.path.join(os.getcwd(), folder)), name)  # noqa: PTH118, PTH109


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
