"""Demo: all stages on scenes, the comparison with a blind captioner, and reruns."""

import json
import shlex
import sys

import pytest

from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.demo import run_demo
from tests.experiments import a2

SMALL = (
    "train.start=null",
    "train.epochs=1",
    "model.width=16",
    "model.heads=2",
    "evaluate.beam_size=2",
)
SCENES = 40
RUN = ["extract", "preprocess", "train-xe", "train-xe", "evaluate", "evaluate"]
METRICS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]


def reported(folder):
    """Run the demo; return the outcome of each stage and the results."""
    outcomes = []
    done = run_demo(
        folder,
        SMALL,
        report=lambda name, outcome: outcomes.append((name, outcome.ran)),
        scenes=SCENES,
    )
    return outcomes, done


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run the demo once; return its folder, the outcome of each stage and the results."""
    folder = tmp_path_factory.mktemp("my demo") / "artifacts" / "demo"
    return folder, *reported(folder)


@pytest.mark.slow
def test_the_demo_runs_each_stage_once_and_compares_with_the_blind_captioner(
    demo, monkeypatch, caplog
):
    folder, outcomes, done = demo
    assert outcomes == [(stage, True) for stage in RUN]
    assert_report_compares(done.evaluation)

    again, same = reported(folder)
    assert again == [(stage, False) for stage in RUN]
    assert same == done

    monkeypatch.setattr(run_demo, "__kwdefaults__", {"scenes": SCENES})
    options = [word for override in SMALL for word in ("--set", override)]
    answer = a2("demo", "--folder", folder, *options, code=0)
    *lines, last, photo, _, of_photo, _, page, _, opening = answer.stdout.splitlines()
    assert photo.startswith("chelsea.jpg: ") and " cat " in photo
    assert of_photo.endswith("chelsea.jpg --figure photo.png")
    assert page.endswith(" serve")
    report = done.evaluation / "report.html"
    assert last == f"report: {report}"
    assert shlex.split(opening) == [sys.executable, "-m", "webbrowser", report.as_uri()]
    assert [name for name in (line.split()[0] for line in lines) if name in METRICS] == METRICS
    assert_captions(done, folder, monkeypatch, caplog)


def assert_captions(done, folder, monkeypatch, caplog):
    """Assert that the demo's captioner captions an image of the test and draws its attention."""
    monkeypatch.chdir(folder)
    caplog.clear()
    options = ["--model", str(done.captioner), "--figure", "attention.png"]
    assert a2("caption", done.image, *options, code=0).stdout.startswith(f"{done.image}: ")
    assert caplog.messages == [
        "the captioner was trained on drawings of a2 scenes; its captions of photographs mean "
        "nothing"
    ]
    assert (folder / "attention.png").stat().st_size > 10_000


def assert_report_compares(directory):
    seeing = json.loads((directory / "metrics.json").read_text())
    baseline = load_config(directory / "config.yaml").evaluate.baseline
    blind = json.loads(baseline.read_text())
    assert [scores["provenance"]["model.blind"] for scores in (blind, seeing)] == ["True", "False"]
    assert [(scores["n"], scores["total"]) for scores in (blind, seeing)] == [(4, 4), (4, 4)]
    report = (directory / "report.html").read_text()
    assert "captioner that sees nothing" in report
    assert f"{blind['metrics']['CIDEr']:.4f}" in report
    assert "4 of 4 images" in report
    groups = {"kinds", "colours", "sizes", "textures", "counts", "relations"}
    assert seeing["word_groups"].keys() == blind["word_groups"].keys() == groups
    assert "captioner that sees nothing, F1" in report


def test_a_demo_folder_with_other_files_is_rejected(tmp_path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "letter.txt").write_text("dear")
    answer = a2("demo", "--folder", tmp_path, code=1)
    folder = str(tmp_path / "scenes")
    assert answer.stderr.startswith(f"a2: {folder!r} already contains other files")
