"""Whether what lies on disk is whole: results of stages, feature stores, checkpoints, captioners.

The structure is what can be told without reading everything: manifests, the files that they
declare, and their sizes. With `data` every byte is read and compared with what was recorded when it
was written. Nothing is written here.
"""

import json
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from safetensors import SafetensorError, safe_open

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.seal import DATA_FILE, SEAL_FILE, read_seal
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.json_file import read_json
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.engine.artifacts import (
    CALIBRATE,
    EVALUATE,
    EXTRACT,
    EXTRACTOR,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
    WEIGHTS,
)
from a2cap.pipeline.engine.key import KEY_LENGTH
from a2cap.pipeline.engine.manifest import FILE_NAME, Manifest, read_manifest
from a2cap.pipeline.engine.run import SKIPPED
from a2cap.pipeline.training.checkpoint_files import (
    FILES,
    MANIFEST,
    STATE,
    TENSORS,
    checkpoint_problem,
)

STAGES = (
    CALIBRATE,
    EXTRACT,
    PREPROCESS,
    TRAIN_XE,
    TRAIN_SCST,
    EVALUATE,
    TRAIN_DETECTOR,
)
"""Names of all stages, whichever an experiment has."""

_HALF_DONE = (".partial", ".replaced", ".removed")
_KEY = re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}")
_CHECKPOINT = re.compile(r"step-\d{8,}")
_DESCRIPTION, _VOCABULARY = "model.json", "vocabulary.json"
_COPY_AGAIN = "copy it again, or make it again with --force"


@dataclass(frozen=True)
class Verified:
    """One thing that was verified.

    kind: a stage's name, "store", "checkpoint" or "captioner"; damages: what is damaged and how to
    get it back, a line each, none where it is sound; notes: what else is worth knowing of it.
    """

    kind: str
    path: Path
    damages: tuple[str, ...]
    notes: tuple[str, ...] = ()


def verify(path: Path, *, data: bool) -> Iterator[Verified]:
    """Verifies a result, a store, a checkpoint or a captioner, or all of them below a folder.

    Unfinished work is passed over, but for the checkpoints in it where it is named itself. Raises
    InputError where there is nothing to verify.
    """
    verified = None
    for verified in _below(path, data):
        yield verified
    if verified is None:
        raise InputError(
            f"nothing to verify in {str(path)!r}; name the result of a stage, a feature store, "
            "a checkpoint, a captioner, or a folder that holds some"
        )


def is_key(name: str) -> bool:
    """Whether a folder's name is a stage's key."""
    return bool(_KEY.fullmatch(name))


def _below(path: Path, data: bool) -> Iterator[Verified]:
    if (path / SEAL_FILE).is_file() or (path / DATA_FILE).is_file():
        yield _store(path, data)
    elif _CHECKPOINT.fullmatch(path.name) or (path / STATE).is_file():
        yield _checkpoint(path, data)
    elif (path / FILE_NAME).is_file() or _is_named_as_result(path):
        yield _result(path, data)
        yield from _in_folders(path, data)
    elif (path / TENSORS).is_file() and not path.name.endswith(_HALF_DONE):
        yield _captioner(path, data)
    elif path.is_dir():
        yield from _in_folders(path, data)


def _in_folders(path: Path, data: bool) -> Iterator[Verified]:
    """What the folders of a folder hold; a result's own outputs were verified with it."""
    passed = _declared(path)
    for inner in sorted(path.iterdir()):
        hidden = inner.name.startswith(".") or inner.name.endswith(_HALF_DONE)
        if inner.is_dir() and not inner.is_symlink() and not hidden and inner.name not in passed:
            yield from _below(inner, data)


def _declared(path: Path) -> set[str]:
    try:
        return set(read_manifest(path).outputs)
    except A2Error:
        return set()


def _is_named_as_result(path: Path) -> bool:
    return path.is_dir() and path.parent.name in STAGES and is_key(path.name)


