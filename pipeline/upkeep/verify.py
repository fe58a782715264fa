"""Integrity checks of sealed folders: results, stores, checkpoints and captioners.

By default the structure is checked: manifests, the files that they declare, and file sizes. With
`data` every byte is read and compared with the recorded digests. Nothing is written.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.store_manifest import DATA_FILE
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.paths import did_you_mean
from a2cap.data.files.sealed_folder import KEY_LENGTH, MANIFEST, problems, read_manifest
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.captioning.model_description import load_description
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONER,
    EVALUATE,
    EXTRACT,
    EXTRACTOR,
    PREPROCESS,
    RESOLVED_CONFIG,
    TRAIN_DETECTOR,
    TRAIN_ENCODER,
    TRAIN_SCST,
    TRAIN_XE,
    WEIGHTS,
)
from a2cap.pipeline.engine.status import COMMANDS

STAGES = (
    EXTRACT,
    PREPROCESS,
    TRAIN_ENCODER,
    TRAIN_XE,
    TRAIN_SCST,
    EVALUATE,
    TRAIN_DETECTOR,
)
"""Names of all stages, including those that an experiment may lack."""

_UNFINISHED = (".partial", ".replaced", ".removed")  # no promise about their content
_KEY = re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}")
_CHECKPOINT = re.compile(r"step-\d{8,}")
_COPY_AGAIN = "copy it again, or recreate it with --force"


@dataclass(frozen=True)
class VerifiedItem:
    """A verified item on disk.

    kind: a stage's name, "store", "checkpoint" or "captioner"; damages: one line per damage with
    its remedy, empty if the item is intact; notes: further lines of information.
    """

    kind: str
    path: Path
    damages: tuple[str, ...]
    notes: tuple[str, ...] = ()


def verify(path: Path, *, data: bool) -> Iterator[VerifiedItem]:
    """Verify a sealed folder, or all of them below a folder.

    Unfinished work is skipped, except for its checkpoints if `path` names it. Raises InputError if
    there is nothing to verify.
    """
    item = None
    for item in _verify_below(path, data):
        yield item
    if item is None:
        raise InputError(
            f"nothing to verify in {str(path)!r}; name a stage's result, a feature store, "
            f"a checkpoint, a captioner, or a folder that contains some{did_you_mean(path)}"
        )


def is_key(name: str) -> bool:
    """Return True if a folder name has the form of a stage key."""
    return bool(_KEY.fullmatch(name))


def _verify_below(path: Path, data: bool) -> Iterator[VerifiedItem]:
    if not path.is_dir():
        return
    if (path / MANIFEST).is_file() or _must_be_sealed(path):
        yield _verify_sealed(path, data)
    elif (path / DATA_FILE).is_file():
        yield VerifiedItem("store", path, tuple(_store_damages(path, data)))
        return
    elif (path / CAPTIONER[0]).is_file() and not path.name.endswith(_UNFINISHED):
        yield _verify_captioner(path, data)
        return
    outputs: set[str] = set()
    with suppress(A2Error):
        outputs = set(read_manifest(path).outputs)
    for inner in sorted(path.iterdir()):
        # a checkpoint that is being saved begins with a dot
        hidden = inner.name.startswith(".") or inner.name.endswith(_UNFINISHED)
        if not hidden and inner.name not in outputs and _is_followed(inner):
            yield from _verify_below(inner, data)


def _is_followed(path: Path) -> bool:
    """Return False for a link, unless it is that of a result, or of all of a stage."""
    is_result = path.name in STAGES or _must_be_sealed(path)
    # not into a folder around it, without end
    return not path.is_symlink() or (is_result and path.resolve() not in path.absolute().parents)


def _must_be_sealed(path: Path) -> bool:
    """Return True for the paths of results in an artifacts folder and of checkpoints."""
    return bool(_CHECKPOINT.fullmatch(path.name)) or (
        path.parent.name in STAGES and is_key(path.name)
    )


def _verify_sealed(path: Path, data: bool) -> VerifiedItem:
    """Compare a sealed folder with its manifest."""
    kind = "checkpoint" if _CHECKPOINT.fullmatch(path.name) else path.parent.name
    try:
        made, lines = read_manifest(path).made_from, problems(path, digests=data)
    except A2Error as error:
        return VerifiedItem(kind, path, (str(error),))
    remedy = _COPY_AGAIN
    notes: tuple[str, ...] = ()
    if kind == "checkpoint":
        remedy = _checkpoint_remedy(path)
    elif made is None:
        kind, notes = "store", _fingerprint(path.parent)
    else:
        kind, notes = made.stage, _fingerprint(path) if made.stage == EXTRACT else ()
        if path.parent.name == made.stage and is_key(path.name):
            remedy = _command(path, made.stage)
            if path.name != made.key:
                lines.append(f"{str(path)!r} has the manifest of key {made.key!r}")
    return VerifiedItem(kind, path, tuple(f"{line}; {remedy}" for line in lines), notes)


def _checkpoint_remedy(path: Path) -> str:
    # in unfinished work the checkpoint is the way back, in a finished training a by-product
    partial = next((parent for parent in path.parents if parent.name.endswith(".partial")), None)
    if partial is None:
        return "delete it: only more epochs would need it"
    command = COMMANDS[partial.parent.name]
    return f'run "a2 {command}", which resumes from the checkpoint before it, or restarts'


def _command(path: Path, stage: str) -> str:
    """Return the command that restores a stage's result in an artifacts folder."""
    command = COMMANDS.get(stage, stage).split()
    words = ["a2", *command, "--force", "-c", str(path / RESOLVED_CONFIG)]
    words += ["--artifacts", str(path.parents[1])]
    return f'run "{shlex.join(words)}"'


