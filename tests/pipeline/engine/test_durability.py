"""What a power cut leaves: nothing has its final name before all of it is on disk."""

import pytest
import torch

from a2cap.data.files.atomic import discard, replacing, write_durably
from a2cap.data.files.sealed_folder import seal
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import run_stage
from a2cap.pipeline.training.checkpoints import Checkpoints
from tests.recorded_disk import RecordedDisk


@pytest.fixture
def disk(monkeypatch, tmp_path):
    (tmp_path / "folder").mkdir()
    disk = RecordedDisk()
    disk.attach(monkeypatch)
    return disk


def replace_file(path):
    with replacing(path) as temporary:
        temporary.write_text("content")


WRITERS = {
    "a file": lambda folder: write_durably(folder / "x", b"content"),
    "x": lambda folder: replace_file(folder / "x"),
    "manifest.json": lambda folder: seal(folder, []),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_has_its_name_only_once_its_content_is_on_disk(disk, tmp_path, name):
    WRITERS[name](tmp_path / "folder")
    [rename] = disk.renames
    assert rename.lost_contents == set()
    assert rename.target not in disk.written
    assert disk.lost(tmp_path) == set()


def test_a_discarded_folder_has_lost_its_name_before_its_files(disk, tmp_path, monkeypatch):
    (tmp_path / "folder" / "file").touch()
    lost = []
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: lost.append(disk.lost(tmp_path)))
    discard(tmp_path / "folder")
    assert disk.renames[0].target == tmp_path / "folder.removed"
    assert "folder.removed" not in lost[-1]


def run(tmp_path, *, force=False):
    def work(directory, inputs, events):
        (directory / "total.txt").write_text("9")
        (directory / "log.txt").write_text("not an output")
        return []

    stage = PreparedStage("count", 1, {}, {}, ("total.txt",), work)
    paths = StagePaths(tmp_path / "folder" / "result")
    return run_stage(stage, paths, resolved_config="", force=force).directory


@pytest.mark.parametrize("force", [False, True])
def test_a_result_has_its_name_only_once_it_is_on_disk(disk, tmp_path, force):
    result = run(tmp_path)
    if force:
        disk.renames.clear()
        run(tmp_path, force=True)
    [sealed] = [rename for rename in disk.renames if rename.target.name == "manifest.json"]
    assert "total.txt" not in sealed.lost_contents
    [published] = [rename for rename in disk.renames if rename.target == result]
    files = ("total.txt", "manifest.json", "config.yaml")
    kept = {f"result/{name}" for name in files}
    assert kept & (published.lost_contents | published.lost_names) == set()
    assert (kept | {"result"}) & disk.lost(result.parent) == set()
    assert {path.name for path in disk.written} & {*files[1:], "made_from.json"} == set()


def test_a_checkpoint_has_its_name_only_once_it_is_on_disk(disk, tmp_path):
    checkpoints = Checkpoints(tmp_path / "folder")
    checkpoints.save(3, tensors={"x": torch.ones(2)}, state={"step": 3}, best_step=None)
    sealed, published = disk.renames
    assert sealed.target.name == "manifest.json"
    assert sealed.lost_contents == set()
    assert published.target == checkpoints.directory(3)
    assert published.lost_contents == set()
    assert published.lost_names == {published.target.name}
    assert disk.lost(tmp_path) == set()
