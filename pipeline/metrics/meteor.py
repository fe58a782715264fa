"""METEOR 1.5 (Denkowski and Lavie 2014) by its jar's line protocol, as pycocoevalcap 1.2 runs it.

The jar answers each caption with its match counts. They give the value of an image and, summed,
that of a set of images.
"""

import logging
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.pipeline.metrics.java import JavaError, java_process
from a2cap.pipeline.metrics.ngrams import Floats
from a2cap.pipeline.metrics.paraphrases import paraphrases_for
from a2cap.pipeline.metrics.tokenization import LINE_BREAKS, pycocoevalcap_folder

logger = logging.getLogger(__name__)

HEAP = "1G"
"""Heap limit of a JVM; the whole paraphrase table would need twice as much."""

STATISTICS = 23
"""Numbers in the jar's answer to a caption."""

_BATCH = 32
"""Captions sent before answers are read."""
_FEWEST_PER_JVM = 1000
"""Fewer captions do not repay the start and warm-up of a second JVM."""
_MAX_JVMS = 2

# The jar's parameters and stage weights for English.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_STAGES = np.array([1.0, 0.6, 0.8, 0.6])


def meteor_statistics(
    image_ids: Sequence[str],
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    advance: Callable[[int], object],
) -> Floats:
    """Return (N, 23), the jar's counts for each candidate and its best reference.

    advance: called with the number of newly scored captions. Raises JavaError if no JVM can be run
    or a caption cannot be scored.
    """
    questions = list(map(_question, candidates, references))
    jvms = max(1, min(_MAX_JVMS, len(questions) // _FEWEST_PER_JVM))
    share = -(-len(questions) // jvms)
    logger.info("METEOR: %d JVM%s with a heap of at most %s", jvms, "s" if jvms > 1 else "", HEAP)
    with tempfile.TemporaryDirectory() as folder:
        # The jar cannot find its own table below a folder with a space in its name.
        table = Path(folder) / "paraphrases.gz"
        table.write_bytes(paraphrases_for(candidates, references))

        def answered(start: int) -> list[list[float]]:
            part = slice(start, start + share)
            return _answers(image_ids[part], questions[part], table, advance)

        with ThreadPoolExecutor(jvms) as threads:
            parts = threads.map(answered, range(0, len(questions), share))
            return _addable(np.array([row for rows in parts for row in rows]))


def meteor_values(statistics: NDArray[np.floating]) -> Floats:
    """Return METEOR, (…), of summed statistics (…, 23)."""
    length, reference_length, function, reference_function = np.moveaxis(statistics[..., :4], -1, 0)
    stages = statistics[..., 4:20].reshape(*statistics.shape[:-1], 4, 2, 2)
    chunks, matched, reference_matched = np.moveaxis(statistics[..., 20:], -1, 0)
    # (stage, content or function word, candidate or reference) -> (candidate or reference)
    weighted = np.einsum("...swc,s,w->...c", stages, _STAGES, np.array([_DELTA, 1 - _DELTA]))
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = weighted[..., 0] / _weighted_length(length, function)
        recall = weighted[..., 1] / _weighted_length(reference_length, reference_function)
        mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
        fragmentation = chunks / ((matched + reference_matched) / 2)
        values = mean * (1 - _GAMMA * fragmentation**_BETA)
    return np.asarray(np.where(np.isnan(values), 0.0, np.maximum(values, 0.0)))


def _addable(rows: Floats) -> Floats:
    """Return rows for summation as in the jar: a caption equal to its reference has no chunk."""
    matched = rows[:, 4:20].reshape(-1, 8, 2).sum(axis=1)  # of the candidate, of the reference
    is_equal = (matched == rows[:, :2]).all(axis=1) & (rows[:, 20] == 1)
    rows[is_equal, 20] = 0
    return rows


def _weighted_length(words: Floats, function_words: Floats) -> Floats:
    return _DELTA * (words - function_words) + (1 - _DELTA) * function_words


def _answers(
    image_ids: Sequence[str],
    questions: Sequence[str],
    table: Path,
    advance: Callable[[int], object],
) -> list[list[float]]:
    jar = pycocoevalcap_folder() / "meteor" / "meteor-1.5.jar"
    arguments = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(jar)]
    arguments += ["-", "-", "-stdio", "-l", "en", "-norm", "-a", str(table)]
    found: list[list[float]] = []
    with java_process(arguments, heap=HEAP, purpose="METEOR") as java:
        for start in range(0, len(questions), _BATCH):
            part = slice(start, start + _BATCH)
            answers = java.ask(questions[part])
            found += map(_numbers, answers, image_ids[part])
            advance(len(answers))
    return found


def _question(candidate: str, references: Sequence[str]) -> str:
    # ||| separates fields. pycocoevalcap removes a double blank too, and values must be equal.
    plain = candidate.replace("|||", "").replace("  ", " ")
    question = ["SCORE", *(r.replace("|||", "") for r in references), plain]
    return LINE_BREAKS.sub(" ", " ||| ".join(question))


def _numbers(answer: str, image_id: str) -> list[float]:
    numbers = answer.split()
    if len(numbers) != STATISTICS or not re.fullmatch(r"[-\d.E ]+", answer):
        raise JavaError(
            f"METEOR cannot score image {image_id!r}: {answer!r}; check its caption and references"
        )
    return [float(number) for number in numbers]
