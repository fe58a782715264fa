"""A stage in shards: each runs once, the last publishes, and none runs beside the whole stage."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import A2Error, LockedError
from a2cap.data.features.shard import Shard, shards_in
from a2cap.pipeline.engine import shards
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.run import finished, run_stage
from a2cap.pipeline.engine.shards import run_shard
from a2cap.pipeline.engine.stage import Input, PreparedStage, ShardWork, StagePaths
from tests.data.messages import message_of

NUMBERS = range(20)


def summing_stage(*, factor=1, fail_in=None, skipped=()):
    """Make a stage that sums twenty numbers; shards write parts, and the work joins them."""
    made = []

    def fill(shard, directory, events):
        folder = directory / "parts" / shard.folder
        if (folder / "seal.json").exists():
            return list(skipped)
        if shard == fail_in:
            raise RuntimeError("killed")
        own = [number * factor for number in NUMBERS if shard.owns(str(number))]
        (folder / "seal.json").write_text(json.dumps(own))
        made.append(shard.number)
        return list(skipped)

    def work(directory, inputs, events):
        parts = directory / "parts"
        parts.mkdir(exist_ok=True)
        seals = [parts / shard.folder / "seal.json" for shard in shards_in(parts)]
        found = [json.loads(seal.read_text()) for seal in seals] or [
            [number * factor for number in NUMBERS]
        ]
        (parts / "total.txt").write_text(str(sum(map(sum, found))))
        return list(skipped)

    stage = PreparedStage(
        name="sum",
        version=1,
        fields={"sum": {"factor": factor}},
        inputs={"numbers": Input(Path("numbers"), "d1")},
        outputs=("parts/total.txt",),
        work=work,
        shards=ShardWork("parts", fill),
    )
    return stage, made


@pytest.fixture
def paths(tmp_path):
    return StagePaths(tmp_path / "my sum")


def run(stage, paths, number, count=3, **options):
    return run_shard(stage, paths, Shard(number, count), resolved_config="", **options)


def total(outcome):
    return (outcome.directory / "parts" / "total.txt").read_text()


def test_the_last_finished_shard_publishes_the_stage(paths):
    stage, made = summing_stage(skipped=[SkippedItem("7", "odd")])
    first = run(stage, paths, 2)
    assert (first.shard, first.skipped, first.stage) == (Shard(2, 3), 1, None)
    assert first.waiting == [Shard(0, 3), Shard(1, 3)]
    assert run(stage, paths, 0).waiting == [Shard(1, 3)]
    assert not paths.final.exists()
    last = run(stage, paths, 1)
    assert last.waiting == []
    assert last.stage.ran
    assert last.stage.directory == paths.final
    assert total(last.stage) == str(sum(NUMBERS))
    assert made == [2, 0, 1]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_shards_changes_neither_key_nor_digest(paths, tmp_path, count):
    stage, _ = summing_stage()
    for number in range(count):
        outcome = run(stage, paths, number, count)
    whole = run_stage(stage, StagePaths(tmp_path / "whole"), resolved_config="")
    assert outcome.stage.manifest.made_from == whole.manifest.made_from
    assert outcome.stage.manifest.digest == whole.manifest.digest


def test_a_shard_of_a_published_stage_does_nothing(paths):
    stage, made = summing_stage()
    for number in (0, 1, 2, 1):
        outcome = run(stage, paths, number)
    assert not outcome.stage.ran
    assert (outcome.shard, outcome.skipped, outcome.waiting) == (Shard(1, 3), 0, [])
    assert made == [0, 1, 2]


def test_a_finished_shard_is_not_run_again(paths):
    stage, made = summing_stage()
    run(stage, paths, 0)
    assert run(stage, paths, 0).waiting == [Shard(1, 3), Shard(2, 3)]
    assert made == [0]


def test_a_failed_shard_is_run_again_and_the_others_stay(paths):
    stage, made = summing_stage(fail_in=Shard(1, 3))
    run(stage, paths, 0)
    with pytest.raises(RuntimeError):
        run(stage, paths, 1)
    assert run(stage, paths, 2).waiting == [Shard(1, 3)]
    again, made_again = summing_stage()
    assert run(again, paths, 1).stage.ran
    assert (made, made_again) == ([0, 2], [1])


def test_a_later_run_publishes_what_the_last_shard_could_not(tmp_path):
    for name, later in (
        ("a shard", lambda stage, paths: run(stage, paths, 0, 2).stage),
        ("the stage", lambda stage, paths: run_stage(stage, paths, resolved_config="")),
    ):
        stage, _ = summing_stage()
        failing = replace(stage, work=lambda *_: 1 / 0)
        paths = StagePaths(tmp_path / name)
        run(failing, paths, 0, 2)
        with pytest.raises(ZeroDivisionError):
            run(failing, paths, 1, 2)
        outcome = later(stage, paths)
        assert outcome.ran
        assert total(outcome) == str(sum(NUMBERS))


def test_each_shard_writes_its_own_events(paths):
    stage, _ = summing_stage()
    run(stage, paths, 0, 2)
    folder = paths.partial / "parts" / Shard(0, 2).folder
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "end"]
    assert {event["shard"] for event in events} == {"0/2"}


def test_shards_with_force_are_run_beside_the_old_result_and_resumed_with_or_without_it(paths):
    for number in range(2):
        run(summing_stage()[0], paths, number, 2)
    stage, made = summing_stage()
    assert run(stage, paths, 0, 2, force=True).waiting == [Shard(1, 2)]
    assert finished(stage, paths) is not None
    assert run(stage, paths, 0, 2, force=True).waiting == [Shard(1, 2)]
    assert run(stage, paths, 1, 2).stage.ran
    assert made == [0, 1]
    assert not replace(paths, forced=True).partial.exists()
    assert not run(stage, paths, 1, 2).stage.ran


@pytest.mark.parametrize("forced", [True, False])
def test_force_discards_unfinished_work_of_other_settings(paths, forced):
    run(summing_stage(factor=2)[0], paths, 0, force=forced)
    stage, _ = summing_stage()
    if not forced:
        assert message_of(run, stage, paths, 0, error=A2Error) == (
            f"unfinished work of other settings in {str(paths.partial)!r} (sum.factor 2 -> 1); "
            "name another path, or use --force to discard it"
        )
    assert run(stage, paths, 1, force=True).waiting == [Shard(0, 3), Shard(2, 3)]
    assert not paths.partial.exists()
    assert shards_in(replace(paths, forced=True).partial / "parts") == [Shard(1, 3)]


def test_another_number_of_shards_is_rejected(paths):
    stage, _ = summing_stage()
    run(stage, paths, 0, 3)
    assert message_of(run, stage, paths, 0, 4, error=A2Error) == (
        f"unfinished work in {str(paths.partial)!r} has 3 shards, not 4; use 3 shards, or delete it"
    )


def test_unfinished_work_without_shards_is_rejected(paths):
    stage, _ = summing_stage()
    (paths.partial / "parts").mkdir(parents=True)
    (paths.partial / "parts" / "data.mdb").write_bytes(b"")
    assert message_of(run, stage, paths, 0, error=A2Error) == (
        f"unfinished work in {str(paths.partial)!r} has no shards; "
        "finish it without --shard, or delete it"
    )


def test_a_stage_that_cannot_run_in_shards_is_reported(paths):
    stage, _ = summing_stage()
    message = message_of(run, replace(stage, shards=None), paths, 0, error=A2Error)
    assert message == "stage sum cannot run in shards; run it without --shard"


# --- concurrent runs ---------------------------------------------------------------------------

THIS_PROCESS = f"process {os.getpid()} on "
REMEDY = "; wait for it, or stop it"


@pytest.mark.slow
def test_a_shard_that_another_process_runs_is_rejected_with_its_holder(paths):
    stage, _ = summing_stage()
    with stage_lock(paths.shard_lock(Shard(1, 3)), what="a test"):
        message = message_of(run, stage, paths, 1, error=LockedError)
        assert run(stage, paths, 0).waiting == [Shard(1, 3), Shard(2, 3)]
    assert message.startswith(f"shard 1/3 of sum is already running: {THIS_PROCESS}")
    assert message.endswith(REMEDY)


def test_the_whole_stage_is_rejected_while_a_shard_runs(paths):
    stage, _ = summing_stage()
    with stage_lock(paths.shard_lock(Shard(1, 3)), what="a test"):
        for force in (False, True):
            options = {"resolved_config": "", "force": force}
            message = message_of(run_stage, stage, paths, **options, error=LockedError)
            assert message.startswith(f"shard 1/3 of sum is already running: {THIS_PROCESS}")
    assert run_stage(stage, paths, resolved_config="").ran


@pytest.mark.slow
def test_a_shard_is_rejected_while_the_whole_stage_runs(paths):
    stage, _ = summing_stage()
    with stage_lock(paths.lock, what="a test"):
        message = message_of(run, stage, paths, 1, error=LockedError)
    assert message.startswith(f"sum is already running: {THIS_PROCESS}")
    assert message.endswith(REMEDY)


def test_force_never_discards_a_running_shard(paths):
    run(summing_stage(factor=2)[0], paths, 0)
    held = stage_lock(paths.shard_lock(Shard(0, 3)), what="a test")
    with held, pytest.raises(LockedError, match="shard 0/3 of sum is already running: "):
        run(summing_stage()[0], paths, 1, force=True)
    assert shards_in(paths.partial / "parts") == [Shard(0, 3)]


def test_a_sealed_shard_whose_lock_is_held_counts_as_unfinished(paths):
    stage, _ = summing_stage()
    run(stage, paths, 0, 2)
    with stage_lock(paths.shard_lock(Shard(0, 2)), what="a test"):
        outcome = run(stage, paths, 1, 2)
    assert (outcome.waiting, outcome.stage) == ([Shard(0, 2)], None)


def test_a_shard_that_finishes_after_the_publication_returns_the_result(paths, monkeypatch):
    stage, _ = summing_stage()
    run(stage, paths, 0, 2)
    waits = []

    @contextmanager
    def wait_and_let_another_publish(lock):
        waits.append(lock)
        if len(waits) == 2:
            run_original(stage, paths, Shard(1, 2), resolved_config="")
        yield

    run_original = shards.run_shard
    monkeypatch.setattr(shards, "wait_for_lock", wait_and_let_another_publish)
    outcome = run(stage, paths, 1, 2)
    assert (outcome.waiting, outcome.stage.ran) == ([], False)
    assert total(outcome.stage) == str(sum(NUMBERS))


def test_locks_of_other_results_are_ignored(paths):
    for name in ("my sum.lock", "my sum.shard-00001-of-00003.lock", "other.lock"):
        (paths.final.parent / name).touch()
    (paths.final.parent / "your sum.shard-00000-of-00002.lock").touch()
    (paths.final.parent / "shard-00000-of-00002.lock").touch()
    lock = paths.final.parent / "my sum.shard-00001-of-00003.lock"
    assert paths.shard_locks() == {Shard(1, 3): lock}


PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_shards import run, summing_stage
from a2cap.pipeline.engine.stage import StagePaths
outcome = run(summing_stage()[0], StagePaths(Path(sys.argv[2])), int(sys.argv[3]), 4)
print(bool(outcome.stage and outcome.stage.ran))
"""


@pytest.mark.slow
def test_exactly_one_of_several_concurrent_processes_publishes(paths):
    here = Path(__file__).parent
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, here, paths.final, str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    published = sorted(process.communicate()[0].strip() for process in processes)
    assert published == ["False", "False", "False", "True"]
    assert total(finished(summing_stage()[0], paths)) == str(sum(NUMBERS))
