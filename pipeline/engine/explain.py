"""Reasons for a rerun: differences between two pre-images, named by their config fields."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.artifacts import MANIFEST
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.manifest import Manifest, read_manifest

RENAMED_FIELDS = {
    "inputs.pictures": "inputs.images",
    "detector.validation_pictures": "detector.max_validation_images",
    "evaluate.report_pictures": "evaluate.report_images",
    "scst.captions_per_picture": "scst.captions_per_image",
    "scst.validation_pictures": "scst.max_validation_images",
    "train.captions_per_picture": "train.captions_per_image",
    "train.validation_pictures": "train.max_validation_images",
}
"""Earlier dotted name of a field or input -> its name today.

Keys keep the earlier spelling, so that results stay valid. A config file that uses it is answered
with the name of today.
"""


def difference(before: PreImage, after: PreImage) -> list[str]:
    """List the differences: `train.warmup 10000 -> 400`, `inputs.model changed`."""
    lines = []
    if before.code_version != after.code_version:
        lines.append(f"code version {before.code_version} -> {after.code_version}")
    old, new = dict(leaves(before.params)), dict(leaves(after.params))
    for path in sorted(old.keys() | new.keys()):
        # compared as text, because the key distinguishes 1 from 1.0
        was, now = (repr(one[path]) if path in one else "absent" for one in (old, new))
        if was != now:
            lines.append(f"{RENAMED_FIELDS.get(path, path)} {was} -> {now}")
    for name in sorted(before.inputs.keys() | after.inputs.keys()):
        if before.inputs.get(name) != after.inputs.get(name):
            path = f"inputs.{name}"
            lines.append(f"{RENAMED_FIELDS.get(path, path)} changed")
    return lines


def finished_results(folder: Path) -> dict[Path, Manifest]:
    """Map the finished results in `folder` to their manifests, the newest first."""
    found = {}
    for path in folder.glob(f"*/{MANIFEST}"):
        # .partial, .replaced and .removed are no results; `a2 verify` lists unreadable manifests
        with suppress(A2Error):
            if not path.parent.suffix:
                found[path.parent] = read_manifest(path.parent)
    return dict(sorted(found.items(), key=lambda item: item[1].finished, reverse=True))


def latest(folder: Path) -> Manifest | None:
    """Return the manifest of the most recently finished result in `folder`, or None."""
    return next(iter(finished_results(folder).values()), None)


def leaves(params: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted name and the value of each field that is not a section."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
