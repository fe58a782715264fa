"""Inputs of a stage: nothing is kept or published that was made of another content."""

import os
from pathlib import Path

import pytest

from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem, seal
from a2cap.pipeline.engine import inputs as module
from a2cap.pipeline.engine.hash_cache import HashCache
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import Outcome, run_stage
from tests.data.messages import message_of


@pytest.fixture
def images(tmp_path):
    """Write three images and return them as an input."""
    files = {str(number): tmp_path / "images" / f"{number}.jpg" for number in range(3)}
    (tmp_path / "images").mkdir()
    for path in files.values():
        path.write_text(path.name)
    cache = HashCache(tmp_path / "hashes.sqlite")
    yield cache.images(tmp_path / "images", files)
    cache.close()


@pytest.fixture
def paths(tmp_path):
    return StagePaths(tmp_path / "artifacts" / "total")


def run(paths, numbers, work=lambda: None, **options):
    """Run a stage that reads an input."""

    def write(directory, inputs, events):
        work()
        (directory / "total.txt").write_text("9")
        return []

    stage = PreparedStage("sum", 1, {}, {"numbers": numbers}, ("total.txt",), write)
    return run_stage(stage, paths, resolved_config="", **options)


def replace_content(path):
    """Change a byte, and set back size and modification time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_file(path):
    """Replace a file by one with another content, and set back the modification time."""
    before = path.stat()
    (path.parent / "new").write_bytes(bytes(before.st_size))
    (path.parent / "new").rename(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [replace_content, replace_file, os.unlink])
def test_an_input_that_changes_during_the_work_is_not_published(images, paths, change):
    first, _, third = images.files

    def change_two():
        change(first)
        change(third)

    assert message_of(run, paths, images, change_two) == (
        f"2 of 3 input files changed during the run: {str(first)!r}, {str(third)!r}; "
        "run the same command again"
    )
    assert not paths.final.exists()
    assert not (paths.partial / "manifest.json").exists()


@pytest.mark.parametrize(("count", "end"), [(5, "'4'"), (6, "'4' and 1 more")])
def test_five_changed_files_are_named(tmp_path, monkeypatch, count, end):
    monkeypatch.chdir(tmp_path)
    files = {Path(str(number)): ("digest", (0, 0, 0, 0)) for number in range(count)}
    message = message_of(Inputs({"x": Input(Path(), "", files)}).check)
    assert message == (
        f"{count} of {count} input files changed during the run: '0', '1', '2', '3', {end}; "
        "run the same command again"
    )


def test_an_input_that_changes_between_its_digest_and_the_work_is_detected(images, paths):
    replace_content(next(iter(images.files)))
    worked = []
    with pytest.raises(InputError, match="1 of 3 input files changed during the run"):
        run(paths, images, lambda: worked.append(True))
    assert worked == []


def test_only_files_in_doubt_are_read_again(images, paths, monkeypatch):
    first, *_ = images.files
    read = []
    digest = module.sha256_of
    monkeypatch.setattr(module, "sha256_of", lambda path: read.append(path) or digest(path))
    run(paths, images, lambda: os.utime(first))
    assert read == [first]


def test_the_work_can_check_the_files_of_a_commit(images):
    first, second, _ = images.files
    inputs = Inputs({"numbers": images})
    assert len(inputs) == 1
    replace_content(first)
    inputs.check([second, None])
    assert message_of(inputs.check, [first, second]) == (
        f"1 of 3 input files changed during the run: {str(first)!r}; run the same command again"
    )
    inputs.check([first.parent / "of no input"])


def test_a_damaged_file_of_a_result_is_named_before_the_work(tmp_path, images, paths):
    made = run(paths, images)
    (made.directory / "total.txt").write_text("8")
    numbers = made.as_input()
    worked = []
    message = message_of(run, StagePaths(tmp_path / "next"), numbers, lambda: worked.append(True))
    assert message == (
        f"{str(made.directory / 'total.txt')!r} differs from its digest in the manifest; run "
        f'"a2 verify --data {made.directory}", which names the command that restores it'
    )
    assert worked == []


@pytest.mark.parametrize("damage", ["truncated", "other digest", "no manifest"])
def test_a_damaged_inner_folder_of_a_result_is_named_before_the_work(tmp_path, damage):
    inner = tmp_path / "result" / "store"
    inner.mkdir(parents=True)
    (inner / "data").write_text("many records")
    seal(inner, ["data"])
    manifest = seal(tmp_path / "result", ["store"])
    outcome = Outcome(tmp_path / "result", manifest, ran=True)
    Inputs({"features": outcome.as_input()}).check()
    inputs = Inputs({"features": outcome.as_input()})
    if damage == "truncated":
        (inner / "data").write_text("few")
    elif damage == "other digest":
        seal(inner, [])
    else:
        (inner / "manifest.json").write_text("{")
    assert message_of(inputs.check).startswith(
        f"{str(inner)!r} differs from its digest in the manifest; "
    )


def test_a_manifest_that_changes_during_the_work_is_found(images, paths, tmp_path):
    made = run(paths, images)
    inputs = Inputs({"total": made.as_input()})
    inputs.check()
    seal(made.directory, ["total.txt"], skipped=[SkippedItem("1", "odd")])
    assert message_of(inputs.check).startswith("1 of 2 input files changed during the run: ")
