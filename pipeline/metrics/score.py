"""The metrics that captioning papers report: BLEU, METEOR, ROUGE-L, CIDEr and SPICE.

Values are those of pycocoevalcap 1.2 (`COCOEvalCap`) to 1e-6. How they are found differs: n-grams
are counted as arrays, the jars of METEOR and SPICE run beside each other and beside the rest,
nothing is printed, and a metric that fails does not sink the others.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

import numpy as np

from a2cap.data.errors import InputError
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.metrics.bleu import bleu_statistics
from a2cap.pipeline.metrics.bootstrap import SUMMED, interval, resampled
from a2cap.pipeline.metrics.cider import cider_values
from a2cap.pipeline.metrics.java import JavaError, find_java, java_threads
from a2cap.pipeline.metrics.meteor import meteor_statistics
from a2cap.pipeline.metrics.ngrams import Floats, count_pair
from a2cap.pipeline.metrics.rouge import rouge_values
from a2cap.pipeline.metrics.spice import PARTS, spice_jars, spice_values

logger = logging.getLogger(__name__)

METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "SPICE")
"""Every metric of `metrics.json`, in the order in which tables show them."""

_NOT_ASKED = "it was not asked for; set evaluate.spice to true"

Tokens = Mapping[str, list[str]]
"""Sentences of PTB tokens joined by spaces, per image id."""


@dataclass(frozen=True)
class Scores:
    """What was measured, over all images and for each.

    metrics: metric -> value, in [0, 1] but for CIDEr, which may exceed 1.
    per_image: image id -> metric -> value.
    not_run: metric -> why it has no value.
    confidence: metric -> the ends of its 95 % interval, by drawing images anew.
    statistics: family ("BLEU", "METEOR") -> image id -> numbers whose sums over images give its
    metrics; the other metrics are means of `per_image`.
    spice: part of SPICE (Relation, Cardinality, Attribute, Size, Color, Object) -> mean F-score
    over the images whose references have such a part. spice_per_image: image id -> part -> its
    F-score, None where the references have none.
    """

    metrics: dict[str, float]
    per_image: dict[str, dict[str, float]]
    not_run: dict[str, str]
    confidence: dict[str, tuple[float, float]] = field(default_factory=dict)
    statistics: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    spice: dict[str, float] = field(default_factory=dict)
    spice_per_image: dict[str, dict[str, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Measured:
    """What one scorer found; its names are those of its metrics.

    statistics: family -> (N, k) numbers of the images, as `resampled` takes them.
    values: name -> (N,), of each image. overall: name -> value over all images.
    parts: of SPICE, one for each image.
    """

    statistics: dict[str, Floats]
    values: dict[str, Floats]
    overall: dict[str, float]
    parts: list[dict[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Captions:
    """N candidates, and the references of each, in the order of the images."""

    image_ids: list[str]
    candidates: list[str]
    references: list[list[str]]


def score(
    candidates: Mapping[str, str | list[str]],
    references: Mapping[str, Sequence[str]],
    *,
    spice: bool = False,
) -> Scores:
    """Every metric that can run here, of one candidate per image against its references.

    candidates, references: PTB tokens, as `tokenize` gives them, of the same images. spice: SPICE
    too, which parses every caption: minutes for thousands of them.
    """
    captions = _paired(candidates, references)
    without_spice = spice_obstacle() if spice else _NOT_ASKED
    outcomes = _measure_all(captions, without=() if without_spice is None else ("SPICE",))
    not_run = {} if without_spice is None else {"SPICE": without_spice}
    found = []
    for names, outcome in outcomes.items():
        if isinstance(outcome, _Measured):
            found.append(outcome)
        else:
            logger.warning("%s could not run: %s", ", ".join(names), outcome)
            not_run |= dict.fromkeys(names, str(outcome) or type(outcome).__name__)
    return _scores(captions.image_ids, found, not_run)


def spice_obstacle() -> str | None:
    """Why SPICE cannot run here, or None where it can."""
    try:
        find_java()
        spice_jars()
    except JavaError as error:
        return str(error)
    return None


def cider(
    candidates: Mapping[str, str | list[str]], references: Mapping[str, Sequence[str]]
) -> float:
    """CIDEr alone, which needs no JVM once both are PTB tokens: for validation during training.

    Document frequencies are those of `references`, one document per image, as in `COCOEvalCap`.
    """
    captions = _paired(candidates, references)
    return float(cider_values(count_pair(captions.candidates, captions.references)).mean())


def _paired(
    candidates: Mapping[str, str | list[str]], references: Mapping[str, Sequence[str]]
) -> _Captions:
    """Both sides over the same images in the same order."""
    if not candidates:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    if candidates.keys() != references.keys():
        odd = sorted(candidates.keys() ^ references.keys())
        raise InputError(
            f"captions and references are of different images: {odd[0]!r} and {len(odd) - 1} more"
            " are only in one; hand in both for the same images"
        )
    hypotheses = {k: [v] if isinstance(v, str) else list(v) for k, v in candidates.items()}
    for image_id, captions in hypotheses.items():
        if len(captions) != 1 or not references[image_id]:
            raise InputError(
                f"image {image_id!r} has {len(captions)} captions and "
                f"{len(references[image_id])} references; score one against at least one"
            )
    image_ids = list(hypotheses)
    return _Captions(
        image_ids,
        [hypotheses[image_id][0] for image_id in image_ids],
        [list(references[image_id]) for image_id in image_ids],
    )


def _measure_all(
    captions: _Captions, *, without: tuple[str, ...]
) -> dict[tuple[str, ...], _Measured | Exception]:
    """Names -> what their scorer found, or why it found nothing; the JVMs work beside.

    without: names of which the scorer stays out.
    """
    by_jvm = {names: measure for names, measure in _BY_JVM.items() if names != without}
    outcomes: dict[tuple[str, ...], _Measured | Exception] = {}
    total = sum(_WORK[names](captions) for names in by_jvm)
    with track("score", total=total) as progress, java_threads(len(by_jvm) or 1) as threads:
        waiting = {
            names: threads.submit(measure, captions, progress.advance)
            for names, measure in by_jvm.items()
        }
        for names, measure in _HERE.items():
            outcomes[names] = _outcome(partial(measure, captions))
        for names, future in waiting.items():
            outcomes[names] = _outcome(future.result)
    return outcomes


def _outcome(measure: Callable[[], _Measured]) -> _Measured | Exception:
    try:
        return measure()
    except Exception as error:  # whatever fails, the other metrics are still worth having
        return error


def _scores(image_ids: list[str], found: list[_Measured], not_run: dict[str, str]) -> Scores:
    """The findings by metric in the order of METRICS, and by image."""
    overall = {name: value for measured in found for name, value in measured.overall.items()}
    values = {name: column for measured in found for name, column in measured.values.items()}
    statistics = {
        family: rows for measured in found for family, rows in measured.statistics.items()
    }
    parts = [row for measured in found for row in measured.parts]
    names = [name for name in METRICS if name in overall]
    drawn = resampled(statistics) if statistics else {}
    return Scores(
        metrics={name: overall[name] for name in names},
        per_image={
            image_id: {name: float(values[name][row]) for name in names}
            for row, image_id in enumerate(image_ids)
        },
        not_run=not_run,
        confidence={name: interval(drawn[name]) for name in names},
        statistics={
            family: dict(zip(image_ids, rows.tolist(), strict=True))
            for family, rows in statistics.items()
            if family in SUMMED
        },
        spice=_mean_parts(parts),
        spice_per_image=dict(zip(image_ids, parts, strict=True)) if parts else {},
    )


def _mean_parts(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Of each part the mean over the images that have it, as SPICE's own program averages."""
    found = {
        name: [value for of_image in parts if (value := of_image[name]) is not None]
        for name in PARTS
    }
    return {name: fmean(values) for name, values in found.items() if parts and values}


