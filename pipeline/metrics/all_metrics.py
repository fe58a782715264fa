"""Metrics of captioning papers: BLEU, METEOR, ROUGE-L, CIDEr and SPICE; truth of known scenes.

Values equal those of pycocoevalcap 1.2 (`COCOEvalCap`) to 1e-6. Unlike there, only SPICE needs
Java, and nothing is printed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from inspect import signature
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.image_ids import sample_ids
from a2cap.data.tokenizers import Tokenizer
from a2cap.model.errors import PlugInError
from a2cap.model.plug_ins import call_function
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.metrics.bleu import bleu_values
from a2cap.pipeline.metrics.bootstrap import SUMMED, interval, resample
from a2cap.pipeline.metrics.cider import IDFS, CorpusFrequencies, Idf, frequencies_of
from a2cap.pipeline.metrics.metric_table import (
    DEFAULTS,
    FAMILIES,
    TABLE,
    ScoreRow,
    families_of,
    family_of,
    function_of,
    in_order,
    metric_name,
    rows_as_html,
    rows_as_text,
    score_rows,
)
from a2cap.pipeline.metrics.ngrams import Floats, Pairs, count_pairs
from a2cap.pipeline.metrics.spice import NOT_REQUESTED, PARTS
from a2cap.pipeline.metrics.tokenization import metric_tokens

if TYPE_CHECKING:
    from a2cap.data.scenes.truth import Judgement


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


@dataclass(frozen=True)
class Scores:
    """Metrics over all images and for each image.

    metrics: metric -> value, in [0, 1] except for CIDEr, which may exceed 1.
    per_image: image id -> metric -> value.
    not_run: metric -> reason why it has no value.
    confidence: metric -> ends of its 95 % bootstrap interval.
    statistics: family ("BLEU", "METEOR", "truth", "CHAIR") -> image id -> numbers whose sums over
        images give its metrics; the other metrics are means of `per_image`.
    spice: SPICE category (Relation, Cardinality, Attribute, Size, Color, Object) -> mean F-score
        over the images whose references have it.
    spice_per_image: image id -> category -> F-score, None if the references do not have it.
    idf: source of CIDEr's document frequencies.
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

    def rows(self) -> list[ScoreRow]:
        """Return name, value and interval of each metric, then the reasons of missing ones."""
        return score_rows(self.metrics, self.confidence, self.not_run)

    def __str__(self) -> str:
        """Return a table of the metrics with their 95 % intervals."""
        lines = rows_as_text(self.rows()) + unpenalised_line(self.metrics, self.unpenalised_bleu)
        return "\n".join(lines + [f"warning: {text}" for text in self.warnings])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        notes = "".join(f"<p>{escape(text)}</p>" for text in self.warnings)
        return rows_as_html(self.rows()) + notes


@dataclass(frozen=True)
class Captions:
    """N candidates with the references of each, and further parameters of scorers.

    idf, judged, objects: as for `score`, in the order of the images.
    advance: called with the number of captions that were processed since its last call.
    statistics: family -> (N, k), of those that are computed.
    """

    image_ids: list[str]
    candidates: list[str]
    references: list[list[str]]
    idf: Idf = "references"
    judged: "list[Judgement] | None" = None
    objects: list[frozenset[str]] | None = None
    advance: Callable[[int], object] = lambda captions: None
    statistics: dict[str, Floats] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> Pairs:
        """n-grams of candidates and references."""
        return count_pairs(self.candidates, self.references)

    @property
    def frequencies(self) -> CorpusFrequencies:
        """Document frequencies of n-grams."""
        return frequencies_of(self.idf, self.references)

    def computed_by(self, scorer: str) -> Any:
        """Call the function of a row of the table with the attributes that its parameters name."""
        function = function_of(scorer)
        return function(**{name: getattr(self, name) for name in signature(function).parameters})


