"""Running a stage: complete or absent, run once, resumed, replaced, locked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import SkippedItem, read_manifest
from a2cap.pipeline.engine import run as running
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import run_stage
from tests.data.messages import message_of


def counting_stage(*, factor=2, digest="d1", fail_after=None, skipped=(), version=1):
    """Make a stage that writes ten numbers, one file each, and resumes after existing files."""
    made = []

    def work(directory, inputs, events):
        for number in range(10):
            path = directory / f"{number}.txt"
            if not path.exists():
                if fail_after is not None and len(made) == fail_after:
                    raise RuntimeError("killed")
                path.write_text(str(number * factor))
                made.append(number)
        (directory / "total.txt").write_text(
            str(sum(int((directory / f"{n}.txt").read_text()) for n in range(10)))
        )
        return list(skipped)

    stage = PreparedStage(
        name="count",
        version=version,
        fields={"count": {"factor": factor}},
        inputs={"numbers": Input(Path("numbers"), digest)},
        outputs=("total.txt",),
        work=work,
    )
    return stage, made


def start(stage, paths, **options):
    return run_stage(stage, paths, resolved_config="count: {}\n", **options)


def run(stage, artifacts, **options):
    return start(stage, StagePaths.in_artifacts(artifacts, stage), **options)


def test_a_finished_stage_contains_outputs_manifest_config_and_events(tmp_path):
    stage, _ = counting_stage()
    outcome = run(stage, tmp_path)
    assert outcome.ran
    assert outcome.directory == tmp_path / "count" / stage.made_from.key
    assert (outcome.directory / "total.txt").read_text() == "90"
    assert (outcome.directory / "config.yaml").read_text() == "count: {}\n"
    events = [json.loads(x) for x in (outcome.directory / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "end"]
    assert outcome.manifest.made_from == stage.made_from
    assert not StagePaths(outcome.directory).partial.exists()
    assert not (outcome.directory / "made_from.json").exists()


def idle_stage():
    """Make the same stage, whose work fails the test if it begins."""
    return replace(counting_stage()[0], work=lambda *_: pytest.fail("the work begins again"))


def test_a_second_run_does_nothing(tmp_path):
    first = run(counting_stage()[0], tmp_path)
    assert run(idle_stage(), tmp_path) == replace(first, ran=False)


def test_an_interrupted_run_leaves_no_result_and_the_next_run_resumes(tmp_path):
    stage, _ = counting_stage(fail_after=4)
    with pytest.raises(RuntimeError, match="killed"):
        run(stage, tmp_path)
    assert not StagePaths.in_artifacts(tmp_path, stage).final.exists()
    stage, made = counting_stage()
    outcome = run(stage, tmp_path)
    assert made == [4, 5, 6, 7, 8, 9]
    uninterrupted = run(counting_stage()[0], tmp_path / "other")
    assert outcome.manifest.digest == uninterrupted.manifest.digest


@pytest.mark.parametrize(
    ("force", "first", "message"),
    [(False, 3, "continues from three numbers"), (True, 0, "starting")],
)
def test_a_first_run_begins_with_earlier_work_unless_forced(
    tmp_path, caplog, force, first, message
):
    def begin(partial):
        for number in range(3):
            (partial / f"{number}.txt").write_text(str(number * 2))

    stage, made = counting_stage()
    stage = replace(stage, note="continues from three numbers", begin=begin)
    with caplog.at_level("INFO"):
        outcome = run(stage, tmp_path, force=force)
    assert caplog.messages[0] == f"count: {message}"
    assert made == list(range(first, 10))
    assert (outcome.directory / "total.txt").read_text() == "90"


def test_a_run_killed_between_manifest_and_rename_is_published_without_work(tmp_path):
    stage, _ = counting_stage()
    outcome = run(stage, tmp_path)
    paths = StagePaths(outcome.directory)
    paths.final.rename(paths.partial)
    assert run(idle_stage(), tmp_path) == outcome


@pytest.mark.parametrize("force", [True, False])
def test_an_interrupted_forced_run_is_resumed_by_the_next_run(tmp_path, caplog, force):
    paths = StagePaths(run(counting_stage()[0], tmp_path).directory)
    (paths.final / "total.txt").write_text("old")
    stage, _ = counting_stage(fail_after=4)
    with pytest.raises(RuntimeError):
        run(stage, tmp_path, force=True)
    assert (paths.final / "total.txt").read_text() == "old"
    assert paths.final.with_name(f"{paths.final.name}.forced.partial").is_dir()
    stage, made = counting_stage()
    with caplog.at_level("INFO"):
        assert run(stage, tmp_path, force=force).ran
    assert caplog.messages == ["count: resuming an earlier run"]
    assert made == [4, 5, 6, 7, 8, 9]
    assert (paths.final / "total.txt").read_text() == "90"
    assert not run(stage, tmp_path).ran
    assert list(paths.final.parent.iterdir()) == [paths.final]


def test_damaged_unfinished_work_is_reported_and_discarded_by_force(tmp_path):
    stage, _ = counting_stage(fail_after=4)
    paths = StagePaths.in_artifacts(tmp_path, stage)
    for force in (False, True):
        with pytest.raises(RuntimeError):
            run(stage, tmp_path, force=force)
        partial = replace(paths, forced=force).partial
        (partial / "made_from.json").write_text("[")
        if not force:
            assert message_of(run, stage, tmp_path, error=A2Error) == (
                f"unfinished work is damaged: {str(partial / 'made_from.json')!r} (Expecting "
                f"value: line 1 column 2 (char 1)); delete {str(partial)!r}, or use --force to "
                "discard it"
            )
    stage, made = counting_stage()
    run(stage, tmp_path, force=True)
    assert len(made) == 10


def test_a_result_set_aside_by_a_killed_run_is_restored_before_the_next_forced_run(tmp_path):
    paths = StagePaths(run(counting_stage()[0], tmp_path).directory)
    paths.final.rename(paths.replaced)
    stage, _ = counting_stage(fail_after=3)
    with pytest.raises(RuntimeError):
        run(stage, tmp_path, force=True)
    assert (paths.final / "total.txt").read_text() == "90"
    assert not paths.replaced.exists()


@pytest.mark.parametrize("changed", [{"factor": 3}, {"digest": "d2"}, {"version": 2}], ids=str)
def test_a_changed_parameter_input_or_version_gives_another_result(tmp_path, changed):
    first = run(counting_stage()[0], tmp_path)
    second = run(counting_stage(**changed)[0], tmp_path)
    assert second.ran
    assert second.directory != first.directory
    assert first.directory.exists()


def test_an_output_path_with_the_result_of_other_settings_is_rejected(tmp_path):
    paths = StagePaths(tmp_path / "my store")
    start(counting_stage()[0], paths)
    assert message_of(start, counting_stage(factor=3)[0], paths, error=A2Error) == (
        f"{str(paths.final)!r} contains the result of other settings (count.factor 2 -> 3); "
        "name another path, or use --force to replace it"
    )


@pytest.mark.parametrize("is_complete", [False, True])
def test_unfinished_work_of_other_settings_is_rejected(tmp_path, is_complete):
    paths = StagePaths(tmp_path / "store")
    if is_complete:
        start(counting_stage()[0], paths)
        paths.final.rename(paths.partial)
    else:
        with pytest.raises(RuntimeError):
            start(counting_stage(fail_after=2)[0], paths)
    assert message_of(start, counting_stage(factor=3)[0], paths, error=A2Error) == (
        f"unfinished work of other settings in {str(paths.partial)!r} (count.factor 2 -> 3); "
        "name another path, or use --force to discard it"
    )
    assert not paths.final.exists()
    assert start(counting_stage(factor=3)[0], paths, force=True).ran


def test_skipped_items_are_counted_and_listed(tmp_path):
    reasons = {str(number): f"no such image {number}" for number in range(150)}
    stage, _ = counting_stage(skipped=[SkippedItem(*item) for item in reasons.items()])
    outcome = run(stage, tmp_path)
    assert len(outcome.manifest.skipped) == 150
    assert read_manifest(outcome.directory).reasons == reasons


@pytest.mark.parametrize("named", [None, "a file"])
def test_a_disk_error_names_a_file_or_the_partial_directory(tmp_path, named):
    def work(directory, inputs, events):
        raise OSError(28, "No space left on device", named)

    stage = replace(counting_stage()[0], work=work)
    with pytest.raises(OSError, match="No space left") as raised:
        run(stage, tmp_path)
    partial = StagePaths.in_artifacts(tmp_path, stage).partial
    assert raised.value.filename == (named or str(partial))


def test_a_stage_that_another_process_finished_meanwhile_is_not_run_again(tmp_path, monkeypatch):
    stage, made = counting_stage()
    first = run(stage, tmp_path)
    answers, finish = [None], running.finished
    monkeypatch.setattr(running, "finished", lambda *a: answers.pop() if answers else finish(*a))
    again = run(stage, tmp_path)
    assert (again.ran, again.directory) == (False, first.directory)
    assert len(made) == 10


def test_a_manifest_without_the_right_to_read_it_names_the_permissions(tmp_path, monkeypatch):
    stage, _ = counting_stage()
    run(stage, tmp_path)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert message_of(run, stage, tmp_path, error=A2Error).endswith(
        "([Errno 13] Permission denied); fix its permissions"
    )
