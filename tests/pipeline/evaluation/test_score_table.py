"""Scores of several files of captions: best values, differences from the first, five forms."""

import csv
import io
import json

import pytest

from a2cap.pipeline.evaluation.comparison import compare_scores
from a2cap.pipeline.evaluation.score_table import ScoreTable
from a2cap.pipeline.metrics.all_metrics import score
from tests.experiments import a2

REFERENCES = {str(n): [f"a red dog number {n}", "two dogs"] for n in range(1, 9)}
THEIRS = dict.fromkeys(REFERENCES, "a red dog")
OURS = {i: "two dogs" if int(i) % 2 else "a cat" for i in REFERENCES}

pytestmark = pytest.mark.usefixtures("without_meteor")


@pytest.fixture
def files(tmp_path):
    for name, content in {"theirs": THEIRS, "our_s|1": OURS, "references": REFERENCES}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    names = [tmp_path / f"{name}.json" for name in ("theirs", "our_s|1")]
    return [*names, "--references", tmp_path / "references.json"]


def scores_of(captions):
    return score(captions, REFERENCES)


def test_the_terminal_marks_the_best_and_prints_the_differences_from_the_first(files):
    answer = a2("score", *files, code=0)
    lines = answer.stdout.splitlines()
    heads, theirs, ours = (line.split() for line in lines[:3])
    assert heads == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]
    first, second = scores_of(THEIRS).metrics, scores_of(OURS).metrics
    for row, name, mine, foreign in (
        (theirs, "theirs.json", first, second),
        (ours, "our_s|1.json", second, first),
    ):
        expected = [f"{v:.4f}{'*' * (v >= foreign[metric])}" for metric, v in mine.items()]
        assert row == [name, *expected]
    assert lines[3] == "* best"
    assert lines[5:7] == ["A theirs.json", "B our_s|1.json"]
    cider = compare_scores(scores_of(THEIRS), scores_of(OURS))[-1]
    [line] = [line for line in lines if line.startswith("CIDEr ")]
    assert f"{cider.low:+.4f} to {cider.high:+.4f}" in line


def test_json_has_values_intervals_and_paired_differences(files):
    first, second = json.loads(a2("score", *files, "--json").stdout)
    assert first["metrics"] == scores_of(THEIRS).metrics
    assert first["differences"] == {}
    rows = {row.metric: row for row in compare_scores(scores_of(THEIRS), scores_of(OURS))}
    assert second["differences"].keys() == rows.keys()
    assert second["differences"]["CIDEr"] == {
        "difference": rows["CIDEr"].difference,
        "low": rows["CIDEr"].low,
        "high": rows["CIDEr"].high,
    }
    assert sorted({*first["best"], *second["best"]}) == sorted(first["metrics"])


def test_markdown_and_latex_have_the_best_in_bold_and_escape_names(files):
    table = ScoreTable({"theirs.json": scores_of(THEIRS), "our_s|1.json": scores_of(OURS)})
    best = max(scores_of(THEIRS).metrics["CIDEr"], scores_of(OURS).metrics["CIDEr"])
    markdown = a2("score", *files, "--format", "markdown").stdout
    assert markdown == f"{table.as_markdown()}\n"
    assert f"**{best:.4f}**" in markdown
    assert "| our_s\\|1.json |" in markdown
    assert markdown.splitlines()[-1] == (
        "In parentheses: 95 % interval of the difference from theirs.json, by a paired bootstrap."
    )
    latex = a2("score", *files, "--format", "latex").stdout
    assert "\\begin{tabular}{lrrrrrr}" in latex
    assert f"\\textbf{{{best:.4f}}}" in latex
    assert "our\\_s|1.json & " in latex


def test_csv_has_a_line_for_each_file_and_metric_and_guards_formulas(tmp_path):
    table = ScoreTable({"=1+1.json": scores_of(THEIRS), "b.json": scores_of(OURS)})
    rows = list(csv.DictReader(io.StringIO(table.as_csv())))
    assert [row["captions"] for row in rows] == ["'=1+1.json"] * 6 + ["b.json"] * 6
    assert float(rows[5]["value"]) == scores_of(THEIRS).metrics["CIDEr"]
    difference = scores_of(OURS).metrics["CIDEr"] - scores_of(THEIRS).metrics["CIDEr"]
    assert float(rows[-1]["difference"]) == difference
    assert rows[0]["difference"] == ""


def test_fewer_repetitions_are_best_and_counts_have_no_best():
    metrics = ["repetition", "vocabulary", "CIDEr"]
    captions = (THEIRS, dict.fromkeys(REFERENCES, "a dog a dog a dog"))
    pair = [score(texts, REFERENCES, metrics=metrics) for texts in captions]
    table = ScoreTable({"a": pair[0], "b": pair[1]})
    assert [table.is_best(name, "repetition") for name in "ab"] == [True, False]
    assert [table.is_best(name, "vocabulary") for name in "ab"] == [False, False]
    assert table.differences["b"]["repetition"].low is None


def test_options_of_one_file_are_refused_for_several(files, tmp_path):
    assert a2("score", *files, "--output", tmp_path / "scores", code=2).stderr.splitlines()[-1] == (
        "Error: --compare, --per-image and --output belong to one file of captions; name one file, "
        "or leave them out"
    )
    twice = a2("score", files[0], *files)
    assert twice.stderr.splitlines()[-1] == (
        "Error: a file of captions is named twice; name each once"
    )
    assert twice.exit_code == 2
