"""Markdown tables and figures of the study."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from a2cap.pipeline.analysis.figures import Curve, write_curves
from a2cap.pipeline.sweep import Interval
from benchmarks.study.grid import (
    ABLATED,
    DEVIATED,
    FUSED,
    LAYERED,
    RIVALLED,
    STARTS,
    WEIGHED,
    WRITTEN,
)
from benchmarks.study.measuring import ALIGNED, ATTENTION, EVIDENCE
from benchmarks.study.results import Results, paired_difference
from benchmarks.study.running import CROSS_ENTROPY, SELF_CRITICAL

BASELINE = "none"

SYMBOLS = {ATTENTION: "α", ALIGNED: "α^a", EVIDENCE: "1−m"}
GROUPS = (
    *("all", "kinds", "colours", "sizes", "textures"),
    *("nouns", "adjectives"),  # of COCO's text
    *("counts", "relations"),
)
PHASES = (CROSS_ENTROPY, SELF_CRITICAL)

_EMPTY = "–"

Column = tuple[str, str]
"""Heading of a column, and the name of its value in the results."""

GENERAL: tuple[Column, ...] = (
    ("CIDEr", "CIDEr"),
    ("truth", "truth/truth"),
    ("CHAIR-s", "truth/CHAIR-s"),
    ("absent nouns", "nouns/absent"),
    ("of distractors", "nouns/distractors"),
    ("grounding α", "grounding/all/attention"),
    ("grounding α^a", "grounding/all/aligned"),
    ("grounding 1−m", "grounding/all/evidence"),
    ("points α", "grounding/all/attention points"),
    ("points α^a", "grounding/all/aligned points"),
    ("points 1−m", "grounding/all/evidence points"),
    ("mean m", "mean mask"),
    ("removed α, nats", "erasure/attention/comprehensiveness"),
    ("removed α^a, nats", "erasure/aligned/comprehensiveness"),
    ("10⁶ parameters", "million parameters"),
    ("training, s", "seconds"),
)

COMPANIONS: tuple[Column, ...] = (
    ("α on companion", "companions/attention"),
    ("α^a on companion", "companions/aligned"),
    ("1−m on companion", "companions/evidence"),
    ("chance", "companions/chance"),
    ("predicted, companion present", "errors/with companion"),
    ("predicted, companion absent", "errors/without companion"),
)


def all_tables(results: Results) -> str:
    """Return every table with results, each under its heading."""
    parts = (
        _general(results, STARTS, CROSS_ENTROPY),
        _self_critical_gains(results),
        *(_general(results, FUSED, phase) for phase in PHASES),
        *(_gains(results, FUSED, phase) for phase in PHASES),
        *(_groups(results, FUSED, phase) for phase in PHASES),
        *(_layers(results, FUSED, phase) for phase in PHASES),
        _general(results, WEIGHED, CROSS_ENTROPY),
        _general(results, ABLATED, CROSS_ENTROPY),
        *(
            table(results, LAYERED, CROSS_ENTROPY)
            for table in (_general, _gains, _erasure, _layers)
        ),
        *(table(results, RIVALLED, CROSS_ENTROPY) for table in (_general, _gains, _erasure)),
        *(table(results, DEVIATED, CROSS_ENTROPY) for table in (_general, _gains)),
        _companions(results, CROSS_ENTROPY),
        *(table(results, WRITTEN, CROSS_ENTROPY) for table in (_general, _gains, _groups, _layers)),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


_TITLES = {
    STARTS: "Captioners without alignment, which the others start from, by world",
    FUSED: "Fusions",
    WEIGHED: "Gate by the penalty λ",
    ABLATED: "Gate with one open choice reversed",
    RIVALLED: "Alignment and its rivals",
    LAYERED: "Gate in some decoder layers",
    DEVIATED: "Planted companions",
    WRITTEN: "Fusions on COCO's text",
}


def _general(results: Results, part: str, phase: str) -> str:
    labels = results.labels(part, phase)
    columns = [c for c in GENERAL if any(results.mean(part, x, phase, c[1]) for x in labels)]
    rows = [
        [label, _seeds(results, part, label, phase)]
        + [_cell(results.mean(part, label, phase, name)) for _, name in columns]
        for label in labels
    ]
    return _table(_title(part, phase), ["", "seeds", *(head for head, _ in columns)], rows)


def _gains(results: Results, part: str, phase: str) -> str:
    """Return differences from the captioner without masks, paired by seed.

    It has no aligned attention, so aligned attention is compared with its plain attention.
    """
    columns = {
        "CIDEr": ("CIDEr", "CIDEr"),
        "truth": ("truth/truth", "truth/truth"),
        "CHAIR-s": ("truth/CHAIR-s", "truth/CHAIR-s"),
        "absent nouns": ("nouns/absent", "nouns/absent"),
        "of distractors": ("nouns/distractors", "nouns/distractors"),
        "grounding α": (_ACCURACY[ATTENTION], _ACCURACY[ATTENTION]),
        "grounding α^a": (_ACCURACY[ALIGNED], _ACCURACY[ATTENTION]),
        "removed α, nats": (_REMOVED.format(ATTENTION),) * 2,
        "removed α^a, nats": (_REMOVED.format(ALIGNED), _REMOVED.format(ATTENTION)),
        "points α": (f"{_ACCURACY[ATTENTION]} points",) * 2,
        "points α^a": (f"{_ACCURACY[ALIGNED]} points", f"{_ACCURACY[ATTENTION]} points"),
        "grounding α^a − own α": (_ACCURACY[ALIGNED], None),
    }
    labels = [label for label in results.labels(part, phase) if label != BASELINE]
    columns = {
        head: names
        for head, names in columns.items()
        if any(_gain(results, part, label, phase, *names) for label in labels)
    }
    rows = [
        [
            label,
            *(_cell(_gain(results, part, label, phase, *n), sign=True) for n in columns.values()),
        ]
        for label in labels
    ]
    title = f"{_title(part, phase)}: difference from α of “{BASELINE}” with the same seed"
    return _table(title, ["", *columns], rows)


_REMOVED = "erasure/{}/comprehensiveness"
_ACCURACY = {kind: f"grounding/all/{kind}" for kind in SYMBOLS}


def _gain(
    results: Results, part: str, label: str, phase: str, name: str, other: str | None
) -> Interval | None:
    """Return `name` minus the baseline's `other`, by default minus the label's own attention."""
    values = results.by_seed(part, label, phase, name)
    compared = (
        results.by_seed(part, label, phase, _ACCURACY[ATTENTION])
        if other is None
        else results.by_seed(part, BASELINE, phase, other)
    )
    return paired_difference(values, compared)


def _groups(results: Results, part: str, phase: str) -> str:
    labels = results.labels(part, phase)

    def means(label: str, kind: str, groups: Iterable[str]) -> list[Interval | None]:
        return [results.mean(part, label, phase, f"grounding/{one}/{kind}") for one in groups]

    groups = [one for one in GROUPS if any(any(means(x, "words", [one])) for x in labels)]
    rows = [
        [f"{label}, {symbol}", *map(_cell, found)]
        for label in labels
        for kind, symbol in SYMBOLS.items()
        if any(found := means(label, kind, groups))
    ]
    if rows:
        rows.append(["chance", *map(_plain, means(labels[0], "chance", groups))])
        counts = means(labels[0], "words", groups)
        rows.append(["words", *(_EMPTY if c is None else f"{c.mean:,.0f}" for c in counts)])
    return _table(f"{_title(part, phase)}: grounding by group of words", ["", *groups], rows)


def _layers(results: Results, part: str, phase: str) -> str:
    columns = {
        "τ α": "layers/{}/tau attention",
        "τ α^a": "layers/{}/tau aligned",
        "τ 1−m": "layers/{}/tau evidence",
        "JSD(α, α^a), millinats": "layers/{}/millinats",
        "grounding α": "grounding/all/attention layer {}",
        "grounding α^a": "grounding/all/aligned layer {}",
        "grounding 1−m": "grounding/all/evidence layer {}",
        "mean g": "layers/{}/mean gate",
    }
    rows = [
        [f"{label}, layer {number}"]
        + [_cell(results.mean(part, label, phase, n.format(number))) for n in columns.values()]
        for label in results.labels(part, phase)
        for number in _layer_numbers(results)
    ]
    return _table(f"{_title(part, phase)}: by decoder layer", ["", *columns], rows)


def _erasure(results: Results, part: str, phase: str) -> str:
    columns = {
        "comprehensiveness, nats": "comprehensiveness",
        "sufficiency, nats": "sufficiency",
        "τ with Shapley values": "shapley",
    }
    rows = [
        [f"{label}, {name}"]
        + [
            _cell(results.mean(part, label, phase, f"erasure/{order}/{n}"))
            for n in columns.values()
        ]
        for label in results.labels(part, phase)
        for order, name in {**SYMBOLS, "gradient": "gradient × input", "random": "random"}.items()
        if results.by_seed(part, label, phase, f"erasure/{order}/words")
    ]
    title = f"{_title(part, phase)}: removing regions in an order"
    return _table(title, ["", *columns], rows)


def _layer_numbers(results: Results) -> list[int]:
    names = [name.split("/") for name in results.names()]
    return sorted({int(name[1]) for name in names if name[0] == "layers"})


def _companions(results: Results, phase: str) -> str:
    """Return measures of captioners trained with and without planted companions."""
    rows = [
        [f"{label}, trained with {'companions' if part == DEVIATED else 'random clutter'}"]
        + [_cell(results.mean(part, label, phase, name)) for _, name in COMPANIONS]
        for label in results.labels(DEVIATED, phase)
        for part in (DEVIATED, FUSED)
        if results.by_seed(part, label, phase, COMPANIONS[0][1])
    ]
    title = f"{_title(DEVIATED, phase)}: attention at words of paired categories, and false words"
    return _table(title, ["", *(head for head, _ in COMPANIONS)], rows)


def _self_critical_gains(results: Results) -> str:
    """Return validation CIDEr and rewards before and after self-critical training."""
    rows = []
    for label in results.labels(FUSED, SELF_CRITICAL):
        before, after = (
            results.by_seed(FUSED, label, phase, "validation CIDEr") for phase in PHASES
        )
        gains = [after[seed] - before[seed] for seed in after.keys() & before.keys()]
        rows.append(
            [
                label,
                _cell(results.mean(FUSED, label, CROSS_ENTROPY, "validation CIDEr")),
                _cell(results.mean(FUSED, label, SELF_CRITICAL, "validation CIDEr")),
                _cell(paired_difference(after, before), sign=True),
                f"{sum(gain > 0 for gain in gains)} of {len(gains)}",
                _cell(results.mean(FUSED, label, SELF_CRITICAL, "first epoch/reward")),
                _cell(results.mean(FUSED, label, SELF_CRITICAL, "last epoch/reward")),
            ]
        )
    heads = ["after XE", "after SCST", "gain", "seeds that gain"]
    rewards = ["reward of samples, first epoch", "last epoch"]
    return _table("Validation CIDEr before and after SCST", ["", *heads, *rewards], rows)


def _title(part: str, phase: str) -> str:
    return f"{_TITLES[part]}, after {phase}"


def _seeds(results: Results, part: str, label: str, phase: str) -> str:
    return str(len(results.by_seed(part, label, phase, "CIDEr")))


def _cell(found: Interval | None, *, sign: bool = False) -> str:
    """Format a mean with its interval; a difference that excludes 0 is bold."""
    if found is None:
        return _EMPTY
    if not sign:
        return str(found)
    text = f"+{found}" if found.mean >= 0 else f"−{str(found).lstrip('-')}"
    return f"**{text}**" if found.excludes_zero else text


def _plain(found: Interval | None) -> str:
    return _EMPTY if found is None else f"{found.mean:.3f}"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; an empty string without rows."""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    if not lines:
        return ""
    rule = "|" + "|".join(["---", *["---:"] * (len(heads) - 1)]) + "|"
    return "\n".join([f"### {title}", "", "| " + " | ".join(heads) + " |", rule, *lines])


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
    found = []
    for label in labels:
        means = [(position, value(label, position)) for position in positions]
        points = [(float(position), mean.mean) for position, mean in means if mean is not None]
        if points:
            found.append(Curve(label, points))
    return found
