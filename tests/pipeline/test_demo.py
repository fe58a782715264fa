"""Demo: all stages on scenes, the comparison with a blind captioner, and reruns."""

import json

import pytest
from click.testing import CliRunner

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.config import load_config
from a2cap.pipeline.demo import run_demo

SMALL = (
    "train.epochs=1",
    "model.width=16",
    "model.heads=2",
    "evaluate.beam_size=2",
)
ONCE = ["extract", "preprocess"]
TWICE = ["train-xe", "evaluate"]
METRICS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]


def reported(folder):
    """Run the demo; return the outcome of each stage and the evaluation's directory."""
    outcomes = []
    directory = run_demo(
        folder, SMALL, report=lambda name, outcome: outcomes.append((name, outcome.ran)), scenes=60
    )
    return outcomes, directory


@pytest.mark.slow
def test_the_demo_runs_each_stage_once_and_compares_with_the_blind_captioner(tmp_path, monkeypatch):
    outcomes, directory = reported(tmp_path / "my demo")
    assert outcomes == [(stage, True) for stage in ONCE + 2 * TWICE]
    assert_report_compares(directory)

    again, same = reported(tmp_path / "my demo")
    assert again == [(stage, False) for stage in ONCE + 2 * TWICE]
    assert same == directory

    monkeypatch.setattr(run_demo, "__kwdefaults__", {"scenes": 60})
    options = [word for override in SMALL for word in ("--set", override)]
    answer = CliRunner().invoke(cli, ["demo", "--folder", str(tmp_path / "my demo"), *options])
    assert answer.exit_code == 0, answer.output
    *lines, last = answer.stdout.splitlines()
    assert last == f"report: {directory / 'report.html'}"
    assert [name for name in (line.split()[0] for line in lines) if name in METRICS] == METRICS


def assert_report_compares(directory):
    seeing = json.loads((directory / "metrics.json").read_text())
    baseline = load_config(directory / "config.yaml").evaluate.baseline
    blind = json.loads(baseline.read_text())
    assert [one["provenance"]["model.blind"] for one in (blind, seeing)] == ["True", "False"]
    assert [(one["n"], one["total"]) for one in (blind, seeing)] == [(6, 6), (6, 6)]
    report = (directory / "report.html").read_text()
    assert "blind captioner" in report
    assert f"{blind['metrics']['CIDEr']:.4f}" in report
    assert "<strong>6 of 6</strong> images scored" in report
    groups = {"kinds", "colours", "sizes", "textures", "counts", "relations"}
    assert seeing["word_groups"].keys() == blind["word_groups"].keys() == groups
    assert "blind captioner, accuracy" in report


def test_a_demo_folder_with_other_files_is_rejected(tmp_path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "letter.txt").write_text("dear")
    answer = CliRunner().invoke(cli, ["demo", "--folder", str(tmp_path)])
    assert answer.exit_code == 1
    folder = str(tmp_path / "scenes")
    assert answer.stderr.startswith(f"a2: {folder!r} already contains other files")
