"""The table of metrics: what reads it, names as people write them, and metrics of a set."""

from dataclasses import replace
from inspect import signature

import pytest

from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.evaluation.comparison import compare_scores
from a2cap.pipeline.metrics import metric_table
from a2cap.pipeline.metrics.all_metrics import Captions, score
from a2cap.pipeline.metrics.caption_statistics import caption_statistics
from a2cap.pipeline.metrics.metric_table import (
    DEFAULTS,
    FAMILIES,
    NAMEABLE,
    TABLE,
    family_of,
    function_of,
    in_order,
    metric_name,
    needs_java,
    shown_name,
    versions,
)
from tests.data.messages import message_of
from tests.pipeline.metrics import captions

CANDIDATES = {str(number): caption for number, caption in enumerate(captions.CANDIDATES[:4], 1)}
REFERENCES = {str(number): group for number, group in enumerate(captions.REFERENCES[:4], 1)}


@pytest.mark.parametrize("family", TABLE, ids=lambda family: family.name)
def test_every_row_names_functions_of_what_a_scorer_may_have(family):
    captions = Captions([*CANDIDATES], [*CANDIDATES.values()], [*REFERENCES.values()])
    assert all(hasattr(captions, name) for name in signature(function_of(family.scorer)).parameters)
    assert not family.values or callable(function_of(family.values))


def test_statistics_of_captions_are_the_rows_of_their_family():
    assert tuple(caption_statistics([*CANDIDATES.values()])) == FAMILIES["captions"].names


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("cider", "CIDEr"),
        ("BLEU-4", "Bleu_4"),
        ("bleu_4", "Bleu_4"),
        ("Bleu 4", "Bleu_4"),
        ("ROUGE-L", "ROUGE_L"),
        ("distinct-2", "distinct_2"),
        ("my_metrics:words", "my_metrics:words"),
    ],
)
def test_names_are_accepted_as_people_write_them(written, name):
    assert metric_name(written) == name
    if ":" not in written:
        assert load_config(None, [f"evaluate.metrics=[{written!r}]"]).evaluate.metrics == (name,)


def test_an_unknown_name_lists_the_known_ones():
    for name in ("BLEU-5", "truth", ""):
        assert message_of(metric_name, name) == (
            f"unknown metric: {name!r}; use some of {', '.join(NAMEABLE)}"
        )


def test_every_shown_name_is_accepted():
    for name in NAMEABLE:
        assert metric_name(shown_name(name)) == metric_name(name) == name


def test_tables_are_in_the_order_of_the_table_and_then_of_mention():
    assert in_order(["b:x", "CIDEr", "a:y", "Bleu_1"]) == ["Bleu_1", "CIDEr", "b:x", "a:y"]


def test_spider_needs_what_spice_needs():
    assert needs_java(["SPIDEr"])
    assert needs_java(["CIDEr", "SPICE"])
    assert not needs_java(["CIDEr", "a:b", "distinct_1"])


@pytest.mark.usefixtures("without_meteor")
def test_a_metric_of_a_set_has_a_value_without_interval_or_image():
    scores = score(CANDIDATES, REFERENCES, metrics=["distinct-2", "cider"])
    assert list(scores.metrics) == ["CIDEr", "distinct_2"]
    assert scores.metrics["distinct_2"] == caption_statistics([*CANDIDATES.values()])["distinct_2"]
    assert scores.confidence.keys() == {"CIDEr"}
    assert all(values.keys() == {"CIDEr"} for values in scores.per_image.values())
    [line] = [line for line in str(scores).splitlines() if line.startswith("distinct-2")]
    assert line.split() == ["distinct-2", f"{scores.metrics['distinct_2']:.4f}"]
    alone = score(CANDIDATES, REFERENCES, metrics=["distinct_1"])
    assert alone.metrics.keys() == {"distinct_1"}


@pytest.mark.usefixtures("without_meteor")
def test_metrics_of_a_set_are_compared_without_an_interval():
    other = CANDIDATES | {"1": "a a a a"}
    pair = [score(c, REFERENCES, metrics=["distinct_1", "CIDEr"]) for c in (CANDIDATES, other)]
    cider, distinct = compare_scores(*pair)
    assert (cider.metric, cider.low is None) == ("CIDEr", False)
    assert (distinct.metric, distinct.low, distinct.high, distinct.better) == (
        *("distinct_1", None, None),
        None,
    )
    assert distinct.difference < 0
    assert distinct.cells[-2:] == ["–", "–"]


def test_the_key_of_an_evaluation_has_the_versions_of_its_metrics(monkeypatch):
    assert versions(["distinct_1", "a:b"]) == dict.fromkeys((*DEFAULTS, "distinct_1"), 1)
    changed = replace(family_of("CIDEr"), version=2)
    monkeypatch.setitem(metric_table._FAMILY_OF, "CIDEr", changed)
    assert versions([])["CIDEr"] == 2
