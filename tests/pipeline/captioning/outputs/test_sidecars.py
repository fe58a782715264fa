"""Texts beside images: their names, which ones are a2's, and damaged or hostile indices."""

import json
import os
from pathlib import Path

import pytest

from a2cap.data.errors import InputError, LockedError
from a2cap.pipeline.captioning.named_images import ImageNames
from a2cap.pipeline.captioning.outputs import sidecars as sidecars_module
from a2cap.pipeline.captioning.outputs.output import Origin
from a2cap.pipeline.captioning.outputs.sidecars import Sidecars
from tests.data.messages import message_of, touch

INDEX = ".captions.txt.jsonl"


def opened(model="photos", **options):
    given = {"force": False, "replace_foreign": False} | options
    return Sidecars(Origin(model), **given)


def write(image, caption="a dog", **options):
    with opened(**options) as output:
        assert output.state(image) == "missing"
        return output.write(image, {"caption": caption})


def state(image, **options):
    with opened(**options) as output:
        return output.state(image)


def test_sidecars_lie_beside_their_images(tmp_path):
    image = tmp_path / "dog.jpg"
    image.touch()
    assert write(image)
    assert (tmp_path / "dog.txt").read_text() == "a dog\n"
    assert state(image) == "done"
    assert state(image, force=True) == "missing"
    (tmp_path / "dog.txt").unlink()
    assert state(image) == "missing"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["dog.jpg", "cat.jpg"], ["dog", "cat"]),
        (["dog.jpg", "dog.PNG"], ["dog.jpg", "dog.PNG"]),
        (["a.jpg", "a.png", "a.jpg.png"], ["a.jpg", "a.png", "a.jpg.png"]),
        (["a.jpg", "a.jpg.png", "a.jpg.png.gif"], ["a", "a.jpg", "a.jpg.png"]),
        (["a.jpg", "a.png", "a.jpg.png", "a.jpg.png.gif"],
         ["a.jpg", "a.png", "a.jpg.png", "a.jpg.png.gif"]),
        (["A.jpg", "a.png"], ["A.jpg", "a.png"]),  # one file where capitals do not count
        (["dog.jpg", "dog.xmp"], ["dog", "dog.xmp"]),
    ],
)  # fmt: skip
def test_no_two_images_of_a_folder_have_one_name(tmp_path, files, names):
    touch(tmp_path, *files)
    names_of_images = ImageNames()
    for given in (files, reversed(files)):
        assert {file: names_of_images.of(tmp_path / file) for file in given} == dict(
            zip(files, names, strict=True)
        )
    texts = [tmp_path / f"{name}.txt" for name in names]
    for number, file in enumerate(files):
        assert write(tmp_path / file, f"caption {number}")
    assert [text.read_text() for text in texts] == [f"caption {n}\n" for n in range(len(files))]
    assert {state(tmp_path / file) for file in files} == {"done"}


def test_images_without_suffix_or_of_another_one_have_names_of_their_own(tmp_path):
    touch(tmp_path, "dog.jpg", "dog.dat.jpg", "dog.dat")
    (tmp_path / "dog").write_bytes(b"\xff\xd8\xff\xe0")
    names = ImageNames()
    shown = [names.of(tmp_path / file) for file in ("dog.jpg", "dog", "dog.dat.jpg", "dog.dat")]
    assert shown == ["dog.jpg", "dog", "dog.dat", "dog.dat_"]


def test_an_image_that_comes_later_changes_the_name_and_not_the_caption(tmp_path):
    images = [tmp_path / name for name in ("dog.jpg", "dog.PNG")]
    images[0].touch()
    write(images[0])
    images[1].touch()  # dog.txt could now be of either
    assert [state(image) for image in images] == ["missing", "missing"]


@pytest.mark.parametrize("content", ["a dog", "a dog\n\n", "a dog, my Rex\n", "", "x" * 100_000])
def test_a_text_of_other_content_is_kept(tmp_path, content):
    image, text = tmp_path / "dog.jpg", tmp_path / "dog.txt"
    image.touch()
    write(image)
    text.write_text(content)
    assert state(image) == state(image, force=True) == state(image, model="scenes") == "foreign"
    with opened() as output:
        assert not output.write(image, {"caption": "a lamp"})
    assert text.read_text() == content
    write(image, "a lamp", replace_foreign=True)
    assert text.read_text() == "a lamp\n"


