"""Digests of a finished stage, to compare results and to name damaged files."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from a2cap.data.features.store import FeatureStore

Digests = dict[str, str]
"""Path inside a folder -> digest of the file's content."""

STORE = "features.lmdb"

_VOLATILE = re.compile(rf"(.*/)?events\.jsonl$|tensorboard/|{STORE}/")
"""Files that differ between equal runs; the store is compared by its records."""


def result_digests(directory: Path) -> Digests:
    """Return digests of a result that do not depend on time, speed and number of runs."""
    digests = {
        name: _DIGESTS.get(path.name, _sha256)(path)
        for name, path in _files(directory).items()
        if not _VOLATILE.match(name)
    }
    if (directory / STORE).exists():
        store = FeatureStore(directory / STORE)
        problems = "; ".join(store.verify(data=True))
        digests[STORE] = problems or f"{len(store)} records, {store.digest}"
    return digests


def file_digests(folder: Path, *, without: tuple[Path, ...] = ()) -> Digests:
    """Return digests of all files below a folder, except at or below the paths in `without`."""
    return {
        name: _sha256(path)
        for name, path in _files(folder).items()
        if not any(path.is_relative_to(excluded) for excluded in without)
    }


def differences(expected: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Return one line for each missing, additional or different file."""
    lines = [f"{name} is missing" for name in expected.keys() - actual.keys()]
    lines += [f"{name} is unexpected" for name in actual.keys() - expected.keys()]
    both = expected.keys() & actual.keys()
    lines += [f"{name} differs" for name in both if expected[name] != actual[name]]
    return sorted(lines)


def _files(folder: Path) -> dict[str, Path]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json_without(*fields: str) -> Callable[[Path], str]:
    """Return a digest of a JSON or JSON Lines file that ignores these fields."""

    def digest(path: Path) -> str:
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        rows = [{k: v for k, v in json.loads(line).items() if k not in fields} for line in lines]
        return json.dumps(rows, sort_keys=True)

    return digest


def _manifest(path: Path) -> str:
    """Return a manifest without times, the state of a checkpoint, which has one, and sizes."""
    content = json.loads(path.read_text())
    content = {
        k: v for k, v in content.items() if k not in ("finished", "seconds", "manifest_sha256")
    }
    outputs = content.pop("outputs")
    # LMDB's file depends on the commits, its records do not
    content["outputs"] = {k: output["sha256"] for k, output in outputs.items() if k != "state.pt"}
    return json.dumps(content, sort_keys=True)


_DIGESTS: Mapping[str, Callable[[Path], str]] = {
    # Ray is named
    "config.yaml": lambda path: re.sub(r"ray: \w+", "", path.read_text()),
    "metrics.jsonl": _json_without("tokens_per_second", "images_per_second"),
    "manifest.json": _manifest,
    "state.pt": lambda _: "exists",
}
