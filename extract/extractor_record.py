"""The record of an extractor: everything that determines its features (`extractor.json`).

It is stored beside a feature store and copied beside each captioner that was trained on that
store, so that new images get the same features and another extractor's features are rejected.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from a2cap.data.errors import InputError
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.json_file import read_json, write_json
from a2cap.extract.extract_config import ExtractConfig

if TYPE_CHECKING:
    import torch

CODE_VERSION = 1
"""Raised by hand whenever extract/ would give another result for the same weights and image.

The code version of stage extract contains it, so that the stage then runs again.
"""


_DISTRIBUTIONS = {
    "torch": "torch",
    "torchvision": "torchvision",
    "opencv": "opencv-python-headless",
    "pillow": "pillow",
    "numpy": "numpy",
}
"""Libraries that compute features -> their names in a package index."""


class ExtractorRecord(BaseModel):
    """An extractor, its weights and its code, as plain values."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    summary: str
    """The extractor in one line."""
    feature_width: int
    """F, numbers per region."""
    weights_sha256: str
    """Digest of the weights file, which is stored beside the record."""
    config: ExtractConfig
    """Configuration of the extraction, without the path of the weights."""
    code_version: int
    """`CODE_VERSION` of the extraction."""
    libraries: dict[str, str]
    """Versions of the libraries, and the number of CPU threads: rounding depends on both."""
    architecture: Mapping[str, object] | None = None
    """Sizes of the detector; None for a backbone."""
    meta: Mapping[str, object] | None = None
    """Conventions of the detector's weights, as `DetectorMeta`; None for a backbone."""
    source: str | None = None
    """File or folder of imported features; None for an extractor of a2."""

    @classmethod
    def create(
        cls, weights: Path, config: ExtractConfig, *, device: "torch.device", **facts: object
    ) -> Self:
        """Return the record of an extractor that this process runs.

        weights: its saved file; facts: summary, feature_width, and a detector's other fields.
        """
        from torch import get_num_threads

        libraries = _versions()
        if device.type == "cpu":
            # one thread and several differ in the last digits, boxes by some 1e-4 pixels
            libraries["threads"] = str(get_num_threads())
        recorded = {
            "weights_sha256": sha256_of(weights),
            "config": config.model_copy(update={"weights": None}),
            "code_version": CODE_VERSION,
            "libraries": libraries,
        }
        return cls.model_validate(recorded | facts)

    def require_weights(self, path: Path) -> None:
        """Raise InputError if a file does not contain the recorded weights."""
        if sha256_of(path) != self.weights_sha256:
            raise InputError(
                f"{str(path)!r} differs from its sha256 in extractor.json; "
                "copy the whole directory again, or train again"
            )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an `extractor.json`.

        Raises InputError where the file is missing, is not JSON, or lacks a field.
        """
        content = read_json(path)
        try:
            record = cls.model_validate(content)
            wrong = record._unstated()
        except ValidationError as error:
            wrong = {".".join(map(str, problem["loc"])) for problem in error.errors()}
        if wrong:
            raise InputError(
                f"{str(path)!r} does not state how regions are made: missing or invalid "
                f"{', '.join(sorted(filter(None, wrong))) or 'content'}; "
                "copy the whole directory again, or train again"
            )
        return record

    def _unstated(self) -> set[str]:
        """Return the fields that a file must state, because their defaults may not be its own."""
        expected = ExtractConfig.model_fields.keys() - {"weights"}
        unstated = {f"config.{name}" for name in expected - self.config.model_fields_set}
        if not self.config.pools_map and self.source is None:
            facts = {"architecture": self.architecture, "meta": self.meta}
            unstated |= {name for name, fact in facts.items() if fact is None}
        return unstated

    def write(self, path: Path) -> None:
        """Write an `extractor.json`; equal records give equal bytes."""
        content = self.model_dump(mode="json", exclude={"config": {"weights"}})
        write_json(path, {name: value for name, value in content.items() if value is not None})

    def differences(self, other: "ExtractorRecord") -> list[str]:
        """Return the names of the fields that make the features of two extractors differ.

        Library versions and threads are ignored, because their effect is rounding; so are the
        names of files of imported features, which can be those of two splits.
        """
        ours, theirs = self._comparable(), other._comparable()
        return sorted(
            (name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)),
            key=lambda name: (name.startswith("config."), name),
        )

    def changed_libraries(self, *, threads: int | None) -> list[str]:
        """Return the versions, and the number of CPU threads, that differ here: only rounding.

        threads: `runtime.threads`; None, the default of torch, which is not loaded for this, is not
        compared.
        """
        now = _versions() | ({} if threads is None else {"threads": str(threads)})
        return [
            f"{name} {before} -> {now[name]}"
            for name, before in self.libraries.items()
            if now.get(name, before) != before
        ]

    def _comparable(self) -> dict[str, object]:
        fields = self.model_dump(exclude={"libraries", "config", "source"})
        config = self.config.model_dump(exclude={"weights"})
        return fields | {f"config.{name}": value for name, value in config.items()}


def _versions() -> dict[str, str]:
    """Return the versions of the libraries, without loading them: that takes seconds."""
    return {library: version(name) for library, name in _DISTRIBUTIONS.items()}
