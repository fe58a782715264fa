"""Metrics of captioning papers: BLEU, METEOR, ROUGE-L, CIDEr and SPICE; truth of known scenes.

Values equal those of pycocoevalcap 1.2 (`COCOEvalCap`) to 1e-6. Unlike there, only SPICE needs
Java, and nothing is printed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.image_ids import sample_ids
from a2cap.data.tokenizers import Tokenizer
from a2cap.model.errors import KindError
from a2cap.model.plug_ins import call_function
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.metrics.bleu import bleu_statistics, bleu_values
from a2cap.pipeline.metrics.bootstrap import SUMMED, interval, resample
from a2cap.pipeline.metrics.cider import IDFS, Idf, cider_values, frequencies_of
from a2cap.pipeline.metrics.meteor.meteor import meteor_statistics
from a2cap.pipeline.metrics.ngrams import Floats, count_pairs
from a2cap.pipeline.metrics.rouge import rouge_values
from a2cap.pipeline.metrics.scene_truth import TRUTH, truth_counts
from a2cap.pipeline.metrics.spice import NOT_REQUESTED, PARTS, spice_values
from a2cap.pipeline.metrics.tokenization import metric_tokens

if TYPE_CHECKING:
    from a2cap.data.scenes.truth import Judgement

METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "SPICE", "SPIDEr")
"""Metrics of any captions, in the order of tables; TRUTH comes last."""


def shown_name(metric: str) -> str:
    """Return a metric's name as in papers; keys are the names of the COCO server, or paths."""
    return metric.rpartition(":")[2].replace("Bleu_", "BLEU-").replace("ROUGE_L", "ROUGE-L")


def unpenalised_line(metrics: Mapping[str, float], unpenalised: Sequence[float]) -> list[str]:
    """Return a line of BLEU-1 to 4 without brevity penalty, none if that changes nothing."""
    if not unpenalised or unpenalised[0] <= metrics.get("Bleu_1", 1.0):
        return []
    values = " ".join(f"{value:.4f}" for value in unpenalised)
    return [f"BLEU-1 to 4 without brevity penalty: {values}"]


# metrics.json contains these texts, so its wording is part of the file format.
ONE_IMAGE = (
    "its document frequencies are those of the scored references, and an n-gram of the only image "
    "has no weight; score more images, or weigh by idf coco"
)
FEW_IMAGES = 50
"""Fewer images make CIDEr's document frequencies, and so its values, unlike those of papers."""
COCO_TOKENS = "its document frequencies, those of COCO's captions, are of PTB tokens"
ENGLISH_ONLY = "it reads English alone, the captions are compared as Unicode words"

Tokens = Mapping[str, Sequence[str]]
"""Image id -> sentences of tokens joined by spaces."""

Advance = Callable[[int], object]
"""Callback with the number of captions that were processed since its last call."""


