"""Figures of docs/claims.md, and their rows."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner

from a2cap.data.captions.vocabulary import PAD
from a2cap.data.errors import A2Error
from benchmarks import alignment_study, claims
from benchmarks.study import updates
from benchmarks.study.grid import Trial, trials
from benchmarks.study.page import figure, table_cell, with_figures
from benchmarks.study.results import Results, Row, keep
from benchmarks.study.running import Finding, Job, Study, jobs, run_jobs
from benchmarks.study.worlds import Images, World, draw_world

FAILED = Row("depth", "max", "", 1, failure="the loss is nan at update 7; lower train.lr")
FAILURE = f" (max, seed 1, failed: {FAILED.failure})"
RESULTS = Results(
    [
        Row("depth", "none", "XE", 0, {"CIDEr": 1.0, "layers/1/tau": 0.25, "layers/2/tau": 0.5}),
        Row("depth", "none", "XE", 1, {"CIDEr": 1.5, "layers/1/tau": 0.25, "layers/2/tau": 0.5}),
        Row("depth", "gate", "XE", 0, {"CIDEr": 0.75, "truth": 0.5}),
        Row("depth", "gate", "XE", 1, {"CIDEr": 1.25}),
        Row("depth", "max", "XE", 0, {"CIDEr": 1.0}),
        FAILED,
    ]
)
TABLE = """## Fusions

# a comment of a command

| | CIDEr | truth |
|---|---:|---:|
| none | 2.1 | 0.7 |
| gate | **2.0** | 0.6 |

| | CIDEr | SPICE |
|---|---:|---:|
| gate | 1.9 | 0.2 |

## Without a table

## Later

