"""SPICE (Anderson et al. 2016, arXiv:1607.08822) by the jars of pycocoevalcap 1.2.

Its main program pretty-prints with a JavaScript engine, which Java lost in version 15, and keeps
parses beside the installed package. SpiceLines.java calls the same classes with neither and needs
no further flag on Java 17, 21 and 25; spice-lines.jar holds it compiled (`javac --release 8`). What
the parser made of the references is kept in the cache folder.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

from a2cap.data.files.cache import read_entry, write_entry
from a2cap.pipeline.metrics.java import JavaError, JavaProcess, java_process
from a2cap.pipeline.metrics.tokenization import pycocoevalcap_folder
from a2cap.pipeline.weights.spice import downloaded_files

logger = logging.getLogger(__name__)

PARTS = ("Object", "Relation", "Attribute", "Cardinality", "Color", "Size")
"""What SPICE is told apart into."""

HEAP = "3G"
"""Most memory of the JVM's objects: parser and name finder take half of it."""

MODELS = "spice"
"""What `a2 weights fetch` calls the parser and its models."""

_PARSED_TOGETHER = 64
_SCORED_TOGETHER = 16
_KEPT_EVERY = 2048
"""Newly parsed references after which the cache entry is written, in case of an interruption."""

Tuples = list[list[str]]
"""Objects (one word), attributes (two) and relations (three) of a caption."""


@dataclass(frozen=True)
class Spice:
    """F-scores of one image; of a part that its references lack, None."""

    overall: float
    parts: dict[str, float | None]


def spice_jars() -> list[Path]:
    """The class path; raises JavaError where the parser or its models are missing."""
    folder = pycocoevalcap_folder() / "spice"
    models = downloaded_files(MODELS)
    if models is None:
        raise JavaError('SPICE needs Stanford CoreNLP 3.6.0; run "a2 weights fetch spice" first')
    own = Path(__file__).with_name("spice-lines.jar")
    return [own, folder / "spice-1.0.jar", *sorted((folder / "lib").glob("*.jar")), *models]


def spice_values(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    advance: Callable[[int], object],
) -> list[Spice]:
    """SPICE of each candidate against the references of its image.

    advance: told how many more captions have been parsed; the sum is that of all captions. Raises
    JavaError where it cannot run.
    """
    jars = os.pathsep.join(map(str, spice_jars()))
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    # Without a limit of its own, native memory grows with each thread's arena.
    arguments = ["-XX:+UseSerialGC", "-cp", jars, "edu.anu.spice.SpiceLines", str(threads)]
    logger.info("SPICE: a JVM of at most %s", HEAP)
    with java_process(arguments, heap=HEAP, purpose="SPICE") as java:
        known = _parsed_references(java, references, advance)
        fresh = dict.fromkeys(caption for caption in candidates if caption not in known)
        for part in _parsed(java, list(fresh)):
            known |= part
            advance(len(part))
        advance(len(candidates) - len(fresh))
        return _scored(java, candidates, references, known)


def _parsed_references(
    java: JavaProcess, references: Sequence[Sequence[str]], advance: Callable[[int], object]
) -> dict[str, Tuples]:
    captions = dict.fromkeys(chain.from_iterable(references))
    entry = f"spice/{hashlib.sha256(json.dumps(list(captions)).encode()).hexdigest()}"
    kept = read_entry(entry)
    known: dict[str, Tuples] = {} if kept is None else json.loads(kept)
    missing = [caption for caption in captions if caption not in known]
    advance(sum(map(len, references)) - len(missing))
    unsaved = 0
    for part in _parsed(java, missing):
        known |= part
        advance(len(part))
        unsaved += len(part)
        if unsaved >= _KEPT_EVERY or len(known) == len(captions):
            write_entry(entry, json.dumps(known).encode())
            unsaved = 0
    return known


def _parsed(java: JavaProcess, captions: Sequence[str]) -> Iterable[dict[str, Tuples]]:
    for start in range(0, len(captions), _PARSED_TOGETHER):
        part = captions[start : start + _PARSED_TOGETHER]
        [answer] = java.ask([json.dumps(part)])
        yield dict(zip(part, json.loads(answer), strict=True))


def _scored(
    java: JavaProcess,
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    known: dict[str, Tuples],
) -> list[Spice]:
    questions = [
        json.dumps({"test": known[candidate], "refs": [known[caption] for caption in group]})
        for candidate, group in zip(candidates, references, strict=True)
    ]
    answers = chain.from_iterable(
        java.ask(questions[start : start + _SCORED_TOGETHER])
        for start in range(0, len(questions), _SCORED_TOGETHER)
    )
    return [_spice(json.loads(answer)) for answer in answers]


def _spice(answer: dict[str, dict[str, float | None]]) -> Spice:
    parts = {part: answer[part]["f"] for part in PARTS}
    return Spice(cast("float", answer["All"]["f"]), parts)
