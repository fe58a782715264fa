"""Captions in files: what is appended, what a second run skips, and what is refused."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from a2cap.data.errors import InputError, LockedError
from a2cap.data.regions import Regions
from a2cap.pipeline.captioning import caption_output as caption_output_module
from a2cap.pipeline.captioning.caption_images import CaptionedImage
from a2cap.pipeline.captioning.caption_output import caption_output
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.cli.main import cli
from tests.data.messages import message_of


def line(name, caption="a dog", model="photos"):
    beams = [{"caption": caption, "score": -1.5}]
    return {"image": name, "model": model, "caption": caption, "beams": beams}


def rows(path):
    if path.suffix == ".jsonl":
        return [json.loads(text) for text in path.read_text().splitlines()]
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


@pytest.fixture(params=["captions.jsonl", "captions.parquet"])
def path(request, tmp_path):
    if request.param.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    return tmp_path / request.param


def test_a_second_run_adds_to_the_first(path):
    for name in ("a.jpg", "b.jpg"):
        with caption_output(path, model="photos") as output:
            assert output.has(Path("a.jpg")) == (name == "b.jpg")
            assert not output.has(Path("b.jpg"))
            output.write(Path(name), line(name))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_lines_are_there_at_once_and_half_a_line_is_written_again(tmp_path):
    path = tmp_path / "captions.jsonl"
    with caption_output(path, model="photos") as output:
        output.write(Path("a.jpg"), line("a.jpg"))
        assert rows(path) == [line("a.jpg")]
    with path.open("a") as file:
        file.write('{"image": "b.jpg", "capt')
    with caption_output(path, model="photos") as output:
        assert not output.has(Path("b.jpg"))
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]


def test_a_run_of_parquet_that_was_killed_leaves_its_lines(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "captions.parquet"
    (tmp_path / "captions.parquet.jsonl").write_text(f"{json.dumps(line('a.jpg'))}\n")
    with caption_output(path, model="photos") as output:
        assert output.has(Path("a.jpg"))
    assert rows(path) == [line("a.jpg")]


def test_every_member_of_a_line_may_be_a_column(a2):
    a2("a.jpg", "--output", "x.jsonl", "--set", "evaluate.beam_size=2")
    [row] = rows(Path("x.jsonl"))
    assert row["settings"] == "beam_size=2"
    assert row.keys() == caption_output_module._COLUMNS


def test_sidecars_lie_beside_their_images(tmp_path):
    image = tmp_path / "dog.jpg"
    output = caption_output(Path("sidecars"), model="photos")
    assert not output.has(image)
    output.write(image, line(str(image)))
    assert (tmp_path / "dog.txt").read_text() == "a dog\n"
    assert output.has(image)
    assert not caption_output(Path("sidecars"), model="photos", force=True).has(image)


def test_two_images_of_one_name_have_two_sidecars(tmp_path):
    images = [tmp_path / name for name in ("dog.jpg", "dog.PNG")]
    images[0].touch()
    output = caption_output(Path("sidecars"), model="photos")
    output.write(images[0], line(str(images[0]), "a dog"))
    assert (tmp_path / "dog.txt").read_text() == "a dog\n"
    images[1].touch()  # dog.txt could now be of either
    output = caption_output(Path("sidecars"), model="photos")
    assert [output.has(image) for image in images] == [False, False]
    for image, caption in zip(reversed(images), ("a cat", "a dog"), strict=True):
        output.write(image, line(str(image), caption))
    assert (tmp_path / "dog.PNG.txt").read_text() == "a cat\n"
    assert (tmp_path / "dog.jpg.txt").read_text() == "a dog\n"
    for image in images:
        assert caption_output(Path("sidecars"), model="photos").has(image)


def test_a_file_is_replaced_by_the_first_caption_and_has_one_writer(path):
    with caption_output(path, model="photos") as output:
        output.write(Path("a.jpg"), line("a.jpg"))
        assert message_of(caption_output, path, model="photos", error=LockedError) == (
            "another process writes captions into this file: "
            f"{str(path) + '.jsonl' * (path.suffix == '.parquet')!r}; wait for it, or name another "
            "--output"
        )
    with caption_output(path, model="photos", force=True):
        pass  # as with an unusable model, or without images
    assert rows(path) == [line("a.jpg")]


def test_a_table_outlives_a_kill_before_the_first_caption(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "captions.parquet"
    with caption_output(path, model="photos") as output:
        output.write(Path("a.jpg"), line("a.jpg"))
    killed = caption_output(path, model="scenes", force=True)
    killed._opened.close()  # as the system does; `close` is not called
    with caption_output(path, model="photos") as output:
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]


def test_parquet_has_names_that_are_not_utf8(tmp_path):
    pytest.importorskip("pyarrow")
    path, image = tmp_path / "new" / "captions.parquet", Path(os.fsdecode(b"caf\xe9.jpg"))
    for is_done in (False, True):
        with caption_output(path, model="photos") as output:
            assert output.has(image) == is_done
            output.write(image, line(str(image)))
    assert {row["image"] for row in rows(path)} == {r"caf\xe9.jpg"}


def test_captions_of_another_model_are_refused_and_replaced_by_force(path):
    with caption_output(path, model="photos") as output:
        output.write(Path("a.jpg"), line("a.jpg"))
    written = path.read_bytes()
    assert message_of(caption_output, path, model="scenes", error=InputError) == (
        f"captions of two models in one file: {str(path)!r} has those of 'photos', this is "
        "'scenes'; name another --output, or caption all images again with --force"
    )
    assert path.read_bytes() == written
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert message_of(caption_output, path, model="photos", settings="beam_size=1") == (
        f"captions of two settings in one file: {str(path)!r} has those of 'none', this is "
        "'beam_size=1'; name another --output, or caption all images again with --force"
    )
    with caption_output(path, model="scenes", force=True) as output:
        assert not output.has(Path("a.jpg"))
        output.write(Path("a.jpg"), line("a.jpg", "a lamp", "scenes"))
    assert rows(path) == [line("a.jpg", "a lamp", "scenes")]


def test_other_files_are_refused(tmp_path):
    assert message_of(caption_output, Path("captions.csv"), model="photos", error=InputError) == (
        "--output has an unknown suffix: 'captions.csv'; name a .jsonl or .parquet file, or "
        "'sidecars' for a text file beside each image"
    )


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("other.jsonl", '{"images": []}\n', "has the line '{\"images\": []}'"),
        ("other.jsonl", '{"image": [1]}\n', "has the line '{\"image\": [1]}'"),
        (
            "other.parquet",
            {"image": ["a"], "model": ["m"], "time": [b"x"]},
            "has the columns image, model, time",
        ),
        ("other.jsonl", "a letter", "has the line 'a letter'"),  # not half a line
        ("other.parquet", "a letter", "is not Parquet"),
        ("other.parquet", {"score": [1]}, "has the columns score"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_files_that_have_no_captions_are_kept(tmp_path, name, content, reason, force):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(content), path)
    before = path.read_bytes()
    found = message_of(caption_output, path, model="photos", force=force, error=InputError)
    assert found == f"not a file of captions: {str(path)!r} {reason}; name another --output"
    assert path.read_bytes() == before


@pytest.fixture
def a2(monkeypatch, tmp_path):
    """Return a function that runs `a2 caption`, whose captioner sees a dog in every image."""
    none = np.zeros(0, np.float32)
    regions = Regions(none.reshape(0, 4), none, none, none.astype(np.int32), None, 9, 9)

    def captioned(images, **_):
        for image in images:
            if image.path.name == "stop":
                os.kill(os.getpid(), signal.SIGINT)
            yield image, CaptionedImage([Beam("a dog", -1.0)], regions)

    def run(*words, **given):
        return CliRunner().invoke(cli, ["caption", *words], catch_exceptions=False, **given)

    monkeypatch.setattr("a2cap.pipeline.cli.images.caption.caption_files", captioned)
    monkeypatch.chdir(tmp_path)
    return run


def test_an_image_that_is_named_twice_has_one_line_and_a_stop_is_resumed(a2):
    again = a2("a.jpg", "a.jpg", "stop", "--output", "new/x.jsonl")
    assert again.stderr == "a2: stopped; run the same command again to resume\n"
    assert [row["image"] for row in rows(Path("new/x.jsonl"))] == ["a.jpg"]


def test_names_that_would_reach_the_terminal_are_quoted(a2):
    assert a2("a\nb.jpg", "\x1b[31m.jpg", "ü b.jpg").stdout.splitlines() == [
        r"'a\nb.jpg': a dog",
        r"'\x1b[31m.jpg': a dog",
        "ü b.jpg: a dog",
    ]


def test_an_image_on_standard_input_is_no_list_of_paths(a2):
    assert a2("-", input=b"\x89PNG\0\0\n").stderr == (
        "a2: standard input has a NUL: b'\\x89PNG\\x00\\x00', as an image or find -print0; "
        "write one path per line\n"
    )


def test_a_file_that_another_process_writes_has_no_near_name(a2, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "captions2.jsonl").touch()
    with caption_output(tmp_path / "captions.parquet", model="photos"):
        locked = a2("a.jpg", "--output", "captions.parquet")
    assert (locked.exit_code, locked.stderr) == (
        75,
        "a2: another process writes captions into this file: 'captions.parquet.jsonl'; wait for "
        "it, or name another --output\n",
    )


def test_a_process_without_standard_input_captions_files(a2, monkeypatch):
    monkeypatch.setattr("a2cap.pipeline.cli.images.caption.sys.stdin", None)
    assert a2("a.jpg").stdout == "a.jpg: a dog\n"
