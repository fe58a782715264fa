"""The key of a stage: a digest of everything that its result depends on, and of nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

KEY_LENGTH = 12
"""Letters of the key in a directory's name: 48 bits, ample for the results of one project."""


def canonical_json(value: object) -> str:
    """One spelling for equal values: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest_of(value: object) -> str:
    """Hex sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True)
class PreImage:
    """What a key is made of; kept whole in the manifest, so that a rerun can be explained.

    code_version: an integer that the stage's author raises when its output changes.
    params: exactly the config fields that the stage reads, under their section's name.
    inputs: name of an input -> digest of what it holds, never its path.
    """

    stage: str
    code_version: int
    params: Mapping[str, object]
    inputs: Mapping[str, str]

    def as_dict(self) -> dict[str, object]:
        """As plain JSON."""
        return {
            "stage": self.stage,
            "code_version": self.code_version,
            "params": dict(self.params),
            "inputs": dict(self.inputs),
        }

    @property
    def key(self) -> str:
        """The stage's key, shortened to the form that names its directory."""
        return digest_of(self.as_dict())[:KEY_LENGTH]