def score(
    candidates: Mapping[str, str | list[str]],
    references: Tokens,
    *,
    metrics: Collection[str] | None = None,
    no_spice: str | None = NOT_REQUESTED,
    judged: Mapping[str, "Judgement"] | None = None,
    objects: Mapping[str, frozenset[str]] | None = None,
    tokenizer: Tokenizer = "karpathy",
    idf: Idf = "references",
) -> Scores:
    """Compute every metric, of one candidate per image against its references.

    candidates, references: tokens of the same images, from `tokenize` with this tokenizer; METEOR
        and SPICE are left out of Unicode words.
    metrics: names in the table, as people write them, by default DEFAULTS, or `module:function`.
    no_spice: why SPICE, which parses every caption, is left out; None to compute it.
    judged: the captions of generated scenes, from `judge_captions`.
    objects: COCO's categories in each image, from `objects_of_images`, for CHAIR.
    idf: source of CIDEr's document frequencies; coco, those of `coco_frequencies`, is for PTB
        tokens alone.
    Raises JavaError if SPICE fails: scores without it would pass for complete ones.
    """
    if idf not in IDFS:
        raise InputError(f"unknown idf: {idf!r}; use one of {', '.join(IDFS)}")
    captions = replace(
        _paired(candidates, references),
        idf=idf,
        judged=None if judged is None else [judged[image_id] for image_id in candidates],
        objects=None if objects is None else [objects[image_id] for image_id in candidates],
    )
    of_scenes = {"scenes", "objects"} if judged is not None else set()
    available = of_scenes | ({"objects"} if objects is not None else set())
    asked = DEFAULTS if metrics is None else tuple(map(metric_name, metrics))
    asked += tuple(n for family in TABLE if available & {*family.needs} for n in family.names)
    not_run = {"SPICE": no_spice} if no_spice else {}
    if metric_tokens(tokenizer) != "PTB":
        # objects of scenes are named in English, whatever the tokens
        english = [f for f in TABLE if "English" in f.needs and not of_scenes & {*f.needs}]
        not_run = {name: ENGLISH_ONLY for family in english for name in family.names}
        if idf == "coco":
            not_run["CIDEr"] = COCO_TOKENS
    if len(captions.image_ids) == 1 and idf == "references":
        not_run["CIDEr"] = ONE_IMAGE
    statistics = _measure(captions, families_of(asked) - {family_of(n).name for n in not_run})
    statistics |= {path: _outside(path, captions) for path in asked if ":" in path}
    return _scores(captions, statistics, not_run, asked)


def corpus_score(
    metric: str, candidates: Mapping[str, str | list[str]], references: Tokens
) -> float:
    """Return one of DEFAULTS alone over all images, without intervals, for validation in training.

    candidates, references: PTB tokens. CIDEr's document frequencies are those of `references`, one
    document per image, as in `COCOEvalCap`.
    """
    return _values(_measure(_paired(candidates, references), families_of([metric])))[0][metric]


def _paired(candidates: Mapping[str, str | list[str]], references: Tokens) -> Captions:
    """Return candidates and references in the same order; raise InputError for a mismatch."""
    if not candidates:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    if candidates.keys() != references.keys():
        extra, missing = (
            sample_ids(sorted(map(str, ids)), 2) or "none"
            for ids in (
                candidates.keys() - references.keys(),
                references.keys() - candidates.keys(),
            )
        )
        raise InputError(
            f"captions and references are of different images: only captions have {extra}, only "
            f"references have {missing}; give both for the same images"
        )
    groups = {k: [v] if isinstance(v, str) else list(v) for k, v in candidates.items()}
    for image_id, captions in groups.items():
        if len(captions) != 1 or not references[image_id]:
            raise InputError(
                f"image {image_id!r} has {len(captions)} captions and "
                f"{len(references[image_id])} references; score one against at least one"
            )
    return Captions(
        list(groups),
        [captions[0] for captions in groups.values()],
        [list(references[image_id]) for image_id in groups],
    )


