"""Killed runs end like uninterrupted ones, and the driver detects programs whose runs do not."""

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from threading import Event

import pytest

from tests.faults import processes, trial
from tests.faults.digests import differences, result_digests
from tests.faults.fault_points import POINTS
from tests.faults.run_log import OBSERVED, Run, lost, read_log, repeated
from tests.faults.trial import STAGES

ROOT = Path(__file__).parents[2]


def drive(*options, change=""):
    """Return the driver's exit code, output and complaints; `change` alters the program first."""
    program = f"from tests.faults.driver import main\n{change}\nmain()"
    finished = subprocess.run(
        [sys.executable, "-c", program, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stdout, finished.stderr


TARGETS = {*OBSERVED, *(point.target for points in POINTS.values() for point in points)}


def test_every_point_is_a_function():
    for target in sorted(TARGETS):
        module, _, path = target.partition(":")
        assert callable(attrgetter(path)(importlib.import_module(module))), target


@pytest.mark.slow
def test_killed_runs_of_every_stage_lose_nothing_and_end_as_if_left_alone():
    code, printed, complaints = drive("--kills", "16", "--seed", "0")
    summary = (
        r"(\d+) of (\d+) kills survived, inputs replaced in (\d+) runs, "
        r"children signalled in \d+ runs, (\d+) items lost, (\d+) of (\d+) results equal"
    )
    counts = re.search(summary, printed)
    assert counts, printed + complaints
    survived, kills, _, lost_items, equal, results = map(int, counts.groups())
    assert (code, lost_items) == (0, 0), complaints
    assert (survived, equal) == (kills, results)
    assert kills >= 14
    for stage in STAGES:
        assert f"| {stage} |" in printed


FORGET_CHECKPOINTS = """
from a2cap.pipeline.training.checkpoints import Checkpoints
Checkpoints.latest = lambda self: None
"""

CHANGE_AN_INPUT = """
import os
import a2cap.pipeline.engine.inputs as inputs
inputs.Inputs._changed = lambda self, path: False  # which would stop the run
link = os.link
def link_and_change(source, target):
    link(source, target)
    listed = source.with_name("extractor.json")
    if listed.is_file():
        listed.write_text(listed.read_text() + " ")
os.link = link_and_change
"""


FORGET_FORCED_RUNS = """
from dataclasses import replace
import a2cap.pipeline.engine.run as run
run.resumed = lambda stage, paths, force=False: replace(paths, forced=force)
"""

STOP_WITHOUT_SAVING = """
from a2cap.pipeline.runtime.distributed import Ranks
agree = Ranks.agree_to_stop
Ranks.agree_to_stop = lambda self, stop: stop.raise_if_pending() or agree(self, stop)
"""

TRUST_INPUTS = """
import a2cap.pipeline.engine.inputs as inputs
inputs.Inputs._changed = lambda self, path: False
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "change", "complaint"),
    [
        ("train-xe", STOP_WITHOUT_SAVING, "steps were repeated, the limit is 0"),
        ("train-xe", FORGET_FORCED_RUNS, ".forced.partial was not resumed"),
        ("extract", TRUST_INPUTS, "features.lmdb differs"),
        ("train-xe", FORGET_CHECKPOINTS, "an item was lost"),
        ("train-xe", CHANGE_AN_INPUT, "extractor.json differs, which is not this stage's"),
    ],
)
def test_the_driver_detects_a_program_that_breaks_its_promises(stage, change, complaint):
    # this seed replaces inputs of extraction before a commit; most faults are found by ten kills
    words = ("--kills", "40", "--seed", "1", "--stage", stage, "--until", complaint)
    code, _, complaints = drive(*words, change=change)
    assert code == 1
    line = rf"^{stage}-\d+.*: .*{re.escape(complaint)}"
    assert re.search(line, complaints, re.MULTILINE), complaints


COMMITTED = Run(kept=frozenset(), extracted=frozenset("abc"), committed=frozenset("ab"))
TRAINED = Run(resumed=0, step=11, checkpoint=8)
SEALED = Run(worked=True, sealed=True)


@pytest.mark.parametrize(
    ("counted", "killed", "rerun", "count"),
    [
        (lost, COMMITTED, Run(kept=frozenset("ab")), 0),
        (lost, COMMITTED, Run(kept=frozenset("a")), 1),
        (lost, TRAINED, Run(resumed=8), 0),
        (lost, TRAINED, Run(resumed=4), 4),
        (lost, SEALED, Run(worked=True), 0),
        (lost, SEALED, SEALED, 1),
        (repeated, COMMITTED, Run(kept=frozenset("a"), extracted=frozenset("bcd")), 2),
        (repeated, TRAINED, Run(resumed=8, step=16), 3),
        (repeated, Run(worked=True), Run(worked=True), 1),
        (repeated, replace(TRAINED, resumed=None), Run(), 0),
    ],
)
def test_lost_and_repeated_items_are_counted(counted, killed, rerun, count):
    assert counted([killed], rerun) == count


def test_a_run_that_hangs_is_ended_with_its_stack_and_its_processes(tmp_path, monkeypatch):
    def hang():
        subprocess.Popen(["sleep", "600"])
        Event().wait()

    end = processes.run(hang, log=tmp_path / "log", timeout=0.5)
    assert end.code == 1
    log = (tmp_path / "log").read_text()
    assert log.startswith("Timeout (0:00:00.500000)!\n") and " in hang\n" in log
    monkeypatch.setattr(trial, "_ORPHAN_TIMEOUT", 0.0)
    [problem] = trial._kill_orphans([end.process])
    assert problem.endswith("still ran 0 s after its run")
    assert processes.orphans(end.process, timeout=60.0) == []


def test_a_log_is_read_up_to_the_kill(tmp_path):
    path = tmp_path / "run.jsonl"
    assert read_log(path) == Run()
    path.write_text(
        '["worked", true]\n["found", ["a"]]\n["extracted", ["b"]]\n["committed", ["b"]]\n'
    )
    assert read_log(path) == Run(
        kept=frozenset("a"), extracted=frozenset("b"), committed=frozenset("b"), worked=True
    )


def test_each_missing_additional_and_different_file_is_named():
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == [
        "a is missing",
        "b differs",
        "c is unexpected",
    ]


def test_digests_depend_on_values_and_not_on_speed(tmp_path):
    def metrics(folder, cider, speed):
        folder.mkdir(exist_ok=True)
        (folder / "metrics.jsonl").write_text(
            f'{{"epoch": 1, "CIDEr": {cider}, "tokens_per_second": {speed}}}\n'
        )
        return result_digests(folder)

    first = metrics(tmp_path / "a", 0.5, 100)
    assert differences(first, metrics(tmp_path / "b", 0.5, 900)) == []
    assert differences(first, metrics(tmp_path / "b", 0.6, 100)) == ["metrics.jsonl differs"]
