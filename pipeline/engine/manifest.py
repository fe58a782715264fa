"""Manifests of finished stages: the key's pre-image and the digest of each output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from a2cap.data.errors import A2Error
from a2cap.data.files.atomic import write_durably
from a2cap.pipeline.engine.artifacts import MANIFEST
from a2cap.pipeline.engine.key import PreImage, digest_of

_RECORDED_PACKAGES = ("a2cap", "torch", "torchvision", "numpy", "opencv-python-headless")

_REQUIRED = ("outputs", "skipped", "finished", "seconds", "versions")


@dataclass(frozen=True)
class Manifest:
    """Metadata of a finished stage directory.

    outputs: name of a declared output -> its logical digest.
    skipped: number of skipped items, which skipped.jsonl lists.
    finished: seconds since the epoch; seconds: wall time of the last run.
    sizes: bytes of each output that is a file, to detect a truncated file without reading it.
    checksums: sha256 of files that later stages read besides the outputs.
    """

    pre_image: PreImage
    outputs: Mapping[str, str]
    skipped: int
    finished: float
    seconds: float
    versions: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of the outputs, the part that the keys of later stages depend on."""
        return digest_of(dict(self.outputs))

    def write(self, directory: Path) -> None:
        """Write the manifest durably; its presence seals the directory."""
        # the digest is derived, and written for people and other programs
        own = {"pre_image": self.pre_image.as_dict(), "digest": self.digest}
        content = {**vars(self), **own}
        write_durably(directory / MANIFEST, json.dumps(content, indent=1, sort_keys=True).encode())


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a finished stage; raise A2Error if it is unreadable."""
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text())
        pre_image = PreImage(**content["pre_image"])
        required = {name: content[name] for name in _REQUIRED}
        # manifests of earlier versions lack them
        added = {name: content.get(name, {}) for name in ("sizes", "checksums")}
        return Manifest(pre_image, **required, **added)
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "delete that folder, then run the stage again"
        if isinstance(error, PermissionError):
            remedy = "fix its permissions"
        raise A2Error(f"manifest is unreadable: {str(path)!r} ({error}); {remedy}") from error


def installed_versions() -> dict[str, str]:
    """Read the versions of python and the computing packages without importing them."""
    found = {"python": python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
