"""Errors of commands: one line on stderr and an exit code, before any work."""

import errno
import json
import os
import re
import shutil

import pytest

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.stage import StagePaths
from tests.experiments import NO_JAVA, a2, images_of, settings

NO_WEIGHTS = (
    "no detector weights are named: extract.weights is null; name a file with "
    "--set extract.weights=FILE (of any known layout: docs/guide/extraction.md)"
)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("null", NO_WEIGHTS),
        ("none.pkl", "file of extract.weights not found: 'none.pkl'; check the path"),
    ],
)
def test_missing_weights_are_reported(experiment, tmp_path, weights, message):
    place = ("--artifacts", tmp_path / "artifacts", "--images", experiment.scenes / "images")
    named = settings(f"extract.weights={weights}")
    answer = a2("extract", *place, "--output", tmp_path / "store", *named)
    assert (answer.exit_code, answer.stderr) == (1, f"a2: {message}\n")
    assert not list(tmp_path.glob("store*"))


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("caption x.jpg --model a --model b --boxes c", ["--model a", "--model b", "--boxes c"]),
        ("evaluate --results a --references b --output c", ["--results a", "--references b"]),
        ("config diff a b", ["A a", "B b"]),
        ("human sheet a b --images c --output d", ["A a", "B b", "--images c"]),
        (
            "submit --name n --val-info a --test-info b --val-results c --test-results d",
            ["--val-info a", "--test-info b", "--val-results c", "--test-results d"],
        ),
    ],
)
def test_all_wrong_paths_are_reported_at_once(tmp_path, monkeypatch, command, missing):
    monkeypatch.chdir(tmp_path)
    answer = a2(*command.split())
    lines = [f"  {option} {path!r}" for option, path in map(str.split, missing)]
    assert answer.exit_code == 1
    assert answer.stderr.splitlines() == [
        f"a2: {len(missing)} paths do not exist; check them:",
        *lines,
    ]


def test_a_web_address_is_not_an_image(copy):
    answer = a2("caption", "https://a.b/c.jpg", "--model", copy.directory("train-xe"))
    assert answer.exit_code == 1
    assert answer.stderr == ("a2: 'https:/a.b/c.jpg' is a web address; download the image first\n")


@pytest.mark.parametrize("command", ["run", "preprocess", "evaluate"])
def test_without_java_nothing_is_started(experiment, tmp_path, without_java, command):
    answer = a2(command, "-c", experiment.config_file, "--artifacts", tmp_path / "new")
    assert answer.exit_code == 1
    assert answer.stderr == f"a2: {NO_JAVA}\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["hashes.sqlite"]


def test_without_java_external_captions_are_not_scored(tmp_path, without_java):
    files = ("--results", __file__, "--references", __file__)  # they exist
    answer = a2("evaluate", *files, "--output", tmp_path / "scores")
    assert (answer.exit_code, answer.stderr) == (1, f"a2: {NO_JAVA}\n")
    assert not (tmp_path / "scores").exists()


def test_training_before_extraction_names_the_command(experiment, tmp_path):
    answer = a2("train", "-c", experiment.config_file, "--artifacts", tmp_path / "new")
    assert answer.exit_code == 1
    assert answer.stderr == (
        'a2: train-xe needs extract, which is not finished; run "a2 extract" or "a2 run"\n'
    )


def without_image(store, image_id):
    """Replace a store by one that lacks an image."""
    whole = FeatureStore(store)
    with FeatureWriter(store.with_name("fewer"), dtype=whole.seal.dtype) as writer:
        for name in whole:
            if name != image_id:
                writer.add(name, whole[name])
        writer.seal()
    shutil.rmtree(store)
    store.with_name("fewer").rename(store)
    # else the new seal would be damage
    manifest = store.with_name("manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"checksums": {}}))


@pytest.mark.parametrize(
    ("command", "stages", "split"),
    [("train", ["train-xe"], "train"), ("train", ["train-xe"], "val"), ("evaluate", [], "test")],
)
def test_an_image_without_features_is_reported(copy, command, stages, split):
    store = copy.directory("extract") / "features.lmdb"
    lost = images_of(copy.experiment.scenes, split)[0]
    without_image(store, lost)
    copy.delete("evaluate", *stages)
    answer = copy.a2(command)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f'a2: no features for 1 images in {str(store)!r}: {lost!r}; run "a2 extract" first\n'
    )


