"""Integrity checks of stage results, feature stores, checkpoints and captioners.

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

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.seal import DATA_FILE, DATA_FILES, REMEDY, SEAL_FILE, read_seal
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.json_file import read_json
from a2cap.data.files.sealed_folder import KEY_LENGTH, Manifest, problems, read_manifest
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.engine.artifacts import (
    EVALUATE,
    EXTRACT,
    EXTRACTOR,
    MANIFEST,
    PREPROCESS,
    RESOLVED_CONFIG,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
    WEIGHTS,
)
from a2cap.pipeline.training.checkpoints import FILES, STATE, TENSORS, checkpoint_problem

STAGES = (EXTRACT, PREPROCESS, TRAIN_XE, TRAIN_SCST, EVALUATE, TRAIN_DETECTOR)
"""Names of all stages, including those that an experiment may lack."""

_UNFINISHED = (".partial", ".replaced", ".removed")  # no promise about their content
_KEY = re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}")
_CHECKPOINT = re.compile(r"step-\d{8,}")
_DESCRIPTION, _VOCABULARY = "model.json", "vocabulary.json"
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
    """Verify a result, a store, a checkpoint or a captioner, or all of them below a folder.

    Unfinished work is skipped, except for its checkpoints if `path` names it. Raises InputError if
    there is nothing to verify.
    """
    item = None
    for item in _verify_below(path, data):
        yield item
    if item is None:
        raise InputError(
            f"nothing to verify in {str(path)!r}; name a stage's result, a feature store, "
            "a checkpoint, a captioner, or a folder that contains some"
        )


def is_key(name: str) -> bool:
    """Return True if a folder name has the form of a stage key."""
    return bool(_KEY.fullmatch(name))


def _has_key_of(path: Path, *stages: str) -> bool:
    """Return True for the path of a result in the artifacts folder, False for a copy elsewhere."""
    return path.parent.name in stages and is_key(path.name)


def _verify_below(path: Path, data: bool) -> Iterator[VerifiedItem]:
    has_data = (path / SEAL_FILE).is_file() or (path / DATA_FILE).is_file()
    if has_data:
        yield _verify_store(path, data)
    elif _CHECKPOINT.fullmatch(path.name) or (path / STATE).is_file():
        yield _verify_checkpoint(path, data)
    elif (path / MANIFEST).is_file() or (path.is_dir() and _has_key_of(path, *STAGES)):
        yield _verify_result(path, data)
        yield from _verify_folders(path, data)
    elif (path / TENSORS).is_file() and not path.name.endswith(_UNFINISHED):
        yield _verify_captioner(path, data)
    elif path.is_dir():
        yield from _verify_folders(path, data)


def _verify_folders(path: Path, data: bool) -> Iterator[VerifiedItem]:
    """Verify the items in the sub-folders, except a result's outputs, verified with the result."""
    outputs: set[str] = set()
    with suppress(A2Error):
        outputs = set(read_manifest(path).outputs)
    for inner in sorted(path.iterdir()):
        # a checkpoint that is being saved begins with a dot
        hidden = inner.name.startswith(".") or inner.name.endswith(_UNFINISHED)
        if inner.is_dir() and not inner.is_symlink() and not hidden and inner.name not in outputs:
            yield from _verify_below(inner, data)


def _verify_result(path: Path, data: bool) -> VerifiedItem:
    """Compare a finished stage directory with its manifest."""
    try:
        manifest = read_manifest(path)
    except A2Error as error:
        return VerifiedItem(path.parent.name, path, (str(error),))
    stage = manifest.origin.stage
    damages = list(_result_damages(path, manifest, data))
    # a captioner's copy of the extractor's weights is not an output: its sha256 is in the record
    if EXTRACTOR in manifest.outputs and WEIGHTS not in manifest.outputs:
        damages += _weights_damages(path, data)
    remedy = _remedy(path, stage)
    lines = tuple(line if "; " in line else f"{line}; {remedy}" for line in damages)
    return VerifiedItem(stage, path, lines, _fingerprint(path) if stage == EXTRACT else ())


def _result_damages(path: Path, manifest: Manifest, data: bool) -> Iterator[str]:
    """List the differences from the manifest; a line without a remedy gets the stage's."""
    stage, key = manifest.origin.stage, manifest.origin.key
    if _has_key_of(path, stage) and path.name != key:
        yield f"{str(path)!r} has the manifest of key {key!r}"
    for name, output in manifest.outputs.items():
        yield from _output_damages(path / name, output.sha256, output.size, data)


def _output_damages(path: Path, digest: str, size: int | None, data: bool) -> Iterator[str]:
    if path.is_dir():
        yield from _store_damages(path, data, digest=digest)
    elif not path.is_file():
        yield f"{str(path)!r} is missing"
    elif size is not None and path.stat().st_size != size:
        yield f"{str(path)!r} has {path.stat().st_size} bytes, {size} in the manifest"
    elif data and sha256_of(path) != digest:
        yield f"{str(path)!r} differs from its sha256 in the manifest"


def _verify_store(path: Path, data: bool) -> VerifiedItem:
    return VerifiedItem("store", path, tuple(_store_damages(path, data)), _fingerprint(path.parent))