| | CIDEr | truth |
|---|---:|---:|
| max | 1.0 | 0.5 |
"""


@pytest.mark.parametrize(
    ("label", "name", "text"),
    [
        ("none", "layers/*/tau", "0.250, 0.500"),
        ("gate - none", "CIDEr", "−0.250 ± 0.000"),
        ("none - gate", "CIDEr", "+0.250 ± 0.000"),
        ("none", "seeds", "2"),
        ("max", "seeds", "2"),
        ("max", "CIDEr", f"1.000{FAILURE}"),
        ("max - none", "CIDEr", f"+0.000{FAILURE}"),
        ("gate", "truth", "0.500 (gate, seed 1, not defined)"),
        ("max", "truth", f"– (max, seed 0, not defined){FAILURE}"),
        (
            "gate - max",
            "truth",
            f"– (gate, seed 1, not defined) (max, seed 0, not defined){FAILURE}",
        ),
    ],
)
def test_a_figure_is_a_mean_and_names_each_seed_without_it(label, name, text):
    assert figure(RESULTS, "depth", label, name) == text


def test_a_figure_without_a_result_is_an_error():
    for label, name in (("gate", "BLEU"), ("moving", "CIDEr")):
        with pytest.raises(KeyError, match=rf"no result: depth \| {label} \| {name}"):
            figure(RESULTS, "depth", label, name)


def test_a_cell_of_a_table_is_read_without_bold():
    assert table_cell(TABLE, "Fusions", "gate", "CIDEr") == "2.0"
    assert table_cell(TABLE, "Fusions", "gate", "SPICE") == "0.2"
    for names in (
        ("Other", "gate", "CIDEr"),
        ("Fusions", "max", "CIDEr"),  # of a later table
        ("Without a table", "max", "CIDEr"),
        ("Fusions", "gate", "x"),
    ):
        with pytest.raises(KeyError, match="no cell"):
            table_cell(TABLE, *names)


def test_masks_are_compared_with_attention_and_upper_layers_with_lower_ones():
    layers = [(0.5, 0.25, 1.0), (0.25, 0.5, 2.0), (0.75, 0.0, 6.0), (0.5, 0.25, 7.0)]
    values = {
        f"layers/{number}/{name}": value
        for number, cells in enumerate(layers, start=1)
        for name, value in zip(("tau attention", "tau evidence", "millinats"), cells, strict=True)
    }
    assert claims.contrasts(values) == {
        "mean tau attention": 0.5,
        "mean tau evidence": 0.25,
        "evidence - attention": -0.25,
        "upper - lower millinats": 5.0,
    }
    removed = {"evidence": ((2, 1.0), (4, 6.0)), "attention": ((2, 0.5), (4, 4.0))}
    of_images = {
        f"erasure/{order}/of_images/{number}/{column}": float(cell)
        for order, images in removed.items()
        for number, cells in enumerate(images, start=1)
        for column, cell in enumerate(cells, start=1)
    }
    compared = claims.contrasts(of_images)
    assert compared["removed evidence - attention"] == pytest.approx((0.25 + 0.5) / 2)
    assert compared["half width over images"] == pytest.approx(12.706 * 0.125, abs=1e-3)
    left_out = {"erasure/random/deletion/1": 1.0, "grounding/kinds/attention": 0.5}
    assert claims.shown({**values, **left_out}) == {**values, **claims.contrasts(values)}
    assert claims.contrasts({"layers/1/tau attention": 0.5}) == {"mean tau attention": 0.5}


def test_figures_of_parts_without_rows_stay():
    page = "a <!--depth | gate | CIDEr-->old<!----> b <!--gru | dot | truth-->0.3<!----> <!-- c -->"
    assert with_figures(page, RESULTS) == (
        "a <!--depth | gate | CIDEr-->1.000 ± 3.177<!----> b <!--gru | dot | truth-->0.3<!---->"
        " <!-- c -->"
    )


def test_the_machine_of_each_seed_is_named_where_they_differ():
    page = "<!--depth | machine-->old<!---->"
    rows = [Row("depth", "gate", "XE", 0, {"seconds": 90.0}, machine="an EPYC")]
    assert with_figures(page, Results(rows)) == page.replace("old", "an EPYC, 2 min")
    rows += [Row("depth", label, "XE", 2, machine="a Xeon") for label in ("none", "gate")]
    rows += [Row("depth", "none", "", 1, failure="the loss is nan", machine="a Xeon")]
    assert with_figures(page, Results(rows)) == page.replace(
        "old", "gate, seed 0: an EPYC, 2 min; seeds 1, 2: a Xeon"
    )


def test_the_page_says_what_was_tried_for_each_statement_of_the_paper_that_does_not_hold():
    page = claims.PAGE.read_text(encoding="utf-8")
    of_paper, why = page.split("## Show, Attend and Tell")[0].split("### Why it may not hold")
    where, failing = "", {}
    for line in of_paper.splitlines():
        first, *_, verdict = line.strip("|").split(" | ") if line.startswith("| ") else ("", "")
        where = first.strip() or where
        if verdict.startswith("does not hold"):
            failing[where.partition(",")[0]] = line
    assert {"Fig. 2", "Fig. 5", "§1"} <= failing.keys()
    tried = {line.strip("| ").partition(":")[0] for line in why.splitlines() if ":" in line}
    assert failing.keys() - tried <= {"abstract"}  # on published code, which needs no training


def test_the_page_has_the_committed_figures():
    page = claims.PAGE.read_text(encoding="utf-8")
    assert with_figures(page, Results.read(claims.RESULTS / claims.ROWS)) == page


def test_a_captioner_that_is_measured_again_replaces_its_row_alone(tmp_path):
    assert Results.read(tmp_path / claims.ROWS) == Results([])
    good = {"CIDEr": 1.25, "tau": math.nan, "truth": math.inf}
    for row in (FAILED, replace(FAILED, seed=2), Row("depth", "gate", "XE", 1, {"CIDEr": 0.5})):
        keep(tmp_path / claims.ROWS, row, "first")
    for _ in range(2):  # what has not changed keeps its machine
        keep(tmp_path / claims.ROWS, Row("depth", "max", "XE", 1, good), "second")
        keep(tmp_path / claims.ROWS, replace(FAILED, seed=2), "third")
    assert Results.read(tmp_path / claims.ROWS).rows == [
        Row("depth", "max", "XE", 1, {"CIDEr": 1.25}, machine="second"),
        replace(FAILED, seed=2, machine="first"),
        Row("depth", "gate", "XE", 1, {"CIDEr": 0.5}, machine="first"),
    ]


def test_a_phase_replaces_its_own_row_and_a_failure_all(tmp_path):
    measured = [Row("depth", "max", phase, 1, {"CIDEr": 0.5}) for phase in ("val", "test")]
    better = replace(measured[0], values={"CIDEr": 0.75})
    other = replace(measured[0], seed=2)
    for row, expected in (
        (measured[0], [measured[0]]),
        (other, [measured[0], other]),
        (measured[1], [measured[0], other, measured[1]]),
        (better, [better, other, measured[1]]),
        (FAILED, [FAILED, other]),
        (measured[1], [measured[1], other]),
    ):
        keep(tmp_path / "rows.csv", row, "")
        assert Results.read(tmp_path / "rows.csv").rows == expected


def test_all_parts_are_measured_and_a_stopped_measurement_keeps_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    monkeypatch.setattr(claims, "PAGE", tmp_path / "claims.md")
    monkeypatch.setattr(claims, "draw_claims", lambda *_: None)
    page = "<!--first | gate | CIDEr--><!----> <!--second | gate | CIDEr--><!---->"
    claims.PAGE.write_text(page)
    tried = []

    def measure(part, measurement):
        for seed in measurement.seeds:
            tried.append((part, seed))
            if tried == [("first", 1), ("first", 2), ("second", 1)]:
                raise KeyboardInterrupt
            yield Row(part, "gate", "XE", seed, {"CIDEr": float(seed)})

    parts = {part: partial(measure, part) for part in ("first", "second")}
    monkeypatch.setattr(claims, "PARTS", parts)
    command = ["--measure", "all", "--seed", "1", "--seed", "2", "--output", str(tmp_path)]
    assert CliRunner().invoke(claims.main, command).exit_code == 1
    assert [(row.part, row.seed) for row in Results.read(tmp_path / claims.ROWS).rows] == tried[:2]
    assert CliRunner().invoke(claims.main, command).exit_code == 0
    assert Results.read(tmp_path / claims.ROWS).failures() == []
    assert claims.PAGE.read_text().count("-->1.500 ± 6.353<!--") == len(parts)


def test_the_page_copies_no_figure_of_ours_by_hand():
    """Papers, others, arithmetic and tests have no figures of ours."""
    by_hand = "the table", "the two tables", "arithmetic", "users of", "–", "[exact enumeration]"
    measured, run = 0, ""
    for line in claims.PAGE.read_text(encoding="utf-8").splitlines():
        cells = re.split(r" ?\| ?", re.sub(r"<!--.*?-->.*?<!---->", "figure", line))
        if len(cells) < 7:  # of five columns, with what is before and behind
            continue
        _, _, _, of_row, finding, _, _ = cells
        run = run if of_row == "the same" else of_row
        if not run.startswith(by_hand):
            measured += "figure" in finding
            assert not re.findall(r"\d\.\d", finding.replace("0.0005", "")), line
    assert measured > 50


def test_a_captioner_that_fails_has_a_row_and_is_named(tmp_path, monkeypatch):
    good, bad, broken = (
        Trial("depth", label, 0, "plain", (), False) for label in ("none", "gate", "max")
    )
    finding = Finding("XE", {"CIDEr": 1.0}, [{"loss": 2.0}], 60.0)
    ends = {
        good: [finding],
        bad: A2Error("the loss is nan"),
        broken: RuntimeError("out of memory\nat 7"),
    }
    monkeypatch.setattr(alignment_study, "prepare", lambda *_: None)
    monkeypatch.setattr(alignment_study, "jobs", lambda _, planned: planned)
    monkeypatch.setattr(
        alignment_study,
        "run_jobs",
        lambda study, planned, processes: (
            (Job(World("plain", tmp_path), None, None, (trial,)), ends[trial]) for trial in planned
        ),
    )
    study = Study(tmp_path, "scenes", Images(1, 1, 1, 1), 1)
    *_, (results, news) = alignment_study.measured(study, [good, bad, broken], processes=1)
    assert news == "3 of 3: depth max 0 failed: RuntimeError: out of memory"
    assert results.failures() == [
        "depth gate, seed 0: the loss is nan",
        "depth max, seed 0: RuntimeError: out of memory",
    ]
    assert results.by_seed("depth", "none", "XE", "CIDEr") == {0: 1.0}


@pytest.mark.slow
def test_the_error_of_a_captioner_does_not_stop_the_others(tmp_path):
    study = Study(tmp_path, "scenes", Images(1, 1, 1, 1), 1)  # of images that are not there
    planned = jobs(study, trials(claims.QUICK_EXTENT, ["depth"]))
    errors = [error for _, error in run_jobs(study, planned, processes=1)]
    assert len(errors) == 2
    assert all(isinstance(error, A2Error) for error in errors)
    assert all("data.images is not a folder" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("label", "images", "lengths", "share"),
    [
        ("spatial", 13, [8, 9, 10, 11, 12, 13, 14], 62 / 65),
        ("gru", 13, sorted({*updates.WORDS}), 1.0),
        ("show-attend-tell of 1000", 64, [11], 1.0),
    ],
)
def test_an_epoch_has_the_batches_of_its_authors(label, images, lengths, share):
    [words], of_captions = updates._epoch(label, (11,))
    batch = updates._batch(updates.QUICK, words)
    assert ((batch.tokens != PAD).sum(dim=-1) - 1).equal(words)  # without <eos>
    assert len(words) == images
    assert {7, *lengths} >= {*words.flatten().tolist()} >= {*lengths}
    assert batch.tokens.shape[-1] == max(lengths) + 1
    assert of_captions == share


@pytest.mark.slow
def test_a_captioner_that_diverges_is_named_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "QUICK_FIELDS", (*claims.QUICK_FIELDS, "train.lr=1e30"))
    rows = list(claims.measure_study("trainings", claims.Measurement(tmp_path, True, (0,))))
    assert {row.label for row in rows} == {"norms after the blocks", "twice the updates"}
    for row in rows:
        keep(tmp_path / claims.ROWS, row, "a CPU")
    page = "<!--trainings | twice the updates | layers/*/tau attention-->old<!---->"
    assert with_figures(page, Results.read(tmp_path / claims.ROWS)).startswith(
        page.replace("old<!---->", "– (twice the updates, seed 0, failed: loss is not finite at")
    )


@pytest.mark.slow
def test_captioners_of_photographs_are_measured_without_what_scenes_alone_have(tmp_path):
    draw_world(World("plain", tmp_path / "plain-scenes"), claims.QUICK)  # in place of photographs
    measurement = claims.Measurement(tmp_path, quick=True, seeds=(0,))
    next(claims.measure_study("flickr8k depth", measurement))  # stopped after the first one
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("artifacts/train-xe/*/*")}
    assert trained
    rows = _measured(measurement)
    labels = ["none", "gate", "gate, λ 0.0005"]
    assert [(row.label, row.failure) for row in rows] == [(label, "") for label in labels]
    gate = rows[1].values
    assert {"CIDEr", "layers/6/tau evidence", "upper - lower millinats"} <= gate.keys()
    assert gate["erasure/evidence/words"] == gate["erasure/random/words"] > 0
    assert not [name for name in gate if name.startswith(("grounding", "companions", "truth"))]
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert _measured(measurement) == rows  # from what is finished


def _measured(measurement):
    rows = claims.measure_study("flickr8k depth", measurement)
    return list({row.label: row for row in rows}.values())


@pytest.mark.slow
def test_grounding_with_permuted_masks_is_compared_by_photograph(tmp_path):
    draw_world(World("plain", tmp_path / "plain-scenes"), claims.QUICK)  # in place of photographs
    rows = claims.measure_masks(claims.Measurement(tmp_path, quick=True, seeds=(0,)))
    values = {row.label: row.values for row in rows}
    assert {of["words"] for of in values.values()} == {values["random"]["words"]}
    for name in ("correctness", "pointing"):
        at = {label: of[name] for label, of in values.items()}
        assert at["gain"] == pytest.approx(at["aligned"] - at["attention"])
        for control in ("permuted", "others"):
            assert at[f"gain over {control}"] == pytest.approx(at["aligned"] - at[control])
    of_control = [values[label]["correctness"] for label in ("aligned", "permuted", "others")]
    assert len({*of_control}) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["photo masks"], "no photographs for 'photo masks'; name them with --photos"),
        (["flickr8k depth"], "no photographs for 'flickr8k depth'; name them with --flickr8k"),
        (["all", "--flickr8k", "."], "no photographs for 'photo masks'; name them with --photos"),
    ],
)
def test_a_part_of_photographs_needs_their_folder(options, text):
    result = CliRunner().invoke(claims.main, ["--measure", *options])
    assert result.exit_code == 2
    assert text in result.output
