"""Errors of commands: one line on stderr and an exit code, before any work."""

import errno
import logging
import os
import re

import pytest

from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.prepared_stage import StagePaths
from tests.experiments import a2


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("caption x.jpg --model a --model b --boxes c", ["--model a", "--model b", "--boxes c"]),
        ("score a --references b", ["CAPTIONS a", "--references b"]),
        ("config diff a b", ["A a", "B b"]),
        ("human sheet a b --images c --output d", ["A a", "B b", "--images c"]),
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


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["caption", ""], "IMAGES..."),
        (["caption", "x.jpg", "--output", ""], "--output"),
        (["run", "--artifacts", ""], "--artifacts"),
        (["run", "--config", ""], "-c"),
    ],
)
def test_an_empty_path_is_not_the_working_folder(command, named):
    answer = a2(*command, code=2)
    assert answer.stderr.splitlines()[-1].startswith("Error: Invalid value for ")
    assert named in answer.stderr
    assert answer.stderr.endswith(": the path is empty; name a file or folder\n")


@pytest.mark.parametrize(
    ("command", "suggested"),
    [
        ("caption phto.png", "photo.png"),
        pytest.param("caption PHOTO.PNG", "photo.png", marks=pytest.mark.slow),
        pytest.param("caption photo.jpeg", "photo.png", marks=pytest.mark.slow),
        ("config diff photos/capton.yaml photo.yaml", "photos/caption.json"),
        ("config diff phtos/caption.json photo.yaml", "photos/caption.json"),
        ("runs --artifacts artefacts", None),  # nothing is missing
        ("evaluate -c photo.yml", "photo.yaml"),
        ("evaluate --set evaluate.baseline=photo.jsn", "photo.json"),
        ("verify phtos", "photos"),
        ("caption photo.png --model sceens", "scenes"),  # a bundled captioner
        ("score photo.json --references photo.json --metric photos", None),
        ("human tally phtos sheet.csv", "photos"),
        ("config explain photo.png", None),  # names a field, not a path
        ("caption 000000000042.jpg", None),  # another id is another image
        ("verify entirely-different", None),
    ],
)
def test_a_missing_path_is_answered_with_a_near_name(tmp_path, monkeypatch, command, suggested):
    (tmp_path / "photos").mkdir()
    for name in (
        "photo.png",
        "photo.json",
        "photo.yaml",
        "photos/caption.json",
        "000000000043.jpg",
    ):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    answer = a2(*command.split())
    suggestions = re.findall("; did you mean '(.*)'[?]$", answer.stderr, re.MULTILINE)
    assert suggestions == ([] if suggested is None else [suggested]), answer.stderr


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("photo.jpg", "a2 caption photo.jpg"),
        ("my photos", "a2 caption 'my photos'"),  # a folder
        ("gone.HEIC", "a2 caption gone.HEIC"),
        ("http://a.b/c", "a2 caption http://a.b/c"),
        ("x.yaml", "a2 run -c x.yaml"),
    ],
)
def test_a_file_in_place_of_a_command_is_answered_with_the_command(
    tmp_path, monkeypatch, word, command
):
    (tmp_path / "my photos").mkdir()
    monkeypatch.chdir(tmp_path)
    answer = a2(word, code=2)
    assert answer.stderr.endswith(f"Error: no command {word!r}; did you mean: {command}\n")


def test_a_refused_output_is_not_proposed_as_its_own_cure(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.parquet.jsonl").write_text("a letter\n")
    assert a2("caption", "a.jpg", "--output", "x.parquet").stderr == (
        "a2: not a file of captions: 'x.parquet.jsonl' has the line 'a letter'; name another "
        "--output\n"
    )


def test_a_web_address_is_not_an_image(copy):
    answer = a2("caption", "https://a.b/c.jpg", "--model", copy.directory("train-xe"), code=1)
    assert answer.stderr == ("a2: 'https://a.b/c.jpg' is a web address; download the image first\n")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "No space left on device: 'x'; free disk space, then run the command again"),
        (errno.ENOSPC, "No space left on device; free disk space, then run the command again"),
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
        raise OSError(number, os.strerror(number), *(["x"] if "'x'" in text else []))

    monkeypatch.setattr("a2cap.pipeline.cli.experiment.status.print_status", fail)
    assert a2("status", code=1).stderr == f"a2: {text}\n"