@dataclass(frozen=True)
class Scores:
    """Metrics over all images and for each image.

    metrics: metric -> value, in [0, 1] except for CIDEr, which may exceed 1.
    per_image: image id -> metric -> value.
    not_run: metric -> reason why it has no value.
    confidence: metric -> ends of its 95 % bootstrap interval.
    statistics: family ("BLEU", "METEOR", "truth") -> image id -> numbers whose sums over images
    give its metrics; the other metrics are means of `per_image`.
    spice: SPICE category (Relation, Cardinality, Attribute, Size, Color, Object) -> mean F-score
    over the images whose references have it. spice_per_image: image id -> category -> F-score, None
    if the references do not have it. idf: source of CIDEr's document frequencies.
    """

    metrics: dict[str, float]
    per_image: dict[str, dict[str, float]]
    not_run: dict[str, str]
    confidence: dict[str, tuple[float, float]] = field(default_factory=dict)
    statistics: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    spice: dict[str, float] = field(default_factory=dict)
    spice_per_image: dict[str, dict[str, float | None]] = field(default_factory=dict)
    idf: Idf = "references"

    @property
    def unpenalised_bleu(self) -> list[float]:
        """BLEU-1 to 4 without the brevity penalty; empty without BLEU."""
        rows = self.statistics.get("BLEU", {})
        total = np.sum(list(rows.values()), axis=0)
        return list(bleu_values(total, penalised=False).tolist()) if rows else []

    @property
    def warnings(self) -> list[str]:
        """Reasons why values may not mean what they seem to."""
        count = len(self.per_image)
        if "CIDEr" not in self.metrics or count >= FEW_IMAGES or self.idf == "coco":
            return []
        return [
            f"CIDEr weighs n-grams by their frequency in the references of {count} images; with "
            f"fewer than {FEW_IMAGES} it cannot be compared with other data; idf coco weighs by "
            "the captions of COCO"
        ]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and interval of each metric, then the reasons of missing ones."""
        found = [
            (shown_name(name), f"{value:.4f}", "{:.4f} to {:.4f}".format(*self.confidence[name]))
            if name in self.confidence
            else (shown_name(name), f"{value:.4f}", "")
            for name, value in self.metrics.items()
        ]
        return found + [(shown_name(n), "not run:", why) for n, why in self.not_run.items()]

    def __str__(self) -> str:
        """Return a table of the metrics with their 95 % intervals."""
        rows = self.rows()
        width = max(8, *(len(name) for name, *_ in rows))
        lines = [f"{name:<{width}} {' '.join(rest).rstrip()}" for name, *rest in rows]
        lines += unpenalised_line(self.metrics, self.unpenalised_bleu)
        return "\n".join(lines + [f"warning: {text}" for text in self.warnings])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        cells = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>"
            for row in self.rows()
        )
        notes = "".join(f"<p>{escape(text)}</p>" for text in self.warnings)
        return (
            f"<table><tr><th></th><th>value</th><th>95 % interval</th></tr>{cells}</table>{notes}"
        )


@dataclass(frozen=True)
class _Measurement:
    """Output of one scorer.

    statistics: (N, k) numbers of the images, as `resample` takes them. values: metric -> (N,), of
    each image. overall: metric -> value over all images. parts: SPICE categories of each image.
    """

    statistics: Floats
    values: dict[str, Floats]
    overall: dict[str, float]
    parts: list[dict[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Captions:
    """N candidates and the references of each, in the order of the images."""

    image_ids: list[str]
    texts: tuple[list[str], list[list[str]]]


def score(
    candidates: Mapping[str, str | list[str]],
    references: Tokens,
    *,
    metrics: Collection[str] | None = None,
    no_spice: str | None = NOT_REQUESTED,
    judged: Mapping[str, "Judgement"] | None = None,
    tokenizer: Tokenizer = "karpathy",
    idf: Idf = "references",
) -> Scores:
    """Compute every metric, of one candidate per image against its references.

    candidates, references: tokens of the same images, from `tokenize` with this tokenizer; METEOR
    and SPICE are left out of Unicode words. metrics: names among METRICS, by default all of
    them, or `module:function`.
    no_spice: why SPICE, which parses every caption, is left out; None to compute it. judged: the
    captions of generated scenes, from `judge_captions`. idf: source of CIDEr's document
    frequencies; coco, those of `coco_frequencies`, is for PTB tokens alone. Raises JavaError if
    SPICE fails: scores without it would pass for complete ones.
    """
    if idf not in IDFS:
        raise InputError(f"unknown idf: {idf!r}; use one of {', '.join(IDFS)}")
    captions = _paired(candidates, references)
    not_run = {"SPICE": no_spice} if no_spice else {}
    if metric_tokens(tokenizer) != "PTB":
        not_run = dict.fromkeys(_SLOW, ENGLISH_ONLY)
        if idf == "coco":
            not_run["CIDEr"] = COCO_TOKENS
    if len(captions.image_ids) == 1 and idf == "references":
        not_run["CIDEr"] = ONE_IMAGE
    chosen = METRICS if metrics is None else tuple(metrics)
    found = _measure(captions, _families(chosen) - not_run.keys(), idf)
    found |= {path: _outside(path, captions) for path in chosen if ":" in path}
    if judged is not None:
        counts = truth_counts(judged[image_id] for image_id in captions.image_ids)
        found["truth"] = _summed("truth", counts)
    return replace(_scores(captions.image_ids, found, not_run, chosen), idf=idf)


def _families(metrics: Collection[str]) -> set[str]:
    """Return the scorers that these metrics need."""
    if unknown := [name for name in metrics if name not in METRICS and ":" not in name]:
        raise InputError(f"unknown metric: {unknown[0]!r}; use some of {', '.join(METRICS)}")
    families = {"BLEU" if name.startswith("Bleu") else name for name in metrics}
    return families | ({"CIDEr", "SPICE"} if "SPIDEr" in families else set())


def corpus_score(
    metric: str, candidates: Mapping[str, str | list[str]], references: Tokens
) -> float:
    """Return one of METRICS alone over all images, without intervals, for validation in training.

    candidates, references: PTB tokens. CIDEr's document frequencies are those of `references`, one
    document per image, as in `COCOEvalCap`.
    """
    found = _measure(_paired(candidates, references), _families([metric]), "references")
    return next(one.overall[metric] for one in found.values() if metric in one.overall)


def _paired(candidates: Mapping[str, str | list[str]], references: Tokens) -> _Captions:
    """Return candidates and references in the same order; raise InputError for a mismatch."""
    if not candidates:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    if candidates.keys() != references.keys():
        one, other = (
            sample_ids(sorted(map(str, ids)), 2) or "none"
            for ids in (
                candidates.keys() - references.keys(),
                references.keys() - candidates.keys(),
            )
        )
        raise InputError(
            f"captions and references are of different images: only captions have {one}, only "
            f"references have {other}; give both for the same images"
        )
    found = {k: [v] if isinstance(v, str) else list(v) for k, v in candidates.items()}
    for image_id, captions in found.items():
        if len(captions) != 1 or not references[image_id]:
            raise InputError(
                f"image {image_id!r} has {len(captions)} captions and "
                f"{len(references[image_id])} references; score one against at least one"
            )
    return _Captions(
        list(found),
        (
            [captions[0] for captions in found.values()],
            [list(references[image_id]) for image_id in found],
        ),
    )


def _measure(captions: _Captions, families: Collection[str], idf: Idf) -> dict[str, _Measurement]:
    """Return family -> its measurement."""
    pairs, (candidates, references) = count_pairs(*captions.texts), captions.texts
    found: dict[str, _Measurement] = {}
    if "BLEU" in families:
        found["BLEU"] = _summed("BLEU", bleu_statistics(pairs))
    if "ROUGE_L" in families:
        found["ROUGE_L"] = _averaged("ROUGE_L", rouge_values(candidates, references))
    if "CIDEr" in families:
        values = cider_values(pairs, frequencies_of(idf, references))
        found["CIDEr"] = _averaged("CIDEr", values)
    total = {"METEOR": len(candidates), "SPICE": len(candidates) + sum(map(len, references))}
    slow = {name: scorer for name, scorer in _SLOW.items() if name in families}
    with track("score", total=sum(total[name] for name in slow)) as progress:
        found |= {name: scorer(captions, progress.advance) for name, scorer in slow.items()}
    if {"CIDEr", "SPICE"} <= found.keys():
        both = [found[name].values[name] for name in ("CIDEr", "SPICE")]
        found["SPIDEr"] = _averaged("SPIDEr", np.mean(both, axis=0))
    return found


def _scores(
    image_ids: list[str],
    found: Mapping[str, _Measurement],
    not_run: Mapping[str, str],
    chosen: Collection[str],
) -> Scores:
    """Return the measurements by metric, in the order of METRICS, and by image."""
    overall = {name: value for one in found.values() for name, value in one.overall.items()}
    values = {name: column for one in found.values() for name, column in one.values.items()}
    statistics = {family: measurement.statistics for family, measurement in found.items()}
    parts = [row for measurement in found.values() for row in measurement.parts]
    # A family of truth without a statement has no value, here and in single images.
    names = [
        name
        for name in (*METRICS, *(one for one in chosen if ":" in one), *TRUTH)
        if np.isfinite(overall.get(name, np.nan)) and (name in chosen or name in TRUTH)
    ]
    # An interval over one image would have no width.
    resampled = resample(statistics) if len(image_ids) > 1 else {}
    return Scores(
        metrics={name: overall[name] for name in names},
        per_image={
            image_id: {
                name: float(values[name][row]) for name in names if np.isfinite(values[name][row])
            }
            for row, image_id in enumerate(image_ids)
        },
        not_run={name: why for name, why in not_run.items() if name in chosen},
        confidence={name: interval(resampled[name]) for name in names if name in resampled},
        statistics={
            family: dict(zip(image_ids, rows.tolist(), strict=True))
            for family, rows in statistics.items()
            if family in SUMMED
        },
        spice=_mean_parts(parts),
        spice_per_image=dict(zip(image_ids, parts, strict=True)) if parts else {},
    )


def _mean_parts(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return each category's mean over the images that have it, as SPICE's own program does."""
    found = {n: [value for row in parts if (value := row[n]) is not None] for n in PARTS}
    return {name: fmean(column) for name, column in found.items() if column}


