"""Experiment: the stages that a changed setting or file reruns, and the reasons.

test_rerun_matrix.py covers every field; these tests use stages with results on disk.
"""

import json
import shutil

import pytest

from a2cap.data.errors import ConfigError, InputError
from a2cap.extract.detector import proposal_precision
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.engine.prepared_stage import StagePaths
from a2cap.pipeline.engine.status import UnfinishedStageError
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.plan import require_runnable
from tests.data.messages import message_of
from tests.data.sources.samples import tar_bytes


def states(opened):
    with opened:
        return {name: opened.status(name).state for name in opened.names}


def test_every_stage_of_a_finished_experiment_is_done(experiment):
    opened = experiment.open()
    assert opened.names == ["extract", "preprocess", "train-xe", "evaluate"]
    assert states(opened) == dict.fromkeys(opened.names, "done")


@pytest.mark.parametrize("stage", ["extract", "train-xe", "evaluate"])
def test_long_stages_write_their_progress_as_events(experiment, stage):
    lines = (experiment.directory(stage) / "events.jsonl").read_text().splitlines()
    tracked = [event for event in map(json.loads, lines) if event["event"] == "progress"]
    assert tracked
    assert any(event.get("done", event.get("step")) == event["total"] for event in tracked)


def test_another_number_of_threads_is_explained_and_reruns_nothing(experiment):
    with experiment.open("runtime.threads=2") as opened:
        status = opened.status("extract")
    assert (status.state, status.why) == ("done", ["threads 1 -> 2: only rounding would differ"])


def test_no_stage_of_a_new_experiment_is_done_and_the_command_that_is_needed_is_named(
    experiment, tmp_path
):
    with experiment.open(artifacts=tmp_path / "new") as opened:
        assert opened.status("extract").why == ["no earlier result"]
        assert message_of(opened.run, "train-xe", error=UnfinishedStageError) == (
            'train-xe needs extract, which is not finished; run "a2 extract" or "a2 run"'
        )
    assert states(experiment.open(artifacts=tmp_path / "new")) == {
        "extract": "to run",
        "preprocess": "to run",
        "train-xe": "waiting",
        "evaluate": "waiting",
    }


def test_an_ensemble_is_identified_by_content_and_reruns_evaluation(experiment, tmp_path):
    folder = shutil.copytree(experiment.directory("train-xe"), tmp_path / "another captioner")
    with experiment.open(override("evaluate.ensemble", (folder,))) as opened:
        assert opened.status("evaluate").why == ["inputs.model.2 changed"]
        first = opened.stage("evaluate").made_from.key
    (folder / "manifest.json").unlink()
    moved = folder.rename(tmp_path / "moved")
    with experiment.open(override("evaluate.ensemble", (moved,))) as opened:
        assert opened.stage("evaluate").made_from.key == first
    (moved / "model.json").write_text("{}")
    with experiment.open(override("evaluate.ensemble", (moved,))) as opened:
        assert opened.stage("evaluate").made_from.key != first


def test_coco_captions_take_their_splits_from_a_list(experiment, tmp_path):
    captions = override("data.annotations", experiment.scenes / "captions.json")
    split_list = tmp_path / "splits.txt"
    split_list.write_text("1 train\n2 val\n3 test\n")
    with experiment.open(captions, override("data.split_list", split_list)) as opened:
        assert sorted(opened.files.images) == [f"{number:012d}" for number in (1, 2, 3)]
        assert "split_list" in opened.stage("preprocess").inputs


def test_captions_in_tars_are_identified_by_content(memory, tmp_path):
    def key(text):
        config = load_config(overrides=[override("data.annotations", text)])
        with Experiment(config, tmp_path / "artifacts") as opened:
            return opened.stage("preprocess").made_from.key

    def members(caption):
        return tar_bytes({"a.jpg": b"", "a.txt": caption})

    tar, moved = tmp_path / "s-0.tar", tmp_path / "moved.tar"
    tar.write_bytes(members(b"a dog"))
    first = key(tmp_path / "s-{0..0}.tar")
    assert key(tar.rename(moved)) == first
    moved.write_bytes(members(b"a cat"))
    assert key(moved) != first
    memory.pipe("/experiment/s.tar", members(b"a dog"))
    remote = key("memory://experiment/s.tar")
    assert key("memory://experiment/s.tar") == remote
    memory.pipe("/experiment/s.tar", members(b"a cat"))
    assert key("memory://experiment/s.tar") != remote


