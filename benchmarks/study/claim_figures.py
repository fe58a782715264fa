"""Pictures of docs/claims.md: Fig. 2, 4, 5 and 6 of the A2 paper, and the GRU captioner's scores.

The paper prints no values of its figures; what its text states of them is in the titles, and drawn
where it is a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from a2cap.model.alignment_config import FUSIONS
from a2cap.pipeline.analysis.figures import Curve, write_curves
from a2cap.pipeline.analysis.t_interval import Interval
from benchmarks.study import gru
from benchmarks.study.grid import (
    DEEP_PHOTOGRAPHED,
    DEEP_WEIGHED,
    DEEP_WEIGHT,
    DEEP_WEIGHTS,
    DEEPENED,
    SMALL_WEIGHT,
    WEIGHTS,
)
from benchmarks.study.page import table_cell
from benchmarks.study.results import Results
from benchmarks.study.running import CROSS_ENTROPY

PENALTIES = "Gate by the penalty λ, after XE"
"""Heading of the table of Fig. 4 in docs/alignment-study-tables.md."""
LAYERS, MASK = range(1, 7), "mean mask"


def draw_claims(results: Results, tables: str, folder: Path) -> list[Path]:
    """Draw the figures of these results into a folder.

    tables: text of docs/alignment-study-tables.md, which has the sweep of lambda.
    """
    limit = Curve("claimed: all below 0.2", [(layer, 0.2) for layer in LAYERS])
    alpha, evidence = "tau attention", "tau evidence"
    agreement: dict[str, dict[str, Sequence[Curve]]] = {}
    moved: dict[str, Sequence[Curve]] = {}
    fusions = {name: name for name in (*FUSIONS, f"gate, λ {SMALL_WEIGHT}") if name != "none"}
    for part, data in {DEEPENED: "scenes", DEEP_PHOTOGRAPHED: "Flickr8k"}.items():
        curves = partial(_curves, results, part)
        agreement[data] = {
            f"Fig. 2, {data}, without alignment": [*curves({"none": "α"}, alpha), limit],
            f"Fig. 5, {data}, gate; claimed: 1−m above α": [
                *curves({"gate": "α"}, alpha),
                limit,
                *curves({"gate": "1−m"}, evidence),
            ],
        }
        moved[f"Fig. 6, {data}; claimed: more in upper layers"] = curves(fusions, "millinats")
    x = "decoder layer"
    up = "Kendall's τ with gradient importance"
    return [
        *(
            write_curves(folder / f"claims-tau-{data.lower()}.png", panels, x_label=x, y_label=up)
            for data, panels in agreement.items()
        ),
        write_curves(
            folder / "claims-divergence.png", moved, x_label=x, y_label="JSD(α, α^a), millinats"
        ),
        write_curves(
            folder / "claims-penalty.png",
            {
                "Fig. 4, two layers; claimed: CIDEr peaks at λ = 0.035": [
                    _swept(tables, "CIDEr"),
                    replace(_swept(tables, "mean m"), name=MASK, is_share=True),
                ],
                "six layers": _deep_penalty(results),
            },
            x_label="λ",
            y_label="CIDEr",
            share_label=MASK,
            logarithmic=True,
        ),
        write_curves(
            folder / "claims-gru.png",
            {"GRU on scenes": _scores(results)},
            x_label="attention",
            y_label="share",
            x_names=gru.SCORES,
        ),
    ]


def _scores(results: Results) -> list[Curve]:
    """Return the curves of the GRU captioner over its scores."""
    names = {"truth": "true captions", "grounding": "attention on the object named"}
    curves = []
    for value, name in {**names, "chance": "even attention on it"}.items():
        means = {
            x: mean
            for x, score in enumerate(gru.SCORES, start=1)
            if (mean := results.mean(gru.PART, score, CROSS_ENTROPY, value))
        }
        if means:
            curves.append(Curve.of_means(name, means))
    return curves


def _curves(results: Results, part: str, names: Mapping[str, str], value: str) -> list[Curve]:
    """Return the curve over layers of each label, under its name."""
    curves = []
    for label, name in names.items():
        means: dict[int, Interval] = {}
        for layer in LAYERS:
            if mean := results.mean(part, label, CROSS_ENTROPY, f"layers/{layer}/{value}"):
                means[layer] = mean
        if means:
            curves.append(Curve.of_means(name, means))
    return curves


def _deep_penalty(results: Results) -> list[Curve]:
    """Return CIDEr and mean mask over lambda at the paper's depth."""
    trained = {weight: (DEEP_WEIGHED, str(weight)) for weight in DEEP_WEIGHTS}
    trained[DEEP_WEIGHT] = (DEEPENED, "gate")
    curves = []
    for value in ("CIDEr", MASK):
        means = {
            weight: mean
            for weight, names in trained.items()
            if (mean := results.mean(*names, CROSS_ENTROPY, value))
        }
        if means.keys() & set(DEEP_WEIGHTS):
            curves.append(Curve.of_means(value, means, is_share=value == MASK))
    return curves


def _swept(tables: str, column: str) -> Curve:
    """Return the curve of a column of the table of lambda."""
    cells = [table_cell(tables, PENALTIES, str(weight), column).split(" ± ") for weight in WEIGHTS]
    points = [(weight, float(mean)) for weight, (mean, _) in zip(WEIGHTS, cells, strict=True)]
    return Curve(column, points, [float(width) for _, width in cells])
