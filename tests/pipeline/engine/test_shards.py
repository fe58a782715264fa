"""A stage in shards: each is done once, the last publishes, and none runs beside the whole."""

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
from a2cap.pipeline.engine.stage import Input, ShardWork, Stage, StagePaths

NUMBERS = range(20)


def summing_stage(*, factor=1, fail_in=None, skipped=()):
    """Sums twenty numbers: the shards write parts of them, and the work joins those it finds."""
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

    def work(directory, events):
        parts = directory / "parts"
        parts.mkdir(exist_ok=True)
        seals = [parts / shard.folder / "seal.json" for shard in shards_in(parts)]
        found = [json.loads(seal.read_text()) for seal in seals] or [
            [number * factor for number in NUMBERS]
        ]
        (parts / "total.txt").write_text(str(sum(map(sum, found))))
        return list(skipped)

    stage = Stage(
        name="sum",
        code_version=1,
        params={"sum": {"factor": factor}},
        inputs={"numbers": Input(Path("numbers"), "d1")},
        outputs={"parts": lambda path: (path / "total.txt").read_text()},
        work=work,
        shards=ShardWork("parts", fill),
    )
    return stage, made


@pytest.fixture
def place(tmp_path):
    return StagePaths(tmp_path / "my sum")


def run(stage, place, number, count=3, **options):
    return run_shard(stage, place, Shard(number, count), resolved_config="", **options)


def total(outcome):
    return outcome.manifest.outputs["parts"]


def test_the_shard_that_ends_last_publishes_the_stage(place):
    stage, made = summing_stage(skipped=[SkippedItem("7", "odd")])
    first = run(stage, place, 2)
    assert (first.shard, first.skipped, first.stage) == (Shard(2, 3), 1, None)
    assert first.waiting == [Shard(0, 3), Shard(1, 3)]
    assert run(stage, place, 0).waiting == [Shard(1, 3)]
    assert not place.final.exists()
    last = run(stage, place, 1)
    assert last.waiting == []
    assert last.stage.ran
    assert last.stage.directory == place.final
    assert total(last.stage) == str(sum(NUMBERS))
    assert made == [2, 0, 1]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_shards_is_in_no_key_and_in_no_digest(place, tmp_path, count):
    stage, _ = summing_stage()
    for number in range(count):
        outcome = run(stage, place, number, count)
    whole = run_stage(stage, StagePaths(tmp_path / "whole"), resolved_config="")
    assert outcome.stage.manifest.pre_image == whole.manifest.pre_image
    assert outcome.stage.manifest.digest == whole.manifest.digest


def test_once_published_a_shard_has_nothing_to_do(place):
    stage, made = summing_stage()
    for number in (0, 1, 2, 1):
        outcome = run(stage, place, number)
    assert not outcome.stage.ran
    assert made == [0, 1, 2]


def test_a_shard_is_done_once(place):
    stage, made = summing_stage()
    run(stage, place, 0)
    assert run(stage, place, 0).waiting == [Shard(1, 3), Shard(2, 3)]
    assert made == [0]


def test_a_shard_that_failed_is_made_again_and_the_others_stay(place):
    stage, made = summing_stage(fail_in=Shard(1, 3))
    run(stage, place, 0)
    with pytest.raises(RuntimeError):
        run(stage, place, 1)
    assert run(stage, place, 2).waiting == [Shard(1, 3)]
    again, made_again = summing_stage()
    assert run(again, place, 1).stage.ran
    assert (made, made_again) == ([0, 2], [1])


def test_what_the_last_shard_could_not_publish_any_later_run_does(tmp_path):
    for name, later in (
        ("a shard", lambda stage, place: run(stage, place, 0, 2).stage),
        ("the stage", lambda stage, place: run_stage(stage, place, resolved_config="")),
    ):
        stage, _ = summing_stage()
        unlucky = replace(stage, work=lambda directory, events: 1 / 0)
        there = StagePaths(tmp_path / name)
        run(unlucky, there, 0, 2)
        with pytest.raises(ZeroDivisionError):
            run(unlucky, there, 1, 2)
        outcome = later(stage, there)
        assert outcome.ran
        assert total(outcome) == str(sum(NUMBERS))


def test_the_shards_tell_what_they_did(place):
    stage, _ = summing_stage()
    run(stage, place, 0, 2)
    folder = place.partial / "parts" / Shard(0, 2).folder
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "end"]
    assert {event["shard"] for event in events} == {"0/2"}


def test_force_makes_a_shard_again_beside_the_old_result(place):
    for number in range(2):
        run(summing_stage()[0], place, number, 2)
    stage, made = summing_stage()
    assert run(stage, place, 0, 2, force=True).waiting == [Shard(1, 2)]
    assert finished(stage, place) is not None
    assert run(stage, place, 0, 2, force=True).waiting == [Shard(1, 2)]
    assert run(stage, place, 1, 2, force=True).stage.ran
    assert made == [0, 0, 1]
    assert not place.partial.exists()


