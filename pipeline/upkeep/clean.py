"""Removable artifacts: results of other settings, unfinished work and leftovers, with their locks.

Only paths with a stage key in a stage's folder are considered. Not removable are paths that a
process works on or reads, that this experiment uses, that contain a file it reads, or that an
evaluation has in its ensemble or as its baseline. A result or unfinished work may still be
needed, so that these go by name alone. A directory is renamed before it is deleted, so that no
half-deleted directory keeps its name.
"""

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from a2cap.data.errors import A2Error, InputError, LockedError
from a2cap.data.files.atomic import rename_durably
from a2cap.data.files.paths import size_of
from a2cap.data.files.sealed_folder import MadeFrom, read_manifest
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import CAPTIONER, FURTHER_MODEL, TRAIN_DETECTOR
from a2cap.pipeline.engine.explain import difference
from a2cap.pipeline.engine.lock import (
    HOLDER,
    is_locked,
    is_read,
    lock_holder,
    require_unread,
    stage_lock,
)
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import unfinished
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.input_files import captioner_digest
from a2cap.pipeline.upkeep.verify import STAGES, is_key

RESULT, UNFINISHED, LEFTOVER = "result", "unfinished", "leftover"

UNKNOWN = "unknown if it is used: "
"""Start of the reason of items in a stage that cannot be declared, without its settings."""

_REMOVED = ".removed"


@dataclass(frozen=True)
class RemovableItem:
    """A removable path: its kind, its size in bytes, the reason, and a result made from it."""

    path: Path
    kind: str
    size: int
    reason: str
    reader: str = ""

    @property
    def why(self) -> str:
        """The reason with the reader."""
        return f"{self.reason}; read by {self.reader}" if self.reader else self.reason


def find_removable(experiment: Experiment, *, keep: Collection[Path] = ()) -> list[RemovableItem]:
    """Find the artifacts that the experiment does not need; `keep`: further files that it reads."""
    kept = [path.resolve() for path in (*_inputs(experiment.config), *keep)]
    readers, needed = _readers(experiment.artifacts)
    items = []
    for name in STAGES:
        folder = experiment.artifacts / name
        if not _is_below(folder, experiment.artifacts):
            continue
        used = _used_stage(experiment, name)
        for path in sorted(folder.iterdir()):
            protected = any(file.is_relative_to(path.resolve()) for file in kept)
            if protected or not _is_below(path, experiment.artifacts):
                continue
            item = _judge(path, used)
            if item is None or _digests(path, with_files=True) & needed:
                continue
            digests = _digests(path, with_files=False)
            users = [reader for digest in digests for reader in readers.get(digest, ())]
            if users:
                item = replace(item, reader=users[0])
            items.append(item)
    return items


def select_items(
    items: Sequence[RemovableItem], names: Sequence[str], artifacts: Path
) -> list[RemovableItem]:
    """Select items by their paths, absolute or below the artifacts folder.

    Raises LockedError for a path that a process works on, InputError for one that is not removable.
    """
    by_path = {item.path.resolve(): item for item in items}
    selected = []
    for name in names:
        candidates = (Path(name).resolve(), (artifacts / name).resolve())
        path = next((path for path in candidates if path in by_path), None)
        if path is None:
            raise _refusal(name, candidates)
        if by_path[path] not in selected:
            selected.append(by_path[path])
    return selected


def remove_item(item: RemovableItem) -> None:
    """Delete one item under its stage's lock; raise LockedError if a process works on it."""
    final = _final(item.path)
    lock_file = StagePaths(final, shared=True).lock
    with stage_lock(lock_file, what=f"{final.parent.name} {final.name}"):
        if lock := _held(final, but=lock_file):
            raise _in_use(str(final), lock)
        require_unread(item.path)
        removed = item.path.with_name(f"{item.path.name.removesuffix(_REMOVED)}{_REMOVED}")
        if removed != item.path:
            shutil.rmtree(removed, ignore_errors=True)
            rename_durably(item.path, removed)
        shutil.rmtree(removed)
        if not any(path.is_dir() for path in _of_key(final)):
            # filelock retries if the file that it locked was unlinked, so this does not race
            for path in _locks(final):
                path.unlink(missing_ok=True)


def _judge(path: Path, used: PreparedStage | str | None) -> RemovableItem | None:
    """Classify a folder of a stage; None if it is not removable."""
    final = _final(path)
    if not path.is_dir() or not is_key(final.name) or _held(final) is not None or is_read(path):
        return None
    verdict = _judge_folder(path, final, used)
    return verdict and RemovableItem(path, verdict[0], size_of(path), verdict[1])


