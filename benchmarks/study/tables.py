"""Markdown tables and figures of the study."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from a2cap.pipeline.analysis.figures import Curve, write_curves
from a2cap.pipeline.analysis.t_interval import Interval
from benchmarks.study.grid import (
    ABLATED,
    CONTROLLED,
    DEEP_WEIGHED,
    DEEPENED,
    DEVIATED,
    FUSED,
    LAYERED,
    RATED,
    RIVALLED,
    STARTS,
    TRAINED,
    WEIGHED,
)
from benchmarks.study.measuring import ALIGNED, ATTENTION, CONTROL, EVIDENCE
from benchmarks.study.results import Results, paired_difference
from benchmarks.study.running import CROSS_ENTROPY, SELF_CRITICAL

BASELINE = "none"

SYMBOLS = {ATTENTION: "α", ALIGNED: "α^a", EVIDENCE: "1−m"}
ORDERS = {**SYMBOLS, "gradient": "gradient × input", "random": "random"}
GROUPS = ("all", "kinds", "colours", "sizes", "textures", "counts", "relations")
PHASES = (CROSS_ENTROPY, SELF_CRITICAL)

_EMPTY = "–"
_ACCURACY = {kind: f"grounding/all/{kind}" for kind in SYMBOLS}
_REMOVED = {kind: f"erasure/{kind}/comprehensiveness" for kind in SYMBOLS}

Columns = Mapping[str, str]
"""Heading of a column -> name of its value in the results; "{}" is filled in for each row."""

Row = tuple[str, tuple[str, str, str], str]
"""Heading of a row; part, label and phase of its captioners; what "{}" stands for."""

GENERAL: Columns = {
    "CIDEr": "CIDEr",
    "truth": "truth/truth",
    "CHAIR-s": "truth/CHAIR-s",
    **{f"grounding {SYMBOLS[kind]}": name for kind, name in _ACCURACY.items()},
    **{f"points {SYMBOLS[kind]}": f"{name} points" for kind, name in _ACCURACY.items()},
    "grounding, random masks": f"grounding/all/{CONTROL}",
    "mean m": "mean mask",
    "removed α, nats": _REMOVED[ATTENTION],
    "removed α^a, nats": _REMOVED[ALIGNED],
    "10⁶ parameters": "million parameters",
    "training, s": "seconds",
}
LAYERS: Columns = {
    "τ α": "layers/{}/tau attention",
    "τ α^a": "layers/{}/tau aligned",
    "τ 1−m": "layers/{}/tau evidence",
    "JSD(α, α^a), millinats": "layers/{}/millinats",
    **{f"grounding {SYMBOLS[kind]}": f"{name} layer {{}}" for kind, name in _ACCURACY.items()},
    "mean g": "layers/{}/mean gate",
}
ERASURE: Columns = {
    "comprehensiveness, nats": "erasure/{}/comprehensiveness",
    "sufficiency, nats": "erasure/{}/sufficiency",
    "τ with Shapley values": "erasure/{}/shapley",
}
COMPANIONS: Columns = {
    **{f"{symbol} on companion": f"companions/{kind}" for kind, symbol in SYMBOLS.items()},
    "chance": "companions/chance",
    "predicted, companion present": "errors/with companion",
    "predicted, companion absent": "errors/without companion",
}
GAINS: Mapping[str, tuple[str, str | None]] = {
    **{name: (GENERAL[name],) * 2 for name in ("CIDEr", "truth", "CHAIR-s", "grounding α")},
    "grounding α^a": (_ACCURACY[ALIGNED], _ACCURACY[ATTENTION]),
    "removed α, nats": (_REMOVED[ATTENTION],) * 2,
    "removed α^a, nats": (_REMOVED[ALIGNED], _REMOVED[ATTENTION]),
    "points α": (GENERAL["points α"],) * 2,
    "points α^a": (GENERAL["points α^a"], GENERAL["points α"]),
    "grounding α^a − own α": (_ACCURACY[ALIGNED], None),
}
"""Heading -> value of a row, and that of the baseline, None for the row's own attention.

