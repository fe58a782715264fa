"""Sealed folders: how a folder of files becomes whole, and how damage to it is found.

Results of stages, feature stores and their shards, checkpoints, captioners and detectors are sealed
folders. `manifest.json` is written last, after all outputs are on disk: a folder with a manifest is
complete, one without is unfinished. One rename then publishes the folder under its final name.

The manifest contains a checksum of itself, so that a flipped bit in it is found like one in an
output.
"""

import errno
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from pathlib import Path
from platform import python_version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.atomic import discard, write_durably
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.json_file import read_json
from a2cap.data.files.system import fsync

MANIFEST = "manifest.json"
KEY_LENGTH = 12
"""Hex digits of a key in a folder name: 48 bits, enough for the results of one project."""

LARGEST_SHARE = 0.05
"""Share of a small set that may be skipped: ten of 20 images would be half of the data."""

_CHECKSUM = "manifest_sha256"
_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about the file."""
_RECORDED_PACKAGES = ("a2cap", "torch", "torchvision", "numpy", "opencv-python-headless")


class FileContent(BaseModel):
    """Content of a JSON file, in which no other field may be."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """An image or caption that was left out, and why.

    If the id is also among the images, only captions or a duplicate were left out. If the item has
    no valid id, `image_id` is its position in the file, such as 'images[3]' or 'line 4'.
    """

    image_id: str
    reason: str


class MadeFrom(FileContent):
    """Everything that the content of a folder depends on, and nothing else; its digest is the key.

    Stored in the manifest, so that a rerun can be explained by its differences.
    """

    stage: str
    version: int
    """Raised by the author of the stage when its output changes."""
    fields: dict[str, JsonValue] = {}
    """Exactly the configuration fields that the stage reads, by section."""
    inputs: dict[str, str] = {}
    """Input name -> digest of its content, never its path."""

    @property
    def key(self) -> str:
        """The key, shortened to its form in folder names."""
        return digest_of(self.model_dump())[:KEY_LENGTH]


class Output(FileContent):
    """A file of a sealed folder, or an inner sealed folder."""

    sha256: str
    """Sha256 of the file's bytes, or the digest of an inner sealed folder."""
    size: int
    """Bytes of the file; of an inner sealed folder the sum of its outputs."""


class Manifest(FileContent):
    """Metadata of a sealed folder."""

    format: Literal[1] = 1
    made_from: MadeFrom | None = None
    """None for folders that are not identified by a key, such as checkpoints."""
    outputs: dict[str, Output]
    """By path relative to the folder."""
    facts: dict[str, JsonValue] = {}
    """Facts for readers of the content; `digest` replaces the digest of the outputs."""
    skipped: tuple[SkippedItem, ...] = ()
    finished: float
    """Seconds since 1970."""
    seconds: float = 0.0
    """Wall time of the work, that of the last run if it was resumed."""
    versions: dict[str, str] = {}

    @property
    def digest(self) -> str:
        """The identity of the content: equal for equal outputs, whenever they were made."""
        stated = self.facts.get("digest")
        if isinstance(stated, str):
            return stated
        return digest_of({name: output.sha256 for name, output in self.outputs.items()})

    @property
    def origin(self) -> MadeFrom:
        """What a stage's result is made from; A2Error for another sealed folder."""
        if self.made_from is None:
            raise A2Error("not the result of a stage: its manifest has no made_from; name another")
        return self.made_from

    @property
    def size(self) -> int:
        """Bytes of all outputs."""
        return sum(output.size for output in self.outputs.values())

    @property
    def reasons(self) -> dict[str, str]:
        """Image id -> reason of the skipped items."""
        return {item.image_id: item.reason for item in self.skipped}