def _store_damages(path: Path, data: bool, *, digest: str | None = None) -> Iterator[str]:
    changed = list(_changed_files(path)) if data else []
    yield from changed
    if changed:  # LMDB kills the process (SIGBUS, SIGABRT) when it reads a damaged page
        return
    try:
        store = FeatureStore(path)
        yield from store.verify(data)
    except (A2Error, OSError) as error:
        yield str(error)
        return
    if digest is not None and store.digest != digest:
        yield f"{str(path)!r} differs from its digest in the manifest"


def _changed_files(path: Path) -> Iterator[str]:
    """List the data files of a store or of its shards that differ from their seals."""
    for seal in sorted(path.rglob(SEAL_FILE)):
        try:
            found = read_seal(seal.parent)
            file = seal.with_name(DATA_FILES[found.form])
            changed = file.is_file() and sha256_of(file) != found.file_sha256
        except A2Error:  # FeatureStore reports an unreadable seal
            continue
        if changed:
            yield f"{str(file)!r} differs from its seal; {REMEDY}"


def _verify_checkpoint(path: Path, data: bool) -> VerifiedItem:
    problem = checkpoint_problem(path) if data else _checkpoint_structure_problem(path)
    # in unfinished work the checkpoint is the way back, in a finished training a by-product
    partial = next((parent for parent in path.parents if parent.name.endswith(".partial")), None)
    if partial is None:
        remedy = "delete it: only more epochs would need it"
    else:
        command = "a2 detector train" if partial.parent.name == TRAIN_DETECTOR else "a2 train"
        remedy = f'run "{command}", which resumes from the checkpoint before it, or restarts'
    return VerifiedItem("checkpoint", path, (f"{problem}; {remedy}",) if problem else ())


def _checkpoint_structure_problem(path: Path) -> str | None:
    """Describe the first problem of a checkpoint that shows without reading its tensors."""
    missing = [name for name in (*FILES, MANIFEST) if not (path / name).is_file()]
    if missing:
        return f"checkpoint is incomplete: {str(path)!r} ({missing[0]} is missing)"
    try:
        found = problems(path, digests=False)
    except A2Error as error:
        return f"checkpoint is damaged: {str(error).partition('; ')[0]}"
    return f"checkpoint is damaged: {found[0]}" if found else None


def _tensor_file_damages(path: Path) -> Iterator[str]:
    """Yield a line if a safetensors file is truncated."""
    try:
        with safe_open(path, framework="np"):  # compares the header with the file's size
            pass
    except (SafetensorError, OSError) as error:
        yield f"{str(path)!r} is truncated or not a safetensors file ({error})"


def _verify_captioner(path: Path, data: bool) -> VerifiedItem:
    """Check the files of a captioner without a manifest, such as a copied one, for consistency."""
    needed = (_DESCRIPTION, _VOCABULARY, EXTRACTOR)
    damages = [f"{str(path / name)!r} is missing" for name in needed if not (path / name).is_file()]
    damages += _tensor_file_damages(path / TENSORS)
    if not damages:
        damages += [*_vocabulary_damages(path), *_weights_damages(path, data)]
    lines = tuple(f"{line}; {_COPY_AGAIN}" for line in damages)
    note = f"no manifest to compare {TENSORS} with; copy {MANIFEST} too"
    return VerifiedItem("captioner", path, lines, (*_fingerprint(path), note))


def _vocabulary_damages(path: Path) -> Iterator[str]:
    try:
        description = read_json(path / _DESCRIPTION)
        digest = Vocabulary.load(path / _VOCABULARY).digest
    except A2Error as error:
        yield str(error).partition(";")[0]
        return
    if not isinstance(description, dict) or description.get("vocabulary_digest") != digest:
        yield f"{str(path / _VOCABULARY)!r} is not the vocabulary named in {_DESCRIPTION}"


def _weights_damages(path: Path, data: bool) -> Iterator[str]:
    """Compare the extractor's weights beside a captioner with their sha256 in extractor.json."""
    made = _extractor(path)
    if made is not None and made.source is not None:
        return  # imported features have no extractor
    if not (path / WEIGHTS).is_file():
        yield f"{str(path / WEIGHTS)!r} is missing"
        return
    if data and (made is None or sha256_of(path / WEIGHTS) != made.weights_sha256):
        yield f"{str(path / WEIGHTS)!r} differs from its sha256 in {EXTRACTOR}"
    elif not data:
        yield from _tensor_file_damages(path / WEIGHTS)


def _fingerprint(path: Path) -> tuple[str, ...]:
    """Format the extractor that made a folder's features, or those of a captioner's training."""
    found = _extractor(path)
    if found is None:
        return ()
    if found.source is not None:
        return (f"extractor: {found.summary} of {found.source!r}",)
    meta = "none" if found.meta is None else _format_section(found.meta)
    return (
        f"extractor: {found.summary}",
        f"extractor's weights: sha256 {found.weights_sha256}",
        f"extractor's meta: {meta}",
        f"extractor's code version: {found.code_version}; "
        f"libraries: {_format_section(found.libraries)}",
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


def _remedy(path: Path, stage: str) -> str:
    """Return the command that restores a stage's result."""
    if not _has_key_of(path, stage):
        return _COPY_AGAIN
    commands = {
        TRAIN_XE: ["train", "--phase", "xe"],
        TRAIN_SCST: ["train", "--phase", "scst"],
        TRAIN_DETECTOR: ["detector", "train"],
    }
    words = ["a2", *commands.get(stage, [stage]), "--force", "-c", str(path / RESOLVED_CONFIG)]
    words += ["--artifacts", str(path.parents[1])]
    return f'run "{shlex.join(words)}"'