def test_without_annotations_the_images_are_those_of_the_folder(experiment, tmp_path):
    (tmp_path / "own").mkdir()
    for name in ("b.jpg", "sub"):
        path = tmp_path / "own" / name
        path.write_bytes(b"x") if path.suffix else path.mkdir()
    (tmp_path / "own" / "sub" / "7.png").write_bytes(b"y")
    images = override("data.images", tmp_path / "own")
    with experiment.open(images, "data.annotations=null") as opened:
        assert opened.files.images == {
            "000000000007": tmp_path / "own" / "sub" / "7.png",
            "b": tmp_path / "own" / "b.jpg",
        }


@pytest.mark.parametrize(
    ("setting", "stage", "message"),
    [
        ("instances=null", "extract", "is not set; name the file with --set {}=FILE"),
        ("images=/no/folder", "extract", "is not a folder: '/no/folder'; check the path"),
    ],
)
def test_an_unusable_path_is_reported_with_its_option(experiment, setting, stage, message):
    field = f"data.{setting.partition('=')[0]}"
    with experiment.open(f"data.{setting}") as opened:
        reported = message_of(opened.stage, stage, error=ConfigError)
    assert reported == f"{field} {message.format(field)}"


def test_an_ensemble_folder_without_a_captioner_is_rejected(experiment, tmp_path):
    with experiment.open(override("evaluate.ensemble", (tmp_path,))) as opened:
        with pytest.raises(InputError) as raised:
            opened.stage("evaluate")
        with pytest.raises(InputError):
            require_runnable(opened, ["evaluate"])
    assert str(raised.value) == (
        f"evaluate.ensemble names no trained captioner: {str(tmp_path)!r} has no "
        'model.safetensors; name a directory that "a2 train" has finished, or one of photos, scenes'
    )


def test_an_output_path_with_other_content_is_never_replaced(experiment, tmp_path):
    for name in ("folder", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    trained = shutil.copytree(experiment.directory("train-xe"), tmp_path / "trained")
    before = sorted(tmp_path.rglob("*"))
    with experiment.open() as opened:
        for place in (tmp_path / "folder", tmp_path / "empty", tmp_path / "file", trained):
            assert message_of(opened.run, "extract", force=True, output=place) == (
                f"output {str(place)!r} exists and is not a result of extract; "
                "name a path that does not exist"
            )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "exact", "mixed"),
    [
        (("extract.boxes=detect",), "exact", "mixed"),
        (("extract.boxes=detect", "extract.precision=mixed"), "mixed", "mixed"),
        (("extract.boxes=given",), "exact", "exact"),
    ],
)
def test_the_key_has_the_precision_that_the_processor_computes(
    experiment, monkeypatch, settings, exact, mixed
):
    made = []
    for has_bfloat16 in (False, True):
        monkeypatch.setattr(
            proposal_precision, "has_bfloat16", lambda device, has=has_bfloat16: has
        )
        with experiment.open("extract.precision=auto", *settings) as opened:
            made.append(opened.stage("extract").made_from)
    assert [m.fields["extract"]["precision"] for m in made] == [exact, mixed]
    assert (made[0].key == made[1].key) is (exact == mixed)


@pytest.mark.parametrize("images", ["{0..1}.tar", "list.txt"])
def test_images_of_tars_and_lists_are_part_of_the_key_with_their_content(
    experiment, tmp_path, images
):
    def key(content):
        (tmp_path / "1.tar").write_bytes(tar_bytes({"2.jpg": content}))
        (tmp_path / "a.jpg").write_bytes(content)
        named = override("data.images", tmp_path / images)
        with experiment.open(named, "extract.boxes=detect") as opened:
            return opened.stage("extract").made_from.key

    (tmp_path / "0.tar").write_bytes(tar_bytes({"1.jpg": b"one"}))
    (tmp_path / "list.txt").write_text("a.jpg\n")
    assert key(b"two") == key(b"two") != key(b"new")


def test_the_status_of_an_unfinished_extraction_counts_its_shards(experiment, tmp_path):
    with experiment.open(artifacts=tmp_path) as opened:
        partial = StagePaths.in_artifacts(tmp_path, opened.stage("extract")).partial
        (partial / "features.lmdb" / "00000").mkdir(parents=True)
        status = opened.status("extract")
    assert (status.state, status.directory) == ("partial", partial)
    assert status.why == ["no earlier result", "finished shards of 1,024 images: 1"]
