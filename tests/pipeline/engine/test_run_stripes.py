"""Stripes of a stage share its parts, and the last one publishes the result of a single run."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from a2cap.data.errors import A2Error, LockedError
from a2cap.pipeline.engine import run
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import require_replaceable, run_stage, run_stripe
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.engine.status import status_of
from tests.data.messages import message_of

PARTS = ("0", "1", "2")
CONFIG = "count: {}\n"


def shared_stage():
    """Make a stage of three parts, one file each, which several processes can share."""

    def fill(directory, names):
        for name in names:
            (directory / name).write_text(name)

    def work(directory, inputs, events):
        fill(directory, PARTS)
        return []

    def share(stripe, directory, inputs, events):
        fill(directory, stripe.of(PARTS))
        return sum(not (directory / name).exists() for name in PARTS)

    return PreparedStage("count", 1, {}, {}, PARTS, work, share=share)


def run_of(stage, paths, number):
    return run_stripe(stage, paths, Stripe(number, 2), resolved_config=CONFIG)


def state_of(stage, paths):
    status = status_of(stage, paths, paths.final.parent, remarks=lambda folder: [folder.name])
    return status.state, status.why


def test_the_last_stripe_publishes_the_result_of_a_single_run(tmp_path):
    stage = shared_stage()
    paths = StagePaths.in_artifacts(tmp_path / "a", stage)
    require_replaceable(paths.final, stage.name)  # nothing is there
    first = run_of(stage, paths, 0)
    assert (first.missing, first.stage) == (1, None)
    assert state_of(stage, paths) == ("partial", ["no earlier result", paths.partial.name])
    last = run_of(stage, paths, 1)
    assert last.missing == 0
    assert last.stage.ran
    alone = StagePaths.in_artifacts(tmp_path / "b", stage)
    expected = run_stage(stage, alone, resolved_config=CONFIG)
    assert last.stage.manifest.digest == expected.manifest.digest
    assert state_of(stage, paths) == ("done", [paths.final.name])
    require_replaceable(paths.final, stage.name)  # an output of this stage may be made again
    assert not run_of(stage, paths, 0).stage.ran


def test_a_stripe_publishes_what_was_sealed_before_a_kill_and_adds_nothing(tmp_path, monkeypatch):
    stage = shared_stage()
    paths = StagePaths.in_artifacts(tmp_path, stage)
    run_of(stage, paths, 0)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(run, "_publish", Mock(side_effect=KeyboardInterrupt))
        run_of(stage, paths, 1)
    sealed = {path.relative_to(paths.partial) for path in paths.partial.rglob("*")}
    untouched = replace(stage, share=Mock(side_effect=AssertionError))
    assert run_of(untouched, paths, 0).stage.ran
    assert not run_of(untouched, paths, 1).stage.ran
    published = {path.relative_to(paths.final) for path in paths.final.rglob("*")}
    assert published == sealed - {Path(run.MADE_FROM)}


def test_a_stripe_that_another_one_overtakes_returns_its_result(tmp_path):
    stage = shared_stage()
    paths = StagePaths.in_artifacts(tmp_path, stage)

    def overtaken(*_):
        for number in (0, 1):
            run_of(stage, paths, number)
        return 0

    outcome = run_of(replace(stage, share=overtaken), paths, 1)  # its last event finds no folder
    assert (outcome.missing, outcome.stage.directory, outcome.stage.ran) == (0, paths.final, False)


def test_an_error_of_a_stripe_is_raised(tmp_path):
    stage = replace(shared_stage(), share=Mock(side_effect=FileNotFoundError(2, "none", "a.jpg")))
    with pytest.raises(FileNotFoundError, match="none"):
        run_of(stage, StagePaths.in_artifacts(tmp_path, stage), 0)


def test_work_that_cannot_be_shared_has_no_stripes(tmp_path):
    stage = replace(shared_stage(), share=None)
    paths = StagePaths.in_artifacts(tmp_path, stage)
    assert message_of(run_of, stage, paths, 0, error=A2Error) == (
        "stage count cannot run in shards; run it without --shard"
    )


def test_a_run_of_the_whole_or_with_force_excludes_one_of_a_part(tmp_path):
    stage = shared_stage()
    paths = StagePaths.in_artifacts(tmp_path, stage)
    with stage_lock(paths.lock, what="count"):
        message = message_of(run_of, stage, paths, 0, error=LockedError)
        assert message.startswith("count is already running: process ")
        assert state_of(stage, paths)[0] == "running"
    run_of(stage, paths, 0)
    with stage_lock(paths.partial / "unfinished" / "1.lock", what="part 1"):
        options = {"resolved_config": CONFIG, "force": True}
        message = message_of(run_stage, stage, paths, error=LockedError, **options)
        assert message.startswith("a part of count is already running: process ")
        state, (holder, remark) = state_of(stage, paths)
        assert (state, remark) == ("running", paths.partial.name)
        assert holder.startswith("process ")


def test_an_interrupted_run_with_force_is_partial(tmp_path):
    def fail(directory, inputs, events):
        raise A2Error("stopped")

    stage = shared_stage()
    paths = StagePaths.in_artifacts(tmp_path, stage)
    run_stage(stage, paths, resolved_config=CONFIG)
    failing = replace(stage, work=fail)
    options = {"resolved_config": CONFIG, "force": True}
    assert message_of(run_stage, failing, paths, error=A2Error, **options) == "stopped"
    assert state_of(stage, paths) == ("partial", ["interrupted run with --force"])