def test_force_discards_unfinished_work_of_other_settings(place):
    run(summing_stage(factor=2)[0], place, 0)
    stage, _ = summing_stage()
    with pytest.raises(A2Error) as raised:
        run(stage, place, 0)
    assert str(raised.value) == (
        f"unfinished work of other settings in {str(place.partial)!r} (sum.factor 2 -> 1); "
        "name another place, or use --force to discard it"
    )
    assert run(stage, place, 1, force=True).waiting == [Shard(0, 3), Shard(2, 3)]
    assert shards_in(place.partial / "parts") == [Shard(1, 3)]


def test_another_number_of_shards_is_refused(place):
    stage, _ = summing_stage()
    run(stage, place, 0, 3)
    with pytest.raises(A2Error) as raised:
        run(stage, place, 0, 4)
    assert str(raised.value) == (
        f"unfinished work in {str(place.partial)!r} is in shards of 3, not of 4; "
        "finish it so, or remove it"
    )


def test_unfinished_work_that_is_not_in_shards_is_refused(place):
    stage, _ = summing_stage()
    (place.partial / "parts").mkdir(parents=True)
    (place.partial / "parts" / "data.mdb").write_bytes(b"")
    with pytest.raises(A2Error) as raised:
        run(stage, place, 0)
    assert str(raised.value) == (
        f"unfinished work in {str(place.partial)!r} is not in shards; "
        "finish it without --shard, or remove it"
    )


def test_a_stage_without_shards_says_so(place):
    stage, _ = summing_stage()
    with pytest.raises(A2Error) as raised:
        run(replace(stage, shards=None), place, 0)
    assert str(raised.value) == "sum is not done in shards; run it as a whole"


# --- at the same time ---------------------------------------------------------------------------

US = f"process {os.getpid()} on "
REMEDY = "; wait for it, or stop it"


def test_a_shard_that_another_process_is_at_is_refused_with_its_holder(place):
    stage, _ = summing_stage()
    with stage_lock(place.shard_lock(Shard(1, 3)), what="a test"):
        with pytest.raises(LockedError) as raised:
            run(stage, place, 1)
        assert run(stage, place, 0).waiting == [Shard(1, 3), Shard(2, 3)]
    assert str(raised.value).startswith(f"shard 1/3 of sum is already running: {US}")
    assert str(raised.value).endswith(REMEDY)


def test_the_whole_is_refused_while_a_process_is_at_a_shard(place):
    stage, _ = summing_stage()
    with stage_lock(place.shard_lock(Shard(1, 3)), what="a test"):
        for force in (False, True):
            with pytest.raises(LockedError) as raised:
                run_stage(stage, place, resolved_config="", force=force)
            assert str(raised.value).startswith(f"shard 1/3 of sum is already running: {US}")
    assert run_stage(stage, place, resolved_config="").ran


def test_a_shard_is_refused_while_a_process_is_at_the_whole(place):
    stage, _ = summing_stage()
    with stage_lock(place.lock, what="a test"), pytest.raises(LockedError) as raised:
        run(stage, place, 1)
    assert str(raised.value).startswith(f"sum is already running: {US}")
    assert str(raised.value).endswith(REMEDY)


def test_force_discards_nothing_that_a_process_is_at(place):
    run(summing_stage(factor=2)[0], place, 0)
    held = stage_lock(place.shard_lock(Shard(0, 3)), what="a test")
    with held, pytest.raises(LockedError, match="shard 0/3 of sum is already running: "):
        run(summing_stage()[0], place, 1, force=True)
    assert shards_in(place.partial / "parts") == [Shard(0, 3)]


def test_a_shard_that_is_sealed_but_still_held_is_waited_for(place):
    stage, _ = summing_stage()
    run(stage, place, 0, 2)
    with stage_lock(place.shard_lock(Shard(0, 2)), what="a test"):
        outcome = run(stage, place, 1, 2)
    assert (outcome.waiting, outcome.stage) == ([Shard(0, 2)], None)


def test_a_shard_that_ends_after_another_has_published_says_where(place, monkeypatch):
    stage, _ = summing_stage()
    run(stage, place, 0, 2)
    moments = []

    @contextmanager
    def queue_and_be_late(lock):
        moments.append(lock)
        if len(moments) == 2:
            run_beside(stage, place, Shard(1, 2), resolved_config="")
        yield

    run_beside = shards.run_shard
    monkeypatch.setattr(shards, "wait_for_lock", queue_and_be_late)
    outcome = run(stage, place, 1, 2)
    assert (outcome.waiting, outcome.stage.ran) == ([], False)
    assert total(outcome.stage) == str(sum(NUMBERS))


def test_locks_of_other_places_are_none_of_ours(place):
    for name in ("my sum.lock", "my sum.shard-00001-of-00003.lock", "other.lock"):
        (place.final.parent / name).touch()
    (place.final.parent / "your sum.shard-00000-of-00002.lock").touch()
    (place.final.parent / "shard-00000-of-00002.lock").touch()
    lock = place.final.parent / "my sum.shard-00001-of-00003.lock"
    assert place.shard_locks() == {Shard(1, 3): lock}


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
def test_of_processes_that_run_at_once_exactly_one_publishes(place):
    here = Path(__file__).parent
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, here, place.final, str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    said = sorted(process.communicate()[0].strip() for process in processes)
    assert said == ["False", "False", "False", "True"]
    assert total(finished(summing_stage()[0], place)) == str(sum(NUMBERS))
