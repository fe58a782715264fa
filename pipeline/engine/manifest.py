"""The manifest of a finished stage: its key's whole pre-image and the digest of each output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from a2cap.data.errors import A2Error
from a2cap.data.files.atomic import write_durably
from a2cap.pipeline.engine.key import PreImage, digest_of

FILE_NAME = "manifest.json"
_RECORDED_PACKAGES = ("a2cap", "torch", "torchvision", "numpy", "opencv-python-headless")


@dataclass(frozen=True)
class Manifest:
    """What a finished stage directory says of itself.

    outputs: name of a declared output -> its logical digest.
    skipped: number of bad items left out, listed in the stage's skipped.jsonl.
    finished: seconds since the epoch; seconds: wall time of the work of the last run.
    sizes: bytes of each output that is one file, so that a cut one is told without reading it.
    """

    pre_image: PreImage
    outputs: Mapping[str, str]
    skipped: int
    finished: float
    seconds: float
    versions: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """What downstream keys depend on: the outputs, and not when or where they were made."""
        return digest_of(dict(self.outputs))

    def write(self, directory: Path) -> None:
        """Writes the manifest durably; its presence seals the directory."""
        content = {
            "pre_image": self.pre_image.as_dict(),
            "outputs": dict(self.outputs),
            "digest": self.digest,
            "skipped": self.skipped,
            "finished": self.finished,
            "seconds": self.seconds,
            "versions": dict(self.versions),
            "sizes": dict(self.sizes),
        }
        write_durably(directory / FILE_NAME, json.dumps(content, indent=1, sort_keys=True).encode())


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a finished stage; A2Error where it cannot be read."""
    path = directory / FILE_NAME
    try:
        content = json.loads(path.read_text())
        return Manifest(
            pre_image=PreImage(**content["pre_image"]),
            outputs=content["outputs"],
            skipped=content["skipped"],
            finished=content["finished"],
            seconds=content["seconds"],
            versions=content["versions"],
            sizes=content.get("sizes", {}),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise A2Error(
            f"manifest cannot be read: {str(path)!r} ({error}); rerun the stage with --force"
        ) from error


def installed_versions() -> dict[str, str]:
    """Versions of what computes, read from package metadata without importing anything."""
    found = {"python": python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