def _judge_folder(
    path: Path, final: Path, used: PreparedStage | str | None
) -> tuple[str, str] | None:
    """Return the kind of a folder and the reason; None if it is not removable."""
    ending = path.name.removeprefix(final.name)
    if ending in ("", ".partial", ".forced.partial"):
        return _judge_work(path, final, used)
    if ending.endswith(_REMOVED):
        return LEFTOVER, "left by an interrupted deletion"
    if ending != ".replaced":
        return None
    if final.is_dir():
        return LEFTOVER, "replaced by --force"
    # killed between two renames: this is the only result, and a rerun puts it back
    return UNFINISHED, "its replacement is not finished; run the stage again first"


def _judge_work(
    path: Path, final: Path, used: PreparedStage | str | None
) -> tuple[str, str] | None:
    kind = RESULT if path == final else UNFINISHED
    if isinstance(used, str):
        return kind, f"{UNKNOWN}{used}"
    if used is not None and used.made_from.key == final.name:
        return None if path == final else (kind, "the next run resumes it")
    before = _made_from(path)
    if before is None:
        return kind, "its settings are unreadable"
    if used is None:
        return kind, "this experiment has no such stage"
    return kind, "; ".join(difference(before, used.made_from))


def _used_stage(experiment: Experiment, name: str) -> PreparedStage | str | None:
    """Return the experiment's stage of a name, None if it has none, or why that is not known."""
    # a detector is trained outside the experiment's own stages
    if name not in experiment.names and name != TRAIN_DETECTOR:
        return None
    try:
        return experiment.stage(name)
    except A2Error as error:
        return str(error)


def _inputs(config: Config) -> Iterator[Path]:
    """List the files and folders that an experiment reads: every path of its configuration."""
    for value in (value for _, section in config for _, value in section):
        yield from (
            p for p in (value if isinstance(value, tuple) else [value]) if isinstance(p, Path)
        )
    if config.extract.weights is not None:  # a name or a path
        yield Path(config.extract.weights)


def _readers(artifacts: Path) -> tuple[dict[str, list[str]], set[str]]:
    """Return digest -> what was made from it, and the digests that must stay whatever is named.

    Features that a training of another experiment has read are not stale: extraction takes long. To
    stay are the inputs of running stages, and the ensembles and baselines of finished evaluations,
    which no stage could restore.
    """
    readers: dict[str, list[str]] = {}
    needed: set[str] = set()
    for folder in sorted(artifacts.glob("*/*/")):
        made = _made_from(folder)
        running = folder.suffix == ".partial" and _held(_final(folder)) is not None
        for name, digest in made.inputs.items() if made is not None else ():
            readers.setdefault(digest, []).append(f"{folder.parent.name}/{folder.name}")
            if running or name == "baseline" or name.startswith(FURTHER_MODEL):
                needed.add(digest)
    return readers, needed


def _digests(path: Path, *, with_files: bool) -> set[str]:
    """Return the digests by which other stages identify this result, or one of its files too."""
    try:
        manifest = read_manifest(path)
    except A2Error:
        return set()
    outputs = {name: output.sha256 for name, output in manifest.outputs.items()}
    captioner = {captioner_digest(outputs)} if set(CAPTIONER) <= outputs.keys() else set()
    return {manifest.digest, *captioner, *(outputs.values() if with_files else ())}


def _made_from(folder: Path) -> MadeFrom | None:
    """Return the pre-image of finished or unfinished work, or None if it is unreadable."""
    try:
        return unfinished(folder)
    except (A2Error, OSError, ValueError, TypeError):
        return None


def _refusal(name: str, candidates: Sequence[Path]) -> A2Error:
    for path in candidates:
        lock = _held(_final(path)) if path.parent.name in STAGES else None
        if lock is not None:
            return _in_use(name, lock)
    return InputError(f'{name!r} is not removable; name a path that "a2 clean" lists')


def _in_use(name: str, lock: Path) -> LockedError:
    return LockedError(f"{name!r} is in use: {lock_holder(lock)}; wait for it, or stop it")


def _held(final: Path, *, but: Path | None = None) -> Path | None:
    """Return a lock of a result or its parts that a process holds, or None."""
    locks = [path for path in _locks(final) if path.suffix == ".lock"]
    locks += [lock for path in _of_key(final) for lock in path.glob("*/*.lock")]
    return next((lock for lock in locks if lock != but and is_locked(lock)), None)


def _final(path: Path) -> Path:
    """Return the path of the finished result that a path in a stage's folder belongs to."""
    return path.with_name(path.name.partition(".")[0])


def _of_key(final: Path) -> list[Path]:
    return [final, *sorted(final.parent.glob(f"{final.name}.*"))]


def _locks(final: Path) -> list[Path]:
    locks = sorted(StagePaths(final, shared=True).lock.parent.glob(f"{final.name}.*"))
    return [path for path in locks if path.name.endswith((".lock", HOLDER))]


def _is_below(path: Path, artifacts: Path) -> bool:
    """Return True if a path exists inside the artifacts folder and is not a link."""
    inside = path.resolve().is_relative_to(artifacts.resolve())
    return inside and path.exists() and not path.is_symlink()
