"""Captions in one file: what is appended, what a second run skips, and what is refused."""

import csv
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from a2cap.data.errors import InputError, LockedError
from a2cap.pipeline.captioning.outputs.output import Origin
from a2cap.pipeline.cli.caption_lines import open_output
from tests.data.messages import message_of


def opened(path, model="photos", settings="", **options):
    return open_output(Path(path), Origin(model, settings), **options)


def line(name, caption="a dog", model="photos"):
    beams = [{"caption": caption, "score": -1.5}]
    return {"image": name, "model": model, "caption": caption, "beams": beams}


def rows(path):
    """Return the lines of a file; of a CSV file those of its journal, if both agree."""
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(text) for text in path.read_text().splitlines()]
    lines = rows(path.with_name(f".{path.name}.jsonl"))
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert table == [{name: line[name] for name in ("image", "caption")} for line in lines]
    return lines


def journal_of(path):
    hidden = {".csv": f".{path.name}.jsonl", ".parquet": f"{path.name}.jsonl"}
    return path.with_name(hidden.get(path.suffix, path.name))


def files_of(path):
    """Return the names that a finished output has in its folder."""
    return sorted([path.name] + [f".{path.name}.jsonl"] * (path.suffix == ".csv"))


def names_in(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture(params=["captions.jsonl", "captions.parquet", "captions.csv"])
def path(request, tmp_path):
    if request.param.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    return tmp_path / request.param


def test_a_second_run_adds_to_the_first(path):
    for name in ("a.jpg", "b.jpg"):
        with opened(path) as output:
            assert (output.state(Path("a.jpg")) == "done") == (name == "b.jpg")
            assert output.state(Path("b.jpg")) == "missing"
            output.write(Path(name), line(name))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]
    assert names_in(path.parent) == files_of(path)


def test_lines_are_there_at_once_and_half_a_line_is_written_again(tmp_path):
    path = tmp_path / "captions.jsonl"
    with opened(path) as output:
        output.write(Path("a.jpg"), line("a.jpg"))
        assert rows(path) == [line("a.jpg")]
    with path.open("a") as file:
        file.write('{"image": "b.jpg", "capt')
    with opened(path) as output:
        assert output.state(Path("b.jpg")) == "missing"
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]


