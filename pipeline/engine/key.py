"""Stage keys: a digest of everything that the stage's result depends on, and of nothing else."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

KEY_LENGTH = 12
"""Hex digits of a key in a directory name: 48 bits, enough for the results of one project."""


def canonical_json(value: object) -> str:
    """Dump equal values to equal text: sorted keys, no spaces, ASCII; ValueError for NaN."""
    # NaN is not JSON, and would never equal itself in a comparison of two pre-images
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest_of(value: object) -> str:
    """Return the hex sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def key_fields(section: BaseModel, *, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return a section's fields as JSON values for `PreImage.params`.

    A field declared with `json_schema_extra={"added": True}` is left out at its default: results
    from before the field existed stay valid. One with `{"no_effect": True}` always has its default.
    """
    added = _defaults(section, "added").items()
    unchanged = {name for name, default in added if getattr(section, name) == default}
    section = section.model_copy(update=_defaults(section, "no_effect"))
    return section.model_dump(mode="json", by_alias=True, exclude=unchanged | set(exclude))


def _defaults(section: BaseModel, mark: str) -> dict[str, Any]:
    """Return the defaults of the fields that are declared with this mark."""
    return {
        name: field.default
        for name, field in type(section).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get(mark)
    }


@dataclass(frozen=True)
class PreImage:
    """The content of a key, stored in the manifest so that a rerun can be explained.

    code_version: an integer that is raised when the stage's output changes.
    params: exactly the config fields that the stage reads, under their section's name.
    inputs: input name -> digest of its content, never its path.
    """

    stage: str
    code_version: int
    params: Mapping[str, object]
    inputs: Mapping[str, str]

    def as_dict(self) -> dict[str, object]:
        """Return the pre-image as plain JSON values."""
        return dict(vars(self))

    @property
    def key(self) -> str:
        """The key, shortened to its form in directory names."""
        return digest_of(self.as_dict())[:KEY_LENGTH]
