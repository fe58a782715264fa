"""Inputs of a stage: files whose content is promised by the digests in the stage's key.

A result of another stage is compared with its manifest before the work begins. All files are
checked again before work is kept or published.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.sealed_folder import MANIFEST, problems, read_manifest
from a2cap.data.image_ids import sample_ids

FileState = tuple[int, int, int, int]
Promised = tuple[str, FileState | None]
"""Digest of a file or of a sealed folder, and its state when it was computed; None if the digest is
a manifest's."""


def file_state(path: Path) -> FileState:
    """Return a file's size, modification time, change time and inode."""
    status = path.stat()
    # the change time also shows an edit whose modification time was set back
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(frozen=True)
class Input:
    """An input of a stage: its path, the digest of its content, and the files to check."""

    path: Path
    digest: str
    files: Mapping[Path, Promised] = field(default_factory=dict)


class Inputs(dict[str, Input]):
    """The inputs of a stage's work by name."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        super().__init__(inputs)
        self._promised = {
            path: state for source in inputs.values() for path, state in source.files.items()
        }

    def check(self, paths: Iterable[Path | None] | None = None) -> None:
        """Raise InputError if an input has changed.

        Work calls it before each commit or checkpoint, so that unfinished work is always that of
        the promised content. paths: the files that the commit depends on, by default all.
        """
        promised = self._promised
        checked = promised if paths is None else [path for path in paths if path in promised]
        changed = [path for path in checked if path and self._changed(path)]
        if not changed:
            return
        first = changed[0]
        if promised[first][1] is None:
            result = next(folder for folder in first.parents if (folder / MANIFEST).exists())
            raise InputError(
                f"{str(first)!r} differs from its digest in the manifest; "
                f'run "a2 verify --data {result}", which names the command that restores it'
            )
        sample = sample_ids([repr(str(path)) for path in changed])
        raise InputError(
            f"{len(changed)} of {len(promised)} input files changed during the run: {sample}; "
            "run the same command again"
        )

    def _changed(self, path: Path) -> bool:
        digest, state_before = self._promised[path]
        try:
            # before the digest, so that a later change shows
            state = file_state(path / MANIFEST if path.is_dir() else path)
            if state == state_before:
                return False
            # of a folder by size only: the records of a feature store have checksums of their own
            if path.is_dir() and problems(path, digests=False):
                return True
            if (read_manifest(path).digest if path.is_dir() else sha256_of(path)) != digest:
                return True
        except (OSError, A2Error):
            return True
        self._promised[path] = (digest, state)
        return False
