"""Inputs of a stage: files whose content is promised by the digests in the stage's key.

A result of another stage is compared with its manifest before the work begins. All files are
checked again before work is kept or published.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.engine.artifacts import MANIFEST
from a2cap.pipeline.engine.manifest import Manifest, read_manifest

FileState = tuple[int, int, int, int]
Promised = tuple[str, FileState | None]
"""The sha256 of a file, and the file's state when it was computed; None if it is a manifest's."""

_NAMED = 5

_promised: ContextVar[dict[Path, Promised] | None] = ContextVar("_promised", default=None)


def file_state(path: Path) -> FileState:
    """Return a file's size, modification time, change time and inode."""
    found = path.stat()
    # the change time also shows an edit whose modification time was set back
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


@dataclass(frozen=True)
class Input:
    """An input of a stage: its path, the digest of its content, and the files to check."""

    path: Path
    digest: str
    files: Mapping[Path, Promised] = field(default_factory=dict)


def result_input(directory: Path, manifest: Manifest) -> Input:
    """Return a finished result as the input of another stage."""
    # a feature store is a folder; its records have checksums of their own
    files = {n: digest for n, digest in manifest.outputs.items() if not (directory / n).is_dir()}
    files |= manifest.checksums
    promised = {directory / name: (digest, None) for name, digest in files.items()}
    return Input(directory, manifest.digest, promised)


def require_intact(directory: Path, *names: str) -> None:
    """Raise InputError if one of these files of a result differs from its manifest."""
    # a copy may lack the manifest, and files that its reader does not need
    if (directory / MANIFEST).is_file():
        one = result_input(directory, read_manifest(directory))
        present = {
            path: one.files[path] for path in one.files if path.name in names and path.is_file()
        }
        with promised_inputs([replace(one, files=present)]):
            pass


@contextmanager
def promised_inputs(inputs: Iterable[Input]) -> Iterator[None]:
    """Check the inputs before and after the block; `check_inputs` checks them inside it."""
    token = _promised.set({path: known for one in inputs for path, known in one.files.items()})
    try:
        check_inputs()
        yield
        check_inputs()
    finally:
        _promised.reset(token)


def check_inputs(paths: Iterable[Path | None] | None = None) -> None:
    """Raise InputError if an input of the running stage has changed; do nothing outside a stage.

    Work calls it before each commit or checkpoint, so that unfinished work is always that of the
    promised content. paths: the files that the commit depends on, by default all.
    """
    promised = _promised.get() or {}
    chosen = promised if paths is None else [path for path in paths if path in promised]
    changed = [path for path in chosen if path and _changed(path, promised)]
    if not changed:
        return
    first = changed[0]
    if promised[first][1] is None:
        result = next(folder for folder in first.parents if (folder / MANIFEST).exists())
        raise InputError(
            f"{str(first)!r} differs from its digest in the manifest; "
            f'run "a2 verify --data {result}", which names the command that restores it'
        )
    named = ", ".join(repr(str(path)) for path in changed[:_NAMED])
    more = ", …" if len(changed) > _NAMED else ""
    raise InputError(
        f"{len(changed)} of {len(promised)} input files changed during the run: {named}{more}; "
        "run the same command again"
    )


def _changed(path: Path, promised: dict[Path, Promised]) -> bool:
    digest, known = promised[path]
    try:
        state = file_state(path)  # before the digest, so that a later change shows
        if state == known:
            return False
        if sha256_of(path) != digest:
            return True
    except OSError:
        return True
    promised[path] = (digest, state)
    return False