The baseline has no aligned attention, so aligned attention is compared with its plain attention.
"""

_TITLES = {
    STARTS: "Captioners without alignment, which the others start from, by world",
    FUSED: "Fusions",
    WEIGHED: "Gate by the penalty λ",
    ABLATED: "Gate with one open choice reversed",
    RIVALLED: "Alignment and its rivals",
    LAYERED: "Gate in some decoder layers",
    DEEPENED: "Six encoder and six decoder layers",
    TRAINED: "Six layers without alignment, by training",
    RATED: "Six layers by learning rate",
    DEEP_WEIGHED: "Six layers with the gate, by the penalty λ",
    CONTROLLED: "Masks and random masks",
    DEVIATED: "Planted companions",
}


def all_tables(results: Results) -> str:
    """Return every table with results, each under its heading."""
    parts = (
        _general(results, STARTS, CROSS_ENTROPY),
        _self_critical_gains(results),
        *(
            table(results, FUSED, phase)
            for table in (_general, _gains, _groups, _layers)
            for phase in PHASES
        ),
        _general(results, WEIGHED, CROSS_ENTROPY),
        _general(results, ABLATED, CROSS_ENTROPY),
        *(
            table(results, LAYERED, CROSS_ENTROPY)
            for table in (_general, _gains, _erasure, _layers)
        ),
        *(table(results, RIVALLED, CROSS_ENTROPY) for table in (_general, _gains, _erasure)),
        *(table(results, DEVIATED, CROSS_ENTROPY) for table in (_general, _gains)),
        _companions(results, CROSS_ENTROPY),
        *(
            table(results, DEEPENED, CROSS_ENTROPY)
            for table in (_general, _gains, _erasure, _layers)
        ),
        *(
            table(results, part, CROSS_ENTROPY)
            for part in (TRAINED, RATED)
            for table in (_general, _erasure, _layers)
        ),
        _general(results, DEEP_WEIGHED, CROSS_ENTROPY),
        _general(results, CONTROLLED, CROSS_ENTROPY),
    )
    if failures := results.failures():
        parts = ("\n".join(["### Failed", "", *(f"- {line}" for line in failures)]), *parts)
    return "\n\n".join(part for part in parts if part) + "\n"


def _means(results: Results, title: str, columns: Columns, rows: Iterable[Row]) -> str:
    """Format a table of means over seeds."""
    filled = [
        [text, *(_cell(results.mean(*where, name.format(key))) for name in columns.values())]
        for text, where, key in rows
    ]
    return _table(title, ["", *columns], filled)


def _general(results: Results, part: str, phase: str) -> str:
    labels = results.labels(part, phase)
    columns = {
        head: name
        for head, name in GENERAL.items()
        if any(results.mean(part, label, phase, name) for label in labels)
    }
    rows = [
        [label, str(len(results.by_seed(part, label, phase, "CIDEr")))]
        + [_cell(results.mean(part, label, phase, name)) for name in columns.values()]
        for label in labels
    ]
    return _table(_title(part, phase), ["", "seeds", *columns], rows)


def _gains(results: Results, part: str, phase: str) -> str:
    """Return differences from the captioner without masks, paired by seed."""

    def gain(label: str, name: str, other: str | None) -> Interval | None:
        values = results.by_seed(part, label, phase, name)
        compared = (
            (label, phase, _ACCURACY[ATTENTION]) if other is None else (BASELINE, phase, other)
        )
        return paired_difference(values, results.by_seed(part, *compared))

    labels = [label for label in results.labels(part, phase) if label != BASELINE]
    columns = {
        head: names for head, names in GAINS.items() if any(gain(label, *names) for label in labels)
    }
    rows = [
        [label, *(_cell(gain(label, *names), sign=True) for names in columns.values())]
        for label in labels
    ]
    title = f"{_title(part, phase)}: difference from α of “{BASELINE}” with the same seed"
    return _table(title, ["", *columns], rows)


def _groups(results: Results, part: str, phase: str) -> str:
    labels = results.labels(part, phase)

    def means(label: str, kind: str, groups: Iterable[str]) -> list[Interval | None]:
        return [results.mean(part, label, phase, f"grounding/{group}/{kind}") for group in groups]

    groups = [group for group in GROUPS if any(any(means(x, "words", [group])) for x in labels)]
    rows = [
        [f"{label}, {symbol}", *map(_cell, intervals)]
        for label in labels
        for kind, symbol in SYMBOLS.items()
        if any(intervals := means(label, kind, groups))
    ]
    if rows:
        for kind, form in (("chance", "{:.3f}"), ("words", "{:,.0f}")):
            intervals = means(labels[0], kind, groups)
            rows.append(
                [kind, *(_EMPTY if mean is None else form.format(mean.mean) for mean in intervals)]
            )
    return _table(f"{_title(part, phase)}: grounding by group of words", ["", *groups], rows)


def _layers(results: Results, part: str, phase: str) -> str:
    rows = [
        (f"{label}, layer {number}", (part, label, phase), str(number))
        for label in results.labels(part, phase)
        for number in _layer_numbers(results)
    ]
    return _means(results, f"{_title(part, phase)}: by decoder layer", LAYERS, rows)


def _erasure(results: Results, part: str, phase: str) -> str:
    rows = [
        (f"{label}, {name}", (part, label, phase), order)
        for label in results.labels(part, phase)
        for order, name in ORDERS.items()
        if results.by_seed(part, label, phase, f"erasure/{order}/words")
    ]
    return _means(results, f"{_title(part, phase)}: removing regions in an order", ERASURE, rows)


def _layer_numbers(results: Results) -> list[int]:
    names = [name.split("/") for name in results.names()]
    return sorted({int(name[1]) for name in names if name[0] == "layers"})


def _companions(results: Results, phase: str) -> str:
    """Return measures of captioners trained with and without planted companions."""
    trained = {DEVIATED: "companions", FUSED: "random clutter"}
    rows = [
        (f"{label}, trained with {name}", (part, label, phase), "")
        for label in results.labels(DEVIATED, phase)
        for part, name in trained.items()
        if results.by_seed(part, label, phase, COMPANIONS["α on companion"])
    ]
    title = f"{_title(DEVIATED, phase)}: attention at words of paired categories, and false words"
    return _means(results, title, COMPANIONS, rows)


def _self_critical_gains(results: Results) -> str:
    """Return validation CIDEr and rewards before and after self-critical training."""
    name, rows = "validation CIDEr", []
    for label in results.labels(FUSED, SELF_CRITICAL):
        before, after = (results.by_seed(FUSED, label, phase, name) for phase in PHASES)
        gains = [after[seed] - before[seed] for seed in after.keys() & before.keys()]
        rows.append(
            [
                label,
                *(_cell(results.mean(FUSED, label, phase, name)) for phase in PHASES),
                _cell(paired_difference(after, before), sign=True),
                f"{sum(gain > 0 for gain in gains)} of {len(gains)}",
                *(
                    _cell(results.mean(FUSED, label, SELF_CRITICAL, f"{epoch} epoch/reward"))
                    for epoch in ("first", "last")
                ),
            ]
        )
    heads = ["after XE", "after SCST", "gain", "seeds that gain"]
    rewards = ["reward of samples, first epoch", "last epoch"]
    return _table("Validation CIDEr before and after SCST", ["", *heads, *rewards], rows)


def _title(part: str, phase: str) -> str:
    return f"{_TITLES[part]}, after {phase}"


def _cell(mean: Interval | None, *, sign: bool = False) -> str:
    """Format a mean with its interval; a difference that excludes 0 is bold."""
    if mean is None:
        return _EMPTY
    if not sign:
        return str(mean)
    text = f"+{mean}" if mean.mean >= 0 else f"−{str(mean).lstrip('-')}"
    return f"**{text}**" if mean.excludes_zero else text


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; an empty string without rows."""
    if not rows:
        return ""
    rule = f"|{'|'.join(['---', *['---:'] * (len(heads) - 1)])}|"
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return "\n".join([f"### {title}", "", head, rule, *lines])