def give_another_vocabulary(model):
    """Write another vocabulary beside a model; return the expected message."""
    trained_with = Vocabulary.load(model / "vocabulary.json")
    other = Vocabulary.from_counts({"cat": 9, "dog": 9}, "karpathy", min_count=1)
    other.save(model / "vocabulary.json")
    return (
        f"a2: vocabulary does not match the model: {str(model)!r} has vocabulary "
        f"{other.digest[:12]}, the model was trained with {trained_with.digest[:12]}; "
        "use the vocabulary.json it was trained with\n"
    )


def test_captioning_rejects_another_vocabulary_than_the_model_s(copy):
    message = give_another_vocabulary(copy.directory("train-xe"))
    (copy.directory("train-xe") / "manifest.json").unlink()  # with which it would be damage
    answer = a2("caption", "x.jpg", "--model", copy.directory("train-xe"))
    assert (answer.exit_code, answer.stderr) == (1, message)


@pytest.mark.slow
def test_an_error_of_the_model_is_reported_in_one_line(copy):
    slots = ("model.alignment.mask_network=linear", "model.alignment.mask_slots=1")
    answer = copy.a2("train", *settings(*slots))
    assert answer.exit_code == 1
    assert re.fullmatch(
        r"a2: an image has \d+ regions, the linear mask network has 1 slots; "
        "raise model.alignment.mask_slots and retrain, or set "
        "model.alignment.mask_network to bilinear\n",
        answer.stderr,
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "No space left on device: 'x'; free disk space, then run the command again"),
        (errno.EACCES, "Permission denied: 'x'; fix its permissions, or name another path"),
        (errno.EROFS, "Read-only file system: 'x'; fix its permissions, or name another path"),
        (
            errno.EMFILE,
            "Too many open files: 'x'; "
            'raise the limit with "ulimit -n", then run the command again',
        ),
        (errno.EIO, "Input/output error: 'x'; check the disk, then run the command again"),
        (errno.ENAMETOOLONG, "File name too long: 'x'; check the path, then run the command again"),
    ],
)
def test_the_remedy_fits_the_error_of_the_system(monkeypatch, number, text):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number), "x")

    monkeypatch.setattr("a2cap.pipeline.cli.experiment.status.print_status", fail)
    answer = a2("status")
    assert (answer.exit_code, answer.stderr) == (1, f"a2: {text}\n")


def test_a_path_that_cannot_be_written_is_reported(experiment, tmp_path):
    (tmp_path / "file").write_text("no folder")
    place = tmp_path / "file" / "artifacts"
    answer = a2("status", "-c", experiment.config_file, "--artifacts", place)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: Not a directory: {str(place)!r}; check the path, then run the command again\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported(experiment, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o555)
    answer = a2(
        "preprocess", "-c", experiment.config_file, "--artifacts", tmp_path / "mine" / "artifacts"
    )
    assert answer.exit_code == 1
    assert answer.stderr.endswith(
        f"a2: cannot write in {str(tmp_path / 'mine')!r} (Permission denied); "
        "fix its permissions, or name another folder\n"
    )


def test_a_stage_that_another_process_runs_is_rejected_with_its_holder(copy):
    lock = StagePaths.of_result(copy.directory("extract")).lock
    with stage_lock(lock, what="a test"):
        answer = copy.a2("extract", "--force")
        status = copy.a2("status", "--explain")
    assert answer.exit_code == 75
    assert answer.stderr.startswith(f"a2: extract is already running: process {os.getpid()} on ")
    assert answer.stderr.endswith("; wait for it, or stop it\n")
    assert "extract      running" in status.stdout
    assert f"process {os.getpid()} on " in status.stdout
