"""Runs that are killed end as if they had not been, and the driver sees it where they do not."""

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
STAGES = (
    "calibrate",
    "extract",
    "preprocess",
    "train-xe",
    "train-scst",
    "evaluate",
    "train-detector",
)


@pytest.fixture
def diary(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("diary")


@pytest.fixture
def outcome(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("outcome")


def drive(*options, after=""):
    """The driver's exit code, table and complaints; `after` changes the product beforehand."""
    program = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import driver\n{after}\n"
    finished = subprocess.run(
        [sys.executable, "-c", f"{program}driver.main()", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stdout, finished.stderr


def summary(printed):
    """Kills survived, kills, items lost, results equal, results."""
    found = re.search(
        r"(\d+) of (\d+) kills survived, (\d+) items lost, (\d+) of (\d+) results equal", printed
    )
    assert found, printed
    return tuple(map(int, found.groups()))


@pytest.mark.slow
def test_killed_runs_of_every_stage_lose_nothing_and_end_as_if_left_alone():
    code, printed, complaints = drive("--kills", "24", "--seed", "0")
    survived, kills, lost, equal, results = summary(printed)
    assert (code, lost) == (0, 0), complaints
    assert (survived, equal) == (kills, results)
    assert kills >= 20
    for stage in STAGES:
        assert f"| {stage} |" in printed


FORGETS_CHECKPOINTS = """
from a2cap.pipeline.training.checkpoints import Checkpoints
Checkpoints.latest = lambda self: None
"""

WRITES_WHAT_DIFFERS = """
import os
import a2cap.pipeline.extraction.extract as extraction
write = extraction.write_json
extraction.write_json = lambda path, value: write(path, value | {"process": os.getpid()})
"""

CHANGES_AN_INPUT = """
import a2cap.pipeline.captioning.saved_captioner as saved_model
link = saved_model._link
def link_and_change(source, target):
    link(source, target)
    listed = source.with_name("skipped.jsonl")
    listed.write_text(2 * listed.read_text())
saved_model._link = link_and_change
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "fault", "complaint"),
    [
        ("train-xe", FORGETS_CHECKPOINTS, "something was lost"),
        ("train-scst", FORGETS_CHECKPOINTS, "something was lost"),
        ("train-detector", FORGETS_CHECKPOINTS, "something was lost"),
        ("extract", WRITES_WHAT_DIFFERS, "extractor.json differs"),
        ("train-xe", CHANGES_AN_INPUT, "skipped.jsonl differs, which is not this stage's"),
    ],
)
def test_the_driver_sees_a_product_that_does_not_keep_its_promises(stage, fault, complaint):
    code, _, complaints = drive("--kills", "12", "--seed", "0", "--stage", stage, after=fault)
    assert code == 1
    assert complaint in complaints


def test_an_image_that_was_committed_and_is_not_found_is_lost(diary):
    killed = diary.Run(found=frozenset(), described=frozenset("abc"), committed=frozenset("ab"))
    assert diary.lost([killed], diary.Run(found=frozenset("ab"))) == 0
    assert diary.lost([killed], diary.Run(found=frozenset("a"))) == 1


def test_steps_before_an_acknowledged_checkpoint_are_lost_where_training_begins_earlier(diary):
    killed = diary.Run(resumed=0, step=11, checkpoint=8)
    assert diary.lost([killed], diary.Run(resumed=8)) == 0
    assert diary.lost([killed], diary.Run(resumed=4)) == 4


def test_a_stage_that_works_again_after_its_manifest_is_lost(diary):
    killed = diary.Run(worked=True, sealed=True)
    assert diary.lost([killed], diary.Run()) == 0
    assert diary.lost([killed], diary.Run(worked=True, found=frozenset("ab"))) == 1


def test_what_two_runs_did_is_done_again(diary):
    described = diary.Run(found=frozenset(), described=frozenset("abc"))
    assert (
        diary.done_again([described], diary.Run(found=frozenset("a"), described=frozenset("bcd")))
        == 2
    )
    trained = diary.Run(resumed=0, step=11, checkpoint=8)
    assert diary.done_again([trained], diary.Run(resumed=8, step=16)) == 3
    assert diary.done_again([diary.Run(worked=True)], diary.Run(worked=True)) == 1
    assert diary.done_again([replace(trained, resumed=None)], diary.Run()) == 0


def test_a_diary_is_read_up_to_where_its_run_was_killed(diary, tmp_path):
    path = tmp_path / "diary"
    assert diary.read(path) == diary.Run()
    path.write_text(
        '["worked", true]\n["found", ["a"]]\n["described", ["b"]]\n["committed", ["b"]]\n'
    )
    assert diary.read(path) == diary.Run(
        found=frozenset("a"), described=frozenset("b"), committed=frozenset("b"), worked=True
    )


def test_each_file_that_is_missing_too_many_or_other_is_named(outcome):
    assert outcome.differences({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert outcome.differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == [
        "a is missing",
        "b differs",
        "c is too many",
    ]


def test_times_and_speeds_are_no_difference_and_values_are(outcome, tmp_path):
    def metrics(folder, cider, speed):
        folder.mkdir(exist_ok=True)
        (folder / "metrics.jsonl").write_text(
            f'{{"epoch": 1, "CIDEr": {cider}, "tokens_per_second": {speed}}}\n'
        )
        return outcome.outcome(folder)

    first = metrics(tmp_path / "a", 0.5, 100)
    assert outcome.differences(first, metrics(tmp_path / "b", 0.5, 900)) == []
    assert outcome.differences(first, metrics(tmp_path / "b", 0.6, 100)) == [
        "metrics.jsonl differs"
    ]