def draw_figures(results: Results, folder: Path) -> list[Path]:
    """Draw faithfulness by layer and the sweep of lambda, as far as results exist."""
    drawn = []
    for phase in PHASES:
        panels = {
            f"{symbol}, after {phase}": _layer_curves(results, phase, kind)
            for kind, symbol in SYMBOLS.items()
        }
        if any(panels.values()):
            path = folder / f"alignment-study-faithfulness-{phase.lower()}.png"
            up = "Kendall's τ with gradient importance"
            drawn.append(write_curves(path, panels, x_label="decoder layer", y_label=up))
    if sweep := _sweep(results):
        path = folder / "alignment-study-penalty.png"
        panels = {"gate after XE": sweep}
        up = "grounding accuracy, mean mask"
        drawn.append(write_curves(path, panels, x_label="λ", y_label=up, logarithmic=True))
    return drawn


def _layer_curves(results: Results, phase: str, kind: str) -> list[Curve]:
    numbers = _layer_numbers(results)
    return _curves(
        results.labels(FUSED, phase),
        numbers,
        lambda label, number: results.mean(FUSED, label, phase, f"layers/{number}/tau {kind}"),
    )


def _sweep(results: Results) -> list[Curve]:
    names = {
        **{symbol: f"grounding/all/{kind}" for kind, symbol in SYMBOLS.items()},
        "chance": "grounding/all/chance",
        "mean m": "mean mask",
    }
    weights = [float(label) for label in results.labels(WEIGHED, CROSS_ENTROPY)]
    return _curves(
        names,
        weights,
        lambda name, weight: results.mean(WEIGHED, str(weight), CROSS_ENTROPY, names[name]),
    )


def _curves(
    labels: Iterable[str],
    positions: Sequence[float],
    value: Callable[[str, float], Interval | None],
) -> list[Curve]:
    curves = []
    for label in labels:
        means = [(position, value(label, position)) for position in positions]
        points = [(float(position), mean.mean) for position, mean in means if mean is not None]
        if points:
            curves.append(Curve(label, points))
    return curves