def _measure(captions: Captions, families: Collection[str]) -> dict[str, Floats]:
    """Return family -> (N, k) statistics of the images."""
    count = len(captions.candidates)
    total = {"METEOR": count, "SPICE": count + sum(map(len, captions.references))}
    rows = [f for name, f in FAMILIES.items() if name in families and not f.is_of_set]
    with track("score", total=sum(total.get(family.name, 0) for family in rows)) as progress:
        captions = replace(captions, advance=progress.advance)
        for family in rows:
            if captions.statistics.keys() >= {f.name for f in TABLE if f.name in family.needs}:
                values = np.asarray(captions.computed_by(family.scorer), dtype=np.float64)
                captions.statistics[family.name] = values.reshape(count, -1)  # (N,) -> (N, 1)
    return captions.statistics


def _values(statistics: Mapping[str, Floats]) -> tuple[dict[str, float], dict[str, Floats]]:
    """Return metric -> value over all images, and metric -> (N,) values of the images."""
    overall: dict[str, float] = {}
    columns: dict[str, Floats] = {}
    for family, rows in statistics.items():
        if family in SUMMED:
            names, values = SUMMED[family]
            overall |= zip(names, values(rows.sum(axis=0)).tolist(), strict=True)
            columns |= zip(names, values(rows).T, strict=True)
        else:
            columns[family] = np.ascontiguousarray(rows[:, 0])
            overall[family] = float(columns[family].mean())
    return overall, columns


def _scores(
    captions: Captions,
    statistics: Mapping[str, Floats],
    not_run: Mapping[str, str],
    asked: Collection[str],
) -> Scores:
    """Return the scores by metric, in the order of the table, and by image."""
    overall, values = _values(statistics)
    for family in dict.fromkeys(map(family_of, asked)):
        if family.is_of_set:
            numbers = captions.computed_by(family.scorer)
            overall |= {name: numbers[name] for name in family.names}
    # A family of truth without a statement has no value, here and in single images.
    names = [name for name in in_order(overall) if name in asked and np.isfinite(overall[name])]
    parts = _parts(statistics["SPICE"]) if "SPICE" in statistics else []
    image_ids = captions.image_ids
    # An interval over one image would have no width.
    means = {n: rows if n in SUMMED else values[n][:, None] for n, rows in statistics.items()}
    resampled = resample(means) if len(image_ids) > 1 and means else {}
    return Scores(
        metrics={name: overall[name] for name in names},
        per_image={
            image_id: {
                name: float(values[name][row])
                for name in names
                if name in values and np.isfinite(values[name][row])
            }
            for row, image_id in enumerate(image_ids)
        },
        not_run={name: why for name, why in not_run.items() if name in asked},
        confidence={name: interval(resampled[name]) for name in names if name in resampled},
        statistics={
            family: dict(zip(image_ids, rows.tolist(), strict=True))
            for family, rows in statistics.items()
            if family in SUMMED
        },
        spice=_mean_parts(parts),
        spice_per_image=dict(zip(image_ids, parts, strict=True)) if parts else {},
        idf=captions.idf,
    )


def _parts(rows: Floats) -> list[dict[str, float | None]]:
    """Return SPICE's categories of each image, None for one that its references do not have."""
    return [
        {part: None if np.isnan(v) else float(v) for part, v in zip(PARTS, row[1:], strict=True)}
        for row in rows
    ]


def _mean_parts(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return each category's mean over the images that have it, as SPICE's own program does."""
    columns = {n: [value for row in parts if (value := row[n]) is not None] for n in PARTS}
    return {name: fmean(column) for name, column in columns.items() if column}


def _outside(path: str, captions: Captions) -> Floats:
    try:
        values = call_function(path, captions.candidates, captions.references)
    except PlugInError as error:
        raise InputError(f"metric {error}") from error
    return np.array(values)[:, None]
