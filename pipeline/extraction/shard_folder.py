"""The folder in which a shard is filled, and its publication by one rename.

LMDB must not be written on a network file system. There the shard is filled in a folder of this
machine, below TMPDIR, and a copy of the sealed folder is published.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from a2cap.data.errors import StoreError
from a2cap.data.files.sealed_folder import MANIFEST, problems, publish
from a2cap.data.files.system import fsync, user_of
from a2cap.pipeline.engine.lock import stage_lock

UNFINISHED = "unfinished"
"""Folder beside the store with the shards that are being filled, and their locks."""

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "ceph", "lustre", "gpfs", "beegfs"}
_NETWORK |= {"9p", "afs", "glusterfs", "ocfs2", "gfs2", "orangefs", "pvfs2", "panfs", "virtiofs"}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs"}
_MOUNTS = Path("/proc/self/mountinfo")


def fill_shard(store: Path, name: str, fill: Callable[[Path], None]) -> None:
    """Fill a folder with `fill`, which seals it, and publish it as a shard of a store.

    A folder of a killed process is given to `fill` again. If another process publishes the shard
    first, its equal bytes stay. Raises LockedError if another process fills the shard here.
    """
    store.mkdir(parents=True, exist_ok=True)
    final, working = store / name, working_folder(store)
    with stage_lock(working / f"{name}.lock", what=f"shard {name} of {str(store)!r}"):
        if final.exists():
            return
        folder = working / name
        if not (folder / MANIFEST).exists():  # else killed between seal and publication
            fill(folder)
        if working.parent == store.parent:
            publish(folder, final)
        else:
            _publish_copy(folder, final)


def working_folder(store: Path) -> Path:
    """Return the folder in which the shards of a store are filled by this machine."""
    if not is_on_network(store.parent):
        return store.parent / UNFINISHED
    place = hashlib.sha256(str(store.resolve()).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"a2-{user_of()}-{place}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != user_of():
        raise StoreError(f"{str(folder)!r} belongs to another user; set TMPDIR to another folder")
    return folder


def is_on_network(path: Path) -> bool:
    """Return True if a path is on a network file system, as far as Linux reports it."""
    kind = _file_system(path.resolve())
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def remove_working_folder(store: Path) -> None:
    """Remove the folder of unfinished shards once all are published."""
    shutil.rmtree(working_folder(store), ignore_errors=True)


def _publish_copy(folder: Path, final: Path) -> None:
    copy = final.with_name(f".{final.name}.{uuid4().hex}")
    try:
        shutil.copytree(folder, copy)
        for file in copy.iterdir():
            fsync(file)
        damage = problems(copy)
        if damage:
            raise StoreError(f"copy of a shard failed: {damage[0]}; check the disk, and run again")
        publish(copy, final)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    shutil.rmtree(folder)


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path, "" if it is unknown."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    nearest = ("", "")
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        # the last one of those mounted over each other counts
        if path.is_relative_to(mount) and len(mount) >= len(nearest[0]):
            nearest = mount, after.split()[0]
    return nearest[1]