def _store_damages(path: Path, data: bool) -> Iterator[str]:
    try:
        yield from FeatureStore(path).verify(data)
    except (A2Error, OSError) as error:
        yield str(error)


def _verify_captioner(path: Path, data: bool) -> VerifiedItem:
    """Check the files of a captioner without a manifest, such as a copied one, for consistency."""
    note = f"no manifest to compare {CAPTIONER[0]} with; copy {MANIFEST} too"
    lines = tuple(f"{line}; {_COPY_AGAIN}" for line in _captioner_damages(path, data))
    return VerifiedItem("captioner", path, lines, (*_fingerprint(path), note))


def _captioner_damages(path: Path, data: bool) -> Iterator[str]:
    made = _extractor(path)
    # imported features have no extractor
    weights = [] if made is not None and made.source is not None else [WEIGHTS]
    missing = [name for name in (*CAPTIONER, *weights) if not (path / name).is_file()]
    yield from (f"{str(path / name)!r} is missing" for name in missing)
    if missing:
        return
    for name in (CAPTIONER[0], *weights):
        try:
            with safe_open(path / name, framework="np"):  # compares the header with the file's size
                pass
        except (SafetensorError, OSError) as error:
            yield f"{str(path / name)!r} is truncated or not a safetensors file ({error})"
    try:
        load_description(path)
    except A2Error as error:
        yield str(error).rpartition("; ")[0]
    if data and made is not None and weights and sha256_of(path / WEIGHTS) != made.weights_sha256:
        yield f"{str(path / WEIGHTS)!r} differs from its sha256 in {EXTRACTOR}"


def _fingerprint(path: Path) -> tuple[str, ...]:
    """Format the extractor that made a folder's features, or those of a captioner's training."""
    extractor = _extractor(path)
    if extractor is None:
        return ()
    if extractor.source is not None:
        return (f"extractor: {extractor.summary} of {extractor.source!r}",)
    meta = "none" if extractor.meta is None else _format_section(extractor.meta)
    return (
        f"extractor: {extractor.summary}",
        f"extractor's weights: sha256 {extractor.weights_sha256}",
        f"extractor's meta: {meta}",
        f"extractor's code version: {extractor.code_version}; "
        f"libraries: {_format_section(extractor.libraries)}",
    )


def _extractor(path: Path) -> ExtractorRecord | None:
    """Return the record of the extractor, or None if it is missing or incomplete."""
    try:
        return ExtractorRecord.read(path / EXTRACTOR)
    except InputError:
        return None


def _format_section(section: Mapping[str, object]) -> str:
    """Format a section of the record in one line; tables, such as the anchors, by their length."""
    parts = []
    for name, value in section.items():
        rows = value if isinstance(value, list) else []
        is_table = any(isinstance(row, list) for row in rows)
        parts.append(f"{name} {len(rows)} rows" if is_table else f"{name} {value}")
    return ", ".join(parts)
