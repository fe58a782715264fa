"""Differences between the keys of results, which are reasons for a rerun."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import MANIFEST, MadeFrom, Manifest, read_manifest


def difference(before: MadeFrom, after: MadeFrom) -> list[str]:
    """List the differences: `train.warmup 10000 -> 400`, `inputs.model changed`."""
    lines = []
    if before.version != after.version:
        lines.append(f"version of the stage {before.version} -> {after.version}")
    old, new = dict(leaves(before.fields)), dict(leaves(after.fields))
    for path in sorted(old.keys() | new.keys()):
        # compared as text, because the key distinguishes 1 from 1.0
        was, now = (repr(fields[path]) if path in fields else "absent" for fields in (old, new))
        if was != now:
            lines.append(f"{path} {was} -> {now}")
    changed = before.inputs.keys() | after.inputs.keys()
    return lines + [
        f"inputs.{name} changed"
        for name in sorted(changed)
        if before.inputs.get(name) != after.inputs.get(name)
    ]


def finished_results(folder: Path) -> dict[Path, Manifest]:
    """Map the finished results of a stage in `folder` to their manifests, the newest first."""
    manifests = {}
    for path in folder.glob(f"*/{MANIFEST}"):
        # .partial, .replaced and .removed are no results; `a2 verify` lists unreadable manifests
        with suppress(A2Error):
            if not path.parent.suffix:
                manifests[path.parent] = read_manifest(path.parent)
    return dict(sorted(manifests.items(), key=lambda item: item[1].finished, reverse=True))


def nearest_difference(folder: Path, after: MadeFrom) -> list[str] | None:
    """List the differences from the finished result that has the fewest; None without any result.

    The newest result may be that of another experiment, whose settings are no reason for a rerun.
    """
    made = [manifest.made_from for manifest in finished_results(folder).values()]
    differences = [difference(before, after) for before in made if before is not None]
    return min(differences, key=len, default=None)  # the newest of equally near ones


def leaves(fields: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted name and the value of each field that is not a section."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
