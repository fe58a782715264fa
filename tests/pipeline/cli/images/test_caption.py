"""Files of captions by `a2 caption --output`: what is written, kept, resumed and reported."""

import errno
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from a2cap.data.errors import InputError, UnreadableError
from a2cap.data.regions import Regions
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.outputs.output import Origin
from a2cap.pipeline.captioning.outputs.tables import _COLUMNS
from a2cap.pipeline.cli.caption_lines import open_output
from tests import experiments
from tests.users import folder_for_all, nobody


def rows(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


@pytest.fixture
def a2(monkeypatch, tmp_path):
    """Return a function that runs `a2 caption`, whose captioner sees a dog in every image."""
    none = np.zeros(0, np.float32)
    regions = Regions(none.reshape(0, 4), none, none, none.astype(np.int32), None, 9, 9)

    def captioned(images, **_):
        for image in images:
            if image.path.name == "stop":
                os.kill(os.getpid(), signal.SIGINT)
            caption_of_image = CaptionedImage([Beam(run.caption, -1.0)], regions)
            yield image, run.failing.get(image.path.name, caption_of_image)

    def run(*words, **given):
        return experiments.a2("caption", *words, **given)

    run.caption, run.failing = "a dog", {}
    monkeypatch.setattr("a2cap.pipeline.cli.images.caption.caption_files", captioned)
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def photos(tmp_path):
    """A folder with three images."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg", "c.png"):
        (folder / name).touch()
    return folder


def texts(folder, suffix=".txt"):
    return {path.name: path.read_text() for path in sorted(folder.glob(f"*{suffix}"))}


SIDECARS = ("photos", "--output", "sidecars")


def test_an_image_that_is_named_twice_has_one_line_and_a_stop_is_resumed(a2):
    again = a2("a.jpg", "a.jpg", "stop", "--output", "new/x.jsonl")
    assert again.stderr == "a2: stopped; run the same command again to resume\n"
    assert [row["image"] for row in rows(Path("new/x.jsonl"))] == ["a.jpg"]
    again = a2("a.jpg", "stop", "--output", "new/x.jsonl", "--force")
    assert again.stderr == "a2: stopped; run the same command again to restart\n"


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
    with open_output(tmp_path / "captions.parquet", Origin("photos")):
        locked = a2("a.jpg", "--output", "captions.parquet")
    assert (locked.exit_code, locked.stderr) == (
        75,
        "a2: another process writes captions into this file: 'captions.parquet.jsonl'; wait for "
        "it, or name another --output\n",
    )


def test_a_process_without_standard_input_captions_files(a2, monkeypatch):
    monkeypatch.setattr("a2cap.pipeline.cli.images.caption.sys.stdin", None)
    assert a2("a.jpg").stdout == "a.jpg: a dog\n"


def test_every_member_of_a_line_may_be_a_column(a2):
    a2("a.jpg", "--output", "x.jsonl", "--set", "evaluate.beam_size=2")
    [row] = rows(Path("x.jsonl"))
    assert row["settings"] == "beam_size=2"
    assert row.keys() == _COLUMNS


def test_the_last_line_states_how_many_already_had_a_caption(a2, photos):
    first = a2("photos/a.jpg", "--output", "x.jsonl")
    assert first.stderr == "x.jsonl: 1 captioned\n"
    again = a2(photos, "photos", "--output", "x.jsonl", code=0)  # two spellings of one folder
    assert again.stderr == "x.jsonl: 2 captioned, 1 already had a caption\n"
    assert [Path(row["image"]).name for row in rows(Path("x.jsonl"))] == ["a.jpg", "b.jpg", "c.png"]


def test_texts_of_a_person_are_kept_and_counted(a2, photos):
    (photos / "a.txt").write_text("my dog Rex\n")
    first = a2(*SIDECARS)
    kept = "1 already had a text of other origin: kept (--replace-foreign replaces them)"
    assert (first.exit_code, first.stderr) == (0, f"sidecars: 2 captioned, {kept}\n")
    (photos / "b.txt").write_text("my cat\n")  # edited
    expected = {"a.txt": "my dog Rex\n", "b.txt": "my cat\n", "c.txt": "a dog\n"}
    assert a2(*SIDECARS).stderr == (
        "sidecars: 0 captioned, 1 already had a caption, 2 already had a text of other origin: "
        "kept (--replace-foreign replaces them)\n"
    )
    a2.caption = "a lamp"
    a2(*SIDECARS, "--force")
    assert texts(photos) == expected | {"c.txt": "a lamp\n"}
    assert a2(*SIDECARS, "--replace-foreign").stderr == (
        "sidecars: 2 captioned, 1 already had a caption\n"
    )
    assert set(texts(photos).values()) == {"a lamp\n"}


def test_a_text_that_appears_while_images_are_captioned_is_kept(a2, photos, monkeypatch):
    def writing(image, captioned):
        (photos / "b.txt").write_text("mine\n")
        return image.path, {"caption": "a dog", "model": "photos"}

    monkeypatch.setattr(
        "a2cap.pipeline.cli.caption_lines.CaptionLines.of", lambda _, *a: writing(*a)
    )
    assert a2(*SIDECARS).stderr.startswith("sidecars: 2 captioned, 1 already had a text of other")
    assert texts(photos) == {"a.txt": "a dog\n", "b.txt": "mine\n", "c.txt": "a dog\n"}


def test_another_model_or_prefix_asks_before_it_mixes_sidecars(a2, photos):
    a2("photos/a.jpg", "--output", "sidecars")
    message = (
        "a2: captions of two {} in one folder: {!r} has those of {!r}, this is {!r}; name another "
        "--sidecar-suffix, or caption all images again with --force\n"
    )
    refused = a2(*SIDECARS, "--model", "scenes", code=1)
    assert refused.stderr == message.format("models", str(photos), "photos", "scenes")
    assert a2(*SIDECARS, "--prefix", "sks, ").stderr == message.format(
        "settings", str(photos), "none", "prefix='sks, '"
    )
    assert texts(photos) == {"a.txt": "a dog\n"}
    a2(*SIDECARS, "--model", "scenes", "--sidecar-suffix", ".caption", code=0)
    assert list(texts(photos, ".caption")) == ["a.caption", "b.caption", "c.caption"]
    assert a2(*SIDECARS, "--model", "scenes", "--force").stderr == "sidecars: 3 captioned\n"
    assert a2(*SIDECARS, "--model", "scenes").stderr == (
        "sidecars: 0 captioned, 3 already had a caption\n"
    )


@pytest.mark.parametrize("output", ["x.csv", "x.jsonl", "sidecars", None])
def test_a_prefix_and_a_suffix_are_part_of_each_caption(a2, photos, output):
    around = ("--prefix", "sks, ", "--suffix", ", 4k")
    answer = a2("photos/a.jpg", *around, *(["--output", output] if output else []))
    written = {
        "x.csv": lambda: Path("x.csv").read_text().splitlines()[1],
        "x.jsonl": lambda: rows(Path("x.jsonl"))[0]["caption"],
        "sidecars": lambda: texts(photos)["a.txt"],
        None: lambda: answer.stdout,
    }[output]()
    assert "sks, a dog, 4k" in written


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "a\u2028b", "a\u202eb"])
def test_a_prefix_has_no_line_break_and_no_control_character(a2, photos, text):
    assert a2("photos", "--prefix", text).stderr == (
        f"a2: --prefix has a line break or a control character: {text!r}; leave it out\n"
    )


def test_control_characters_of_a_vocabulary_reach_neither_terminal_nor_files(a2, photos):
    a2.caption = "a \x1b[31mdog\n\x9b and\u202e cat\u2028"
    shown = "a \\x1b[31mdog \\x9b and\\u202e cat "
    assert a2("photos/a.jpg", "--beams", "1").stdout == (
        f"photos/a.jpg: {shown}\n   -1.0000  {shown}\n"
    )
    a2(*SIDECARS)
    a2("photos", "--output", "x.csv")
    assert texts(photos)["a.txt"] == f"{shown}\n"
    assert Path("x.csv").read_text().splitlines()[1] == f"photos/a.jpg,{shown}"


def test_joiners_and_wide_spaces_of_other_scripts_are_kept(a2):
    a2.caption = "क्\u200dष\u3000猫"
    assert a2("a.jpg").stdout == f"a.jpg: {a2.caption}\n"


def test_the_end_states_if_a_retry_can_help(a2, photos):
    again = UnreadableError("cannot read image 'a.jpg': Input/output error; check the image folder")
    bad = InputError("image 'b.jpg' is empty: 0 bytes; get the file again")
    a2.failing = {"a.jpg": again}
    assert a2("photos", "--output", "x.jsonl").stderr == (
        f"a2: skipped 'photos/a.jpg': {again}\n"
        "x.jsonl: 2 captioned, 1 failed; run the same command again to retry\n"
    )
    a2.failing = {"b.jpg": bad}
    assert a2("photos", "--output", "y.jsonl", code=3).stderr.splitlines()[-1] == (
        "y.jsonl: 2 captioned, 1 failed; a retry alone does not help: fix what is reported above "
        "first"
    )
    a2.failing |= {"a.jpg": again}
    assert a2("photos", "--output", "z.jsonl").stderr.splitlines()[-1] == (
        "z.jsonl: 1 captioned, 2 failed; run the same command again to retry 1, fix the other 1 "
        "first"
    )


def test_one_bad_name_or_folder_does_not_end_the_run(a2, photos):
    (photos / "b.txt").mkdir()
    names = [f"{'x' * length}.jpg" for length in (247, 251)]
    (photos / names[0]).touch()
    for name in (names[1], f"{'x' * 251}.png"):  # whose sidecars have the whole name
        (photos / name).touch()
    answer = a2(*SIDECARS, code=3)
    long = f"the name of its sidecar has 259 bytes, at most 255 are possible: {'x' * 40!r}…"
    remedy = "shorten the image's name, or name a file as --output"
    assert answer.stderr.splitlines() == [
        "a2: skipped 'photos/b.jpg': its sidecar would replace a folder: 'b.txt'; rename the "
        "folder, or use --sidecar-suffix",
        *[
            f"a2: skipped 'photos/{name}': {long}; {remedy}"
            for name in (names[1], f"{'x' * 251}.png")
        ],
        "sidecars: 3 captioned, 3 failed; a retry alone does not help: fix what is reported above "
        "first",
    ]
    assert (photos / f"{'x' * 247}.txt").read_text() == "a dog\n"
    assert not [path for path in photos.iterdir() if path.name.endswith(".partial")]


def test_read_only_and_unreadable_folders_are_skipped_and_named(a2, monkeypatch):
    with folder_for_all() as top:
        for name in ("read-only", "lost+found", "z"):
            (top / name).mkdir()
            (top / name).chmod(0o777)
            (top / name / "a.jpg").touch()
        (top / "read-only").chmod(0o555)
        (top / "lost+found").chmod(0)
        monkeypatch.chdir(top)
        a2.failing = {"lost+found": UnreadableError("cannot read image 'lost+found'")}
        with nobody():
            answer = a2(".", "--output", "sidecars")
        assert answer.exit_code == 3
        assert answer.stderr.splitlines() == [
            f"a2: skipped 'read-only/a.jpg': its sidecar cannot be written: "
            f"{str(top.resolve() / 'read-only')!r} is read-only; fix its permissions, or name a "
            "file as --output",
            "a2: skipped 'lost+found': cannot read image 'lost+found'",
            "sidecars: 1 captioned, 2 failed; run the same command again to retry 1, fix the "
            "other 1 first",
        ]
        assert [path.name for path in sorted((top / "z").iterdir())] == [
            *(".captions.txt.jsonl", "a.jpg", "a.txt")
        ]


def test_a_full_disk_ends_the_run_and_leaves_no_partial_file(a2, photos, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("a2cap.data.files.atomic.fsync", full)
    answer = a2(*SIDECARS, code=1)
    assert answer.stderr.startswith("a2: No space left on device: ")
    assert answer.stderr.endswith("; free disk space, then run the command again\n")
    assert not [path for path in photos.iterdir() if path.name.endswith((".partial", ".txt"))]
    monkeypatch.undo()
    monkeypatch.chdir(photos.parent)


def test_options_of_an_output_need_one(a2):
    for option in (["--force"], ["--replace-foreign"], ["--sidecar-suffix", ".x"]):
        assert f"{option[0]} needs --output; add the option" in a2("a.jpg", *option, code=2).stderr
