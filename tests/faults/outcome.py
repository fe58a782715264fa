"""What a finished stage is made of, so that two of them can be compared and damage is named."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from a2cap.data.features.store import FeatureStore

Outcome = dict[str, str]
"""Path inside the stage's directory -> digest of what it says."""

STORE = "features.lmdb"


def outcome(directory: Path) -> Outcome:
    """Digests of all that a result says; not of when, how fast and in how many runs it was made."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not name.startswith(_OF_THE_RUN):
            found[name] = _DIGESTS.get(path.name, _bytes)(path)
    if (directory / STORE).exists():
        found[STORE] = _store(directory / STORE)
    return found


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One line for each file that is missing, too many, or says something else."""
    lines = [f"{name} is missing" for name in expected.keys() - found.keys()]
    lines += [f"{name} is too many" for name in found.keys() - expected.keys()]
    both = expected.keys() & found.keys()
    lines += [f"{name} differs" for name in both if expected[name] != found[name]]
    return sorted(lines)


def contents(folder: Path, *, without: tuple[Path, ...] = ()) -> Outcome:
    """Digests of all files below a folder, but for those at or below some paths."""
    return {
        path.relative_to(folder).as_posix(): _bytes(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(path.is_relative_to(left_out) for left_out in without)
    }


_OF_THE_RUN = ("events.jsonl", "tensorboard/", f"{STORE}/")
"""What differs between two equal runs; the store is compared by its records."""


def _store(path: Path) -> str:
    """The digest over the sorted records, after each has been read and checked."""
    store = FeatureStore(path)
    return "; ".join(store.verify(data=True)) or f"{len(store)} records, {store.digest}"


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _without(*fields: str) -> Callable[[Path], str]:
    """The digest of a file of JSON lines, or one of JSON, but for fields of time."""

    def digest(path: Path) -> str:
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        said = [{k: v for k, v in json.loads(line).items() if k not in fields} for line in lines]
        return json.dumps(said, sort_keys=True)

    return digest


def _name_only(path: Path) -> str:
    return "there"


_DIGESTS: Mapping[str, Callable[[Path], str]] = {
    "metrics.jsonl": _without("tokens_per_second", "images_per_second"),
    # of a stage it says when it ended, of a checkpoint it holds the digest of a time
    "manifest.json": _without("finished", "seconds", "sha256"),
    "state.pt": _name_only,
}