def seal(
    folder: Path,
    outputs: Iterable[str],
    *,
    made_from: MadeFrom | None = None,
    facts: Mapping[str, JsonValue] | None = None,
    skipped: Iterable[SkippedItem] = (),
    seconds: float = 0.0,
) -> Manifest:
    """Seal a folder: wait until its outputs are on disk, then write the manifest.

    An output that is a folder must have been sealed itself.
    """
    manifest = Manifest(
        made_from=made_from,
        outputs={name: _output(folder / name) for name in outputs},
        facts=dict(facts or {}),
        skipped=tuple(skipped),
        finished=time.time(),
        seconds=seconds,
        versions=installed_versions(),
    )
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest durably, with its checksum."""
    content = manifest.model_dump(mode="json")
    content[_CHECKSUM] = digest_of(content)
    fsync(folder)  # the names of the outputs, before the manifest that promises them
    write_durably(folder / MANIFEST, json.dumps(content, indent=1, sort_keys=True).encode())


def publish(partial: Path, final: Path) -> bool:
    """Rename a sealed folder into place; if another process was first, discard it, return False."""
    fsync(partial)
    try:
        partial.rename(final)  # no rename replaces a folder that has files
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        discard(partial)
        return False
    fsync(final.parent)
    return True


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a sealed folder; raise A2Error if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise TypeError("it is not an object")
        checksum = content.pop(_CHECKSUM)
        manifest = Manifest.model_validate(content)
        if digest_of(content) != checksum:
            raise ValueError("it differs from its checksum")
        return manifest
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_PROCESS:
            raise
        remedy = "delete that folder, then run the command that made it again"
        if isinstance(error, PermissionError):
            remedy = "fix its permissions"
        what = _summary(error)
        raise A2Error(f"manifest is unreadable: {str(path)!r} ({what}); {remedy}") from error


def _summary(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def problems(
    folder: Path, *, digests: bool = True, names: Collection[str] | None = None
) -> list[str]:
    """List what differs from the manifest, in inner sealed folders too; the lines have no remedy.

    digests: read every byte; without, only files and their sizes are checked. names: outputs to
    check, by default all. Raises A2Error if a manifest is unreadable.
    """
    lines = []
    for name, expected in read_manifest(folder).outputs.items():
        path = folder / name
        if names is not None and name not in names:
            continue
        if path.is_dir():
            if digests and read_manifest(path).digest != expected.sha256:
                lines.append(f"{str(path)!r} differs from its digest in the manifest")
            lines += problems(path, digests=digests)
        elif not path.is_file():
            lines.append(f"{str(path)!r} is missing")
        elif (size := path.stat().st_size) != expected.size:
            lines.append(f"{str(path)!r} has {size} bytes, {expected.size} in the manifest")
        elif digests and sha256_of(path) != expected.sha256:
            lines.append(f"{str(path)!r} differs from its sha256 in the manifest")
    return lines


def require_intact(folder: Path, *names: str) -> None:
    """Raise InputError if one of these outputs differs from the manifest.

    A copy of the folder may lack the manifest, and files that its reader does not need.
    """
    present = [name for name in names if (folder / name).exists()]
    if (folder / MANIFEST).is_file() and (lines := problems(folder, names=present)):
        raise InputError(
            f'{lines[0]}; run "a2 verify --data {folder}", which names the command that restores it'
        )


def read_output(folder: Path, name: str) -> Any:
    """Return the JSON value of an output; raise InputError if it differs from the manifest."""
    require_intact(folder, name)
    return read_json(folder / name)


def _output(path: Path) -> Output:
    if path.is_dir():
        inner = read_manifest(path)
        return Output(sha256=inner.digest, size=inner.size)
    fsync(path)
    return Output(sha256=sha256_of(path), size=path.stat().st_size)


def check_skip_limit(skipped: Sequence[SkippedItem], total: int, what: str) -> None:
    """Raise InputError if too many of `total` `what` were skipped.

    At most 10 or 0.1 % may be, whichever is more, and no more than LARGEST_SHARE.
    """
    share = ceil(total * LARGEST_SHARE)  # rounded up, so that one of a handful may be bad
    limit = min(max(10, total // 1000), share)
    if len(skipped) <= limit:
        return
    first = ", ".join(f"{item.image_id!r} ({item.reason})" for item in skipped[:5])
    more = ", …" if len(skipped) > 5 else ""
    raise InputError(
        f"{len(skipped):,} of {total:,} {what} cannot be used, at most {limit:,} may be left out: "
        f"{first}{more}; fix or remove them"
    )


def digest_of(value: object) -> str:
    """Return the hex sha256 of a value's ASCII JSON with sorted keys; ValueError for NaN."""
    # NaN is not JSON, and would never equal itself in a comparison of two keys
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def installed_versions() -> dict[str, str]:
    """Read the versions of python and the computing packages without importing them."""
    versions = {"python": python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
