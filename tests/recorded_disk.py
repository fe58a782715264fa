"""A disk that loses what was not synced: writes, fsyncs and renames of this process in order.

At a power cut, a file keeps its content only if it was synced after its last write, and its name
only if its folder was synced after the file was created or renamed.
"""

import builtins
import io
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Rename:
    """A rename, and what a power cut might have lost then of all beside and below its target.

    Paths are relative to the target's folder, in which the target has its new name already.
    """

    target: Path
    lost_contents: frozenset[str]
    lost_names: frozenset[str]


@dataclass
class RecordedDisk:
    """Paths whose content or name is not on disk yet, and the renames so far."""

    contents: set[Path] = field(default_factory=set)
    names: set[Path] = field(default_factory=set)
    written: list[Path] = field(default_factory=list)
    renames: list[Rename] = field(default_factory=list)

    def lost(self, folder):
        """Return the paths below a folder whose content or name a power cut would lose now."""
        return _below(folder, self.contents | self.names)

    def write(self, path):
        if not path.exists():
            self.names.add(path)
        self.contents.add(path)
        self.written.append(path)

    def sync(self, path):
        if path.is_dir():
            self.names = {other for other in self.names if other.parent != path}
        else:
            self.contents.discard(path)

    def rename(self, source, target):
        self.contents = _moved(self.contents, source, target)
        self.names = _moved(self.names, source, target) | {target}
        contents, names = (_below(target.parent, paths) for paths in (self.contents, self.names))
        self.renames.append(Rename(target, contents, names))

    def attach(self, monkeypatch):
        """Record what this process does from now on."""

        def opening(original):
            def record(file, mode="r", *arguments, **options):
                if isinstance(file, str | os.PathLike) and set("wax+") & set(mode):
                    self.write(Path(file))
                return original(file, mode, *arguments, **options)

            return record

        def syncing(descriptor, original=os.fsync):
            original(descriptor)
            self.sync(Path(f"/proc/self/fd/{descriptor}").readlink())

        def renaming(original):
            def record(source, target, **options):
                original(source, target, **options)
                self.rename(Path(source), Path(target))

            return record

        def making(path, *arguments, original=os.mkdir, **options):
            original(path, *arguments, **options)
            self.names.add(Path(path))

        monkeypatch.setattr(io, "open", opening(io.open))
        monkeypatch.setattr(builtins, "open", opening(builtins.open))
        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(os, "rename", renaming(os.rename))
        monkeypatch.setattr(os, "replace", renaming(os.replace))
        monkeypatch.setattr(os, "mkdir", making)


def _below(folder, paths):
    return frozenset(
        path.relative_to(folder).as_posix() for path in paths if folder in path.parents
    )


def _moved(paths, source, target):
    moved = {path for path in paths if path == source or source in path.parents}
    return paths - moved | {target / path.relative_to(source) for path in moved}