def _result(path: Path, data: bool) -> Verified:
    """A finished stage directory against its manifest."""
    try:
        manifest = read_manifest(path)
    except A2Error as error:
        return Verified(path.parent.name, path, (str(error),))
    stage = manifest.pre_image.stage
    damages = list(_damages(path, manifest, data))
    if EXTRACTOR in manifest.outputs and WEIGHTS not in manifest.outputs:
        damages += _weights_damages(path, data)
    remedy = _remedy(path, stage)
    lines = tuple(line if "; " in line else f"{line}; {remedy}" for line in damages)
    return Verified(stage, path, lines, _fingerprint(path) if stage == EXTRACT else ())


def _damages(path: Path, manifest: Manifest, data: bool) -> Iterator[str]:
    """What differs from the manifest; without a remedy where the stage's own is meant."""
    stage, key = manifest.pre_image.stage, manifest.pre_image.key
    if path.parent.name == stage and is_key(path.name) and path.name != key:
        yield f"{str(path)!r} has a manifest of the key {key!r}"
    for name, digest in manifest.outputs.items():
        yield from _output_damages(path / name, digest, manifest.sizes.get(name), data)
    yield from _skipped_damages(path / SKIPPED, manifest.skipped)


def _skipped_damages(path: Path, count: int) -> Iterator[str]:
    try:
        listed = len([json.loads(line)["id"] for line in path.read_text().splitlines()])
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{str(path)!r} cannot be read ({error})"
        return
    if listed != count:
        yield f"{str(path)!r} lists {listed} items, its manifest says {count}"


def _output_damages(path: Path, digest: str, size: int | None, data: bool) -> Iterator[str]:
    if path.is_dir():
        yield from _store_damages(path, data, digest=digest)
    elif not path.is_file():
        yield f"{str(path)!r} is missing"
    elif size is not None and path.stat().st_size != size:
        yield f"{str(path)!r} has {path.stat().st_size} bytes, its manifest says {size}"
    elif data and sha256_of(path) != digest:
        yield f"{str(path)!r} holds other bytes than its manifest says"


def _store(path: Path, data: bool) -> Verified:
    return Verified("store", path, tuple(_store_damages(path, data)), _fingerprint(path.parent))


def _store_damages(path: Path, data: bool, *, digest: str | None = None) -> Iterator[str]:
    changed = list(_changed_files(path)) if data else []
    yield from changed
    if changed:  # LMDB ends the process (SIGBUS, SIGABRT) when it walks over a damaged page
        return
    try:
        store = FeatureStore(path)
        yield from store.verify(data)
    except (A2Error, OSError) as error:
        yield str(error)
        return
    if digest is not None and store.digest != digest:
        yield f"{str(path)!r} holds other features than its manifest says"


def _changed_files(path: Path) -> Iterator[str]:
    """The data files of a store, or of its shards, that are not those that were sealed."""
    for seal in sorted(path.rglob(SEAL_FILE)):
        file = seal.with_name(DATA_FILE)
        try:
            changed = file.is_file() and sha256_of(file) != read_seal(seal.parent).file_sha256
        except A2Error:  # a seal that cannot be read is reported by the store itself
            continue
        if changed:
            yield f'{str(file)!r} is not the file that was sealed; run "a2 extract --force"'


def _checkpoint(path: Path, data: bool) -> Verified:
    problem = checkpoint_problem(path) if data else _cut_checkpoint(path)
    partial = next((parent for parent in path.parents if parent.name.endswith(".partial")), None)
    detects = partial is not None and partial.parent.name == TRAIN_DETECTOR
    command = "a2 detector train" if detects else "a2 train"
    remedy = (
        f'the next "{command}" goes back to the one before it, or to the start'
        if partial is not None
        else "delete it: a finished training does not need it"
    )
    return Verified("checkpoint", path, (f"{problem}; {remedy}",) if problem else ())


