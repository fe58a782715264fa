"""Why a stage runs: the difference between two pre-images, in the words of the config."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.manifest import FILE_NAME, Manifest, read_manifest

_ABSENT = object()

RENAMED = {
    "inputs.pictures": "inputs.images",
    "detector.validation_pictures": "detector.max_validation_images",
    "evaluate.report_pictures": "evaluate.report_images",
    "scst.captions_per_picture": "scst.captions_per_image",
    "scst.validation_pictures": "scst.max_validation_images",
    "train.captions_per_picture": "train.captions_per_image",
    "train.validation_pictures": "train.max_validation_images",
}
"""Field or input as keys spell it -> its name today. Keys keep the older spelling, so that results
stay valid."""


def difference(before: PreImage, after: PreImage) -> list[str]:
    """One line per difference, such as `train.warmup 10000 -> 400` or `inputs.model changed`."""
    lines = []
    if before.code_version != after.code_version:
        lines.append(f"code version {before.code_version} -> {after.code_version}")
    old, new = dict(_leaves(before.params)), dict(_leaves(after.params))
    for path in sorted(old.keys() | new.keys()):
        if old.get(path, _ABSENT) != new.get(path, _ABSENT):
            lines.append(f"{RENAMED.get(path, path)} {_shown(old, path)} -> {_shown(new, path)}")
    for name in sorted(before.inputs.keys() | after.inputs.keys()):
        if before.inputs.get(name) != after.inputs.get(name):
            path = f"inputs.{name}"
            lines.append(f"{RENAMED.get(path, path)} changed")
    return lines


def latest(folder: Path) -> Manifest | None:
    """The manifest of the stage result in `folder` that was finished last, if there is one."""
    directories = (path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    found = [read_manifest(directory) for directory in directories if not directory.suffix]
    return max(found, key=lambda manifest: manifest.finished, default=None)


def _leaves(params: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(leaves: Mapping[str, object], path: str) -> str:
    return repr(leaves[path]) if path in leaves else "absent"