def _bleu(captions: _Captions) -> _Measured:
    return _summed("BLEU", bleu_statistics(count_pair(captions.candidates, captions.references)))


def _meteor(captions: _Captions, advance: Callable[[int], object]) -> _Measured:
    rows = meteor_statistics(
        captions.image_ids, captions.candidates, captions.references, advance=advance
    )
    return _summed("METEOR", rows)


def _rouge(captions: _Captions) -> _Measured:
    return _averaged("ROUGE_L", rouge_values(captions.candidates, captions.references))


def _cider(captions: _Captions) -> _Measured:
    counted = count_pair(captions.candidates, captions.references)
    return _averaged("CIDEr", cider_values(counted))


def _spice(captions: _Captions, advance: Callable[[int], object]) -> _Measured:
    found = spice_values(captions.candidates, captions.references, advance=advance)
    measured = _averaged("SPICE", [spice.overall for spice in found])
    return replace(measured, parts=[spice.parts for spice in found])


def _summed(family: str, statistics: Floats) -> _Measured:
    names, values = SUMMED[family]
    return _Measured(
        statistics={family: statistics},
        values=dict(zip(names, values(statistics).T, strict=True)),
        overall=dict(zip(names, values(statistics.sum(axis=0)).tolist(), strict=True)),
    )


def _averaged(name: str, values: Sequence[float] | Floats) -> _Measured:
    column = np.asarray(values, dtype=np.float64)
    return _Measured({name: column[:, None]}, {name: column}, {name: float(column.mean())})


_HERE: dict[tuple[str, ...], Callable[[_Captions], _Measured]] = {
    METRICS[:4]: _bleu,
    ("ROUGE_L",): _rouge,
    ("CIDEr",): _cider,
}
_BY_JVM: dict[tuple[str, ...], Callable[[_Captions, Callable[[int], object]], _Measured]] = {
    ("METEOR",): _meteor,
    ("SPICE",): _spice,
}
"""Names -> what measures them: in this process, and by JVMs."""

_WORK: Mapping[tuple[str, ...], Callable[[_Captions], int]] = {
    ("METEOR",): lambda captions: len(captions.candidates),
    ("SPICE",): lambda captions: len(captions.candidates) + sum(map(len, captions.references)),
}
"""Names -> captions that their JVM tells when it is done with them."""