def _outside(path: str, captions: _Captions) -> _Measurement:
    try:
        return _averaged(path, call_function(path, *captions.texts))
    except KindError as error:
        raise InputError(f"metric {error}") from error


def _meteor(captions: _Captions, advance: Advance) -> _Measurement:
    rows = meteor_statistics(*captions.texts, advance=advance)
    return _summed("METEOR", rows)


def _spice(captions: _Captions, advance: Advance) -> _Measurement:
    found = spice_values(*captions.texts, advance=advance)
    measured = _averaged("SPICE", [spice.overall for spice in found])
    return replace(measured, parts=[spice.parts for spice in found])


def _summed(family: str, statistics: Floats) -> _Measurement:
    names, values = SUMMED[family]
    return _Measurement(
        statistics,
        values=dict(zip(names, values(statistics).T, strict=True)),
        overall=dict(zip(names, values(statistics.sum(axis=0)).tolist(), strict=True)),
    )


def _averaged(name: str, values: Sequence[float] | Floats) -> _Measurement:
    column = np.asarray(values, dtype=np.float64)
    return _Measurement(column[:, None], {name: column}, {name: float(column.mean())})


_SLOW: dict[str, Callable[[_Captions, Advance], _Measurement]] = {
    "METEOR": _meteor,
    "SPICE": _spice,
}
"""Family -> its scorer, which reads English alone."""
