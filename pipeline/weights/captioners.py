"""Folders of trained captioners: the bundled ones by name, and those that a setting names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.pipeline.engine.artifact_names import CAPTIONER


@dataclass(frozen=True)
class BundledCaptioner:
    """A captioner in this package; the weights of its extractor have the same name.

    decoding: settings of decoding unless a setting names a number of beams.
    """

    folder: Path
    decoding: Mapping[str, object]


BUNDLED: Mapping[str, BundledCaptioner] = {
    name: BundledCaptioner(
        Path(str(files("a2cap.pipeline.weights") / f"{name}_captioner")), decoding
    )
    for name, decoding in (
        ("photos", {"beam_size": 20, "consensus": True}),  # measured in docs/photos.md
        ("scenes", {"beam_size": 5}),
    )
}
"""Of photographs (docs/photos.md) and of generated scenes (docs/scenes-detector.md)."""

DEFAULT = "photos"
"""The bundled captioner that is used where none is named."""


def captioner_name(models: Sequence[Path]) -> str:
    """Return the name of a bundled captioner, the path of another, those of an ensemble."""
    bundled = {captioner.folder: name for name, captioner in BUNDLED.items()}
    return " + ".join(bundled.get(model, str(model)) for model in models)


def bundled_folder(path: Path) -> Path | None:
    """Return the folder of a bundled captioner's name, None for anything else.

    A folder of such a name counts first, if it is a captioner.
    """
    if str(path) in BUNDLED and not (path / CAPTIONER[0]).is_file():
        return BUNDLED[str(path)].folder
    return None


def captioner_folder(path: Path, field: str) -> Path:
    """Return the trained directory, or bundled captioner, that `field` names.

    Raises InputError if one of its files is missing.
    """
    folder = bundled_folder(path) or path
    for name in CAPTIONER:
        if not (folder / name).is_file():
            raise InputError(
                f"{field} names no trained captioner: {str(path)!r} has no {name}; "
                f'name a directory that "a2 train" has finished, or one of {", ".join(BUNDLED)}'
            )
    return folder