def test_what_is_no_regular_file_is_kept(tmp_path):
    touch(tmp_path, "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    (tmp_path / "elsewhere").write_text("secret\n")
    (tmp_path / "a.txt").symlink_to("elsewhere")
    (tmp_path / "b.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "c.txt")
    assert [state(tmp_path / f"{name}.jpg") for name in "abc"] == ["foreign"] * 3
    write(tmp_path / "a.jpg", replace_foreign=True)
    assert (tmp_path / "elsewhere").read_text() == "secret\n"  # the link is replaced


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[" * 100_000, "{}", '{"image": 1, "model": "photos"}', "\x00", '"x"'),
        json.dumps({"image": "dog.jpg", "model": "photos", "file": 1, "caption": "a dog"}),
        json.dumps({"image": "dog.jpg", "model": "photos", "file": "../x", "caption": "a dog"}),
    ],
)
def test_a_damaged_index_makes_texts_foreign_and_is_reported(tmp_path, caplog, line):
    images = [tmp_path / name for name in ("dog.jpg", "cat.jpg")]
    for image in images:
        image.touch()
        write(image)
    index = tmp_path / INDEX
    first, second = index.read_text().splitlines()
    index.write_text(f"{line}\n{second}\n")
    assert [state(image) for image in images] == ["foreign", "done"]
    parses = line.startswith('{"image": "dog.jpg"')
    assert caplog.messages[:1] == (
        []
        if parses
        else [f"{index} has 1 damaged lines; the texts that they name count as of other origin"]
    )
    index.write_text(f"{first}\n{second[:20]}")  # half a line of a killed run
    caplog.clear()
    assert [state(image) for image in images] == ["done", "foreign"]
    assert caplog.messages == []
    (tmp_path / "cat.txt").unlink()
    write(images[1])
    assert [state(image) for image in images] == ["done", "done"]


def test_an_index_of_someone_else_is_neither_followed_nor_read_without_bounds(tmp_path):
    image, index, secret = tmp_path / "a.jpg", tmp_path / INDEX, tmp_path / "secret"
    image.touch()
    secret.write_text("x")
    index.symlink_to(secret)
    refused = f"not an index of captions: {str(index)!r} is a link, or has more than 1,024 MiB; "
    assert message_of(state, image) == refused + "remove it"
    assert secret.read_text() == "x"
    index.unlink()
    with index.open("wb") as file:
        file.truncate(1 << 40)
    assert message_of(state, image) == refused + "remove it"
    index.unlink()
    os.mkfifo(index)
    assert message_of(state, image) == f"not a regular file: {str(index)!r}; name a file"


def test_a_folder_has_one_writer_in_all_its_spellings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "own/a.jpg", "own/b.jpg")
    with opened() as output:
        for image in (Path("own/a.jpg"), tmp_path / "own" / "b.jpg"):
            assert output.state(image) == "missing"
            output.write(image, {"caption": "a dog"})
        assert message_of(state, Path("own/a.jpg"), error=LockedError) == (
            f"another process writes captions into the folder {str(tmp_path / 'own')!r}; wait for "
            "it, or name another --output"
        )
    assert state(Path("own/a.jpg")) == "done"


def test_more_folders_than_are_open_at_once_are_captioned(tmp_path, monkeypatch):
    monkeypatch.setattr(sidecars_module, "_OPEN_FOLDERS", 2)
    images = [tmp_path / str(number) / "a.jpg" for number in range(5)]
    for image in images:
        touch(image.parent, image.name)
    with opened() as output:
        assert [output.state(image) for image in images] == ["missing"] * 5
        for image in images:
            output.write(image, {"caption": "a dog"})
        assert len(output._folders) == 2
    assert {state(image) for image in images} == {"done"}


@pytest.mark.parametrize("suffix", ["txt", ".", "", "./x", ".a/b", ".a\nb", "." + "x" * 40, ". "])
def test_an_impossible_suffix_is_refused(suffix):
    assert message_of(opened, suffix=suffix, error=InputError) == (
        f"--sidecar-suffix is not a suffix: {suffix!r}; name one such as .txt or .caption"
    )


def test_the_suffix_of_an_image_is_refused(tmp_path):
    assert message_of(opened, suffix=".JPG", error=InputError) == (
        "--sidecar-suffix is that of images: '.JPG'; name one such as .txt or .caption"
    )
    image = tmp_path / "a.jpg"
    image.touch()
    assert state(image, suffix=".caption") == "missing"