GPU_MEMORY = "out of GPU memory: {}; lower the batch size, or use a larger GPU"
GPU_LOST = "the GPU failed: {}; run the same command again"
CAPACITY = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.1 GiB"


@pytest.mark.parametrize(
    ("line", "rest", "text"),
    [
        (CAPACITY, ". Of the allocated memory 1 GiB. See the documentation\n", GPU_MEMORY),
        ("CUDA error: out of memory", "\nCUDA kernel errors might", GPU_MEMORY),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `f`", "", GPU_MEMORY),
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 402653184 bytes. Error code 12 (Cannot allocate memory)",
            "",
            "out of memory: 402,653,184 bytes at once; lower the batch size, or end other programs",
        ),
        ("CUDA error: unspecified launch failure", "\nCUDA kernel errors might", GPU_LOST),
    ],
)
def test_a_device_that_is_lost_or_too_small_is_one_line(monkeypatch, caplog, line, rest, text):
    def fail(*_, **__):
        raise RuntimeError(line + rest)

    monkeypatch.setattr("a2cap.pipeline.cli.experiment.status.print_status", fail)
    caplog.set_level(logging.DEBUG, "a2cap")
    assert a2("status", code=1).stderr == f"a2: {text.format(line)}\n"
    assert isinstance(caplog.records[-1].exc_info[1], RuntimeError)  # for --verbose


def test_status_shows_every_stage_though_weights_are_missing(copy):
    answer = copy.a2("status", "--set", "extract.weights=missing.pth", code=1)
    assert answer.stdout.splitlines()[:3] == [
        "extract        blocked",
        f"{'':<14} file of extract.weights not found: 'missing.pth'; check the path",
        f"preprocess     done     {copy.directory('preprocess')}",
    ]
    assert a2("status").stdout.startswith("extract        blocked\n")
    copy.a2("run", "--dry-run", "--set", "extract.weights=missing.pth", code=1)


def test_status_shows_every_stage_though_a_manifest_is_damaged(copy):
    path = copy.directory("train-xe") / "manifest.json"
    path.write_text("{}")
    answer = copy.a2("status", code=1)
    lines = answer.stdout.splitlines()
    assert f"preprocess     done     {copy.directory('preprocess')}" in lines
    assert any(line.strip().startswith("manifest is unreadable: ") for line in lines)


@pytest.mark.parametrize("content", ["{", ""])
def test_damaged_scores_of_a_finished_evaluation_are_named(copy, content):
    folder = copy.directory("evaluate")
    (folder / "metrics.json").write_text(content)
    assert copy.a2("run", code=1).stderr.endswith(
        f'run "a2 verify --data {folder}", which names the command that restores it\n'
    )


def test_a_path_that_cannot_be_written_is_reported(experiment, tmp_path):
    (tmp_path / "file").write_text("no folder")
    place = tmp_path / "file" / "artifacts"
    assert a2("status", "-c", experiment.config_file, "--artifacts", place, code=1).stderr == (
        f"a2: Not a directory: {str(place)!r}; check the path, then run the command again\n"
    )


def test_a_stage_that_another_process_runs_is_rejected_with_its_holder(copy):
    lock = StagePaths(copy.directory("extract"), shared=True).lock
    with stage_lock(lock, what="a test"):
        answer = copy.a2("extract", "--force")
        status = copy.a2("status", "--explain")
    assert answer.exit_code == 75
    assert answer.stderr.startswith(f"a2: extract is already running: process {os.getpid()} on ")
    assert answer.stderr.endswith("; wait for it, or stop it\n")
    assert "extract        running" in status.stdout
    assert f"process {os.getpid()} on " in status.stdout