def test_a_run_of_parquet_that_was_killed_leaves_its_lines(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "captions.parquet"
    (tmp_path / "captions.parquet.jsonl").write_text(f"{json.dumps(line('a.jpg'))}\n")
    with opened(path) as output:
        assert output.state(Path("a.jpg")) == "done"
    assert rows(path) == [line("a.jpg")]


def test_a_file_is_replaced_by_the_first_caption_and_has_one_writer(path):
    with opened(path) as output:
        output.write(Path("a.jpg"), line("a.jpg"))
        assert message_of(opened, path, error=LockedError) == (
            f"another process writes captions into this file: {str(journal_of(path))!r}; wait for "
            "it, or name another --output"
        )
    with opened(path, force=True):
        pass  # as with an unusable model, or without images
    assert rows(path) == [line("a.jpg")]


def test_a_table_outlives_a_kill_before_the_first_caption(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "captions.parquet"
    with opened(path) as output:
        output.write(Path("a.jpg"), line("a.jpg"))
    killed = opened(path, "scenes", force=True)
    killed._journal._opened.close()  # as the system does; `close` is not called
    with opened(path) as output:
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]


def test_parquet_has_names_that_are_not_utf8(tmp_path):
    pytest.importorskip("pyarrow")
    path, image = tmp_path / "new" / "captions.parquet", Path(os.fsdecode(b"caf\xe9.jpg"))
    for is_done in (False, True):
        with opened(path) as output:
            assert (output.state(image) == "done") == is_done
            output.write(image, line(str(image)))
    assert {row["image"] for row in rows(path)} == {r"caf\xe9.jpg"}


def test_captions_of_another_model_are_refused_and_replaced_by_force(path):
    with opened(path) as output:
        output.write(Path("a.jpg"), line("a.jpg"))
    written = path.read_bytes()
    assert message_of(opened, path, "scenes", error=InputError) == (
        f"captions of two models in one file: {str(path)!r} has those of 'photos', this is "
        "'scenes'; name another --output, or caption all images again with --force"
    )
    assert path.read_bytes() == written
    assert names_in(path.parent) == files_of(path)
    assert message_of(opened, path, settings="beam_size=1") == (
        f"captions of two settings in one file: {str(path)!r} has those of 'none', this is "
        "'beam_size=1'; name another --output, or caption all images again with --force"
    )
    with opened(path, "scenes", force=True) as output:
        assert output.state(Path("a.jpg")) == "missing"
        output.write(Path("a.jpg"), line("a.jpg", "a lamp", "scenes"))
    assert rows(path) == [line("a.jpg", "a lamp", "scenes")]


def test_other_files_are_refused(tmp_path):
    assert message_of(opened, "captions.tsv") == (
        "--output has an unknown suffix: 'captions.tsv'; name a .jsonl, .csv or .parquet file, or "
        "'sidecars' for a text file beside each image"
    )
    assert message_of(opened, "captions.jsonl", sidecar_suffix=".x") == (
        "--sidecar-suffix needs --output sidecars: 'captions.jsonl'; leave it out"
    )
    assert message_of(opened, "captions.jsonl", replace_foreign=True) == (
        "--replace-foreign needs a CSV file or sidecars as --output: 'captions.jsonl'; leave it "
        "out, and remove the file yourself"
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
    message = message_of(opened, path, force=force, error=InputError)
    assert message == f"not a file of captions: {str(path)!r} {reason}; name another --output"
    assert path.read_bytes() == before
    assert names_in(tmp_path) == [name]


def test_two_spellings_of_a_path_are_one_image(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    Path("own").mkdir()
    Path("linked").symlink_to("own")
    with opened(path) as output:
        output.write(Path("own/a.jpg"), line("own/a.jpg"))
    with opened(path) as output:
        for same in ("own/a.jpg", "./own/a.jpg", "own/../own/a.jpg", "linked/a.jpg"):
            assert output.state(Path(same)) == "done"
        assert output.state(Path.cwd() / "own" / "a.jpg") == "done"
        assert output.state(Path("own/b.jpg")) == "missing"


def test_a_file_that_another_process_has_just_finished_is_locked_as_it_is_now(path, monkeypatch):
    """The holder removes its journal between the opening of the path and the lock."""
    first = opened(path)
    first.write(Path("a.jpg"), line("a.jpg"))
    lock = fcntl.flock

    def finish_first(descriptor, kind):
        monkeypatch.setattr(fcntl, "flock", lock)
        first.close()
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    with opened(path) as output:
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(path) == [line("a.jpg"), line("b.jpg")]


@pytest.fixture
def table(tmp_path):
    """A CSV file with the caption of one image."""
    path = tmp_path / "captions.csv"
    with opened(path) as output:
        output.write(Path("a.jpg"), line("a.jpg"))
    return path


def test_a_csv_file_has_image_and_caption_and_no_formula(table):
    with opened(table) as output:
        for name, caption in (("=b.jpg", "-1, or 'x'"), (os.fsdecode(b"caf\xe9.jpg"), "a, b")):
            output.write(Path(name), line(name, caption))
            assert output.state(Path(name)) == "missing"  # known from the file, not from this run
    assert table.read_text() == (
        'image,caption\na.jpg,a dog\n./=b.jpg,"\'-1, or \'x\'"\ncaf\\xe9.jpg,"a, b"\n'
    )
    with opened(table) as output:
        assert output.state(Path("=b.jpg")) == output.state(Path("./=b.jpg")) == "done"
        assert output.state(Path(os.fsdecode(b"caf\xe9.jpg"))) == "done"


@pytest.mark.parametrize("edit", ["a.jpg,my dog\n", "a.jpg,a dog\nb.jpg,mine\n", "one,text\n"])
def test_a_csv_file_that_a_person_has_edited_is_kept(table, edit):
    text = f"image,caption\n{edit}"
    table.write_text(text)
    for options in ({}, {"force": True}):
        assert message_of(opened, table, **options) == (
            f"not written by a2, or changed since: {str(table)!r}; name another --output, or "
            "replace the file with --replace-foreign"
        )
    assert table.read_text() == text
    with opened(table, replace_foreign=True) as output:
        assert table.read_text() == text
        output.write(Path("c.jpg"), line("c.jpg"))
    assert rows(table) == [line("c.jpg")]


def test_a_csv_file_without_its_journal_is_not_a2s(table):
    journal_of(table).unlink()
    assert message_of(opened, table).startswith("not written by a2, or changed since: ")
    journal_of(table).write_text("{\n")
    assert message_of(opened, table).startswith("not a file of captions: ")
    assert table.read_text() == "image,caption\na.jpg,a dog\n"


@pytest.mark.parametrize("cut", [0, 1, 13, 14, 20, 26, 27])
def test_rows_that_a_killed_run_has_not_written_are_added(table, cut):
    whole = table.read_bytes()
    table.write_bytes(whole[:cut])  # the journal is written first
    with opened(table) as output:
        # an empty file is a new one
        assert output.state(Path("a.jpg")) == ("done" if cut else "missing")
        output.write(Path("b.jpg"), line("b.jpg"))
    assert rows(table) == ([line("a.jpg")] if cut else []) + [line("b.jpg")]


def test_a_csv_file_that_was_removed_is_made_again(table):
    table.unlink()
    with opened(table, "scenes") as output:
        assert output.state(Path("a.jpg")) == "missing"
        output.write(Path("a.jpg"), line("a.jpg", "a lamp", "scenes"))
    assert rows(table) == [line("a.jpg", "a lamp", "scenes")]


WRITER = """
import sys
from pathlib import Path
from a2cap.data.errors import LockedError
from a2cap.pipeline.captioning.outputs.output import Origin
from a2cap.pipeline.cli.caption_lines import open_output

path, names = Path(sys.argv[1]), sys.argv[2:]
while names:
    try:
        with open_output(path, Origin("photos")) as output:
            image = Path(names[0])
            if output.state(image) == "missing":
                output.write(image, {"image": str(image), "model": "photos", "caption": "a"})
        del names[0]
    except LockedError:
        pass
"""


@pytest.mark.slow
def test_two_processes_lose_no_row(path):
    names = [[f"{start}{number}.jpg" for number in range(40)] for start in "ab"]
    command = [sys.executable, "-c", WRITER, str(path)]
    running = [subprocess.Popen([*command, *some]) for some in names]
    assert [process.wait(300) for process in running] == [0, 0]
    assert sorted(row["image"] for row in rows(path)) == sorted(names[0] + names[1])
    assert names_in(path.parent) == files_of(path)