def _cut_checkpoint(path: Path) -> str | None:
    """What is wrong with a checkpoint, as far as it shows without reading its tensors."""
    missing = [name for name in (*FILES, MANIFEST) if not (path / name).is_file()]
    if missing:
        return f"checkpoint is incomplete: {str(path)!r} ({missing[0]} is missing)"
    try:
        json.loads((path / MANIFEST).read_text())["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"checkpoint is incomplete: {str(path)!r} ({error})"
    cut = next(_cut_tensors(path / TENSORS), None)
    if cut is None and zipfile.is_zipfile(path / STATE):
        return None
    return f"checkpoint is damaged: {str(path / (STATE if cut is None else TENSORS))!r}"


def _cut_tensors(path: Path) -> Iterator[str]:
    """A line where the header of a safetensors file does not fit what follows it."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        yield f"{str(path)!r} is cut or no safetensors file ({error})"


def _captioner(path: Path, data: bool) -> Verified:
    """A captioner without a manifest, such as a copied one: its files against each other."""
    needed = (_DESCRIPTION, _VOCABULARY, EXTRACTOR)
    damages = [f"{str(path / name)!r} is missing" for name in needed if not (path / name).is_file()]
    damages += _cut_tensors(path / TENSORS)
    if not damages:
        damages += [*_vocabulary_damages(path), *_weights_damages(path, data)]
    lines = tuple(f"{line}; {_COPY_AGAIN}" for line in damages)
    note = f"no manifest: what {TENSORS} holds cannot be compared; copy {FILE_NAME} with it"
    return Verified("captioner", path, lines, (*_fingerprint(path), note))


def _vocabulary_damages(path: Path) -> Iterator[str]:
    try:
        description = read_json(path / _DESCRIPTION)
        digest = Vocabulary.load(path / _VOCABULARY).digest
    except A2Error as error:
        yield str(error).partition(";")[0]
        return
    if not isinstance(description, dict) or description.get("vocabulary_digest") != digest:
        yield f"{str(path / _VOCABULARY)!r} is not the vocabulary that {_DESCRIPTION} names"


def _weights_damages(path: Path, data: bool) -> Iterator[str]:
    """The extractor's weights beside a captioner against the digest in extractor.json."""
    if not (path / WEIGHTS).is_file():
        yield f"{str(path / WEIGHTS)!r} is missing"
        return
    made = _extractor(path)
    if data and (made is None or sha256_of(path / WEIGHTS) != made.weights_sha256):
        yield f"{str(path / WEIGHTS)!r} holds other bytes than {EXTRACTOR} says"
    elif not data:
        yield from _cut_tensors(path / WEIGHTS)


def _fingerprint(path: Path) -> tuple[str, ...]:
    """How the features in a folder were made, or those that a captioner was trained on."""
    found = _extractor(path)
    if found is None:
        return ()
    meta = "none" if found.meta is None else _words(found.meta)
    return (
        f"extractor: {found.summary}",
        f"extractor's weights: sha256 {found.weights_sha256}",
        f"extractor's meta: {meta}",
        f"extractor's code version: {found.code_version}; libraries: {_words(found.libraries)}",
    )


def _extractor(path: Path) -> ExtractorRecord | None:
    """Return the record of the extractor; None where it is missing or incomplete."""
    try:
        return ExtractorRecord.read(path / EXTRACTOR)
    except InputError:
        return None


def _words(section: Mapping[str, object]) -> str:
    """Format a section of the record in one line; tables, such as the anchors, by their length."""
    return ", ".join(
        f"{name} {len(value)} rows" if _is_table(value) else f"{name} {value}"
        for name, value in section.items()
    )


def _is_table(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list) and any(isinstance(row, list) for row in value)


def _remedy(path: Path, stage: str) -> str:
    """How to get a stage's result back."""
    if path.parent.name != stage or not is_key(path.name):
        return _COPY_AGAIN
    if stage == CALIBRATE:
        return 'delete that folder, then run "a2 extract"'
    phases = {TRAIN_XE: "xe", TRAIN_SCST: "scst"}
    commands = {name: ["train", "--phase", phase] for name, phase in phases.items()}
    commands[TRAIN_DETECTOR] = ["detector", "train"]
    words = ["a2", *commands.get(stage, [stage]), "--force", "-c", str(path / "config.yaml")]
    words += ["--artifacts", str(path.parents[1])]
    return f'run "{shlex.join(words)}"'
