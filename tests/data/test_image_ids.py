import os
import unicodedata
from pathlib import PurePosixPath

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from a2cap.data.errors import UnreadableError
from a2cap.data.image_ids import (
    IMAGE_SUFFIXES,
    find_images,
    image_id,
    list_images,
    resolve_files,
    results_id,
)
from a2cap.extract.image import read_image
from tests.data.messages import message_of, touch
from tests.users import folder_for_all, nobody

NUMBERS = st.integers(min_value=0, max_value=10**12 - 1)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0."), min_size=1, max_size=30
).filter(str.strip)


@given(NUMBERS, st.sampled_from(["", "COCO_val2014_", "COCO_train2014_", "COCO_a_b_"]))
def test_a_number_is_padded_to_twelve_digits_with_any_prefix_and_folder(number, prefix):
    padded = f"{number:012d}"
    assert image_id(f"{prefix}{number}.jpg") == padded
    assert image_id(PurePosixPath("val2014") / f"{prefix}{padded}.png") == padded


@pytest.mark.slow
@given(NAMES, NAMES)
def test_the_id_of_another_image_is_its_path_without_suffix(folder, stem):
    assume(not image_id(f"{stem}.jpg").isdigit())
    assume(len(f"{folder}/{stem}".encode()) < 480)
    expected = unicodedata.normalize("NFC", f"{folder}/{stem}")
    assert image_id(f"{folder}/{stem}.jpg") == expected
    assert image_id(f"{folder}/{stem}.JPEG") == expected


@given(NAMES.filter(lambda name: len(name.encode()) < 200))
def test_composed_and_decomposed_names_give_the_same_id(name):
    composed = image_id(f"{unicodedata.normalize('NFC', name)}.jpg")
    assert composed == image_id(f"{unicodedata.normalize('NFD', name)}.jpg")


@pytest.mark.parametrize(
    ("path", "identity"),
    [
        ("COCO_val2014_000000391895.jpg", "000000391895"),
        ("000000391895.jpg", "000000391895"),
        ("1234567890123.jpg", "1234567890123"),
        ("COCO_42.jpg", "COCO_42"),
        ("coco_val2014_42.jpg", "coco_val2014_42"),
        ("a/٤٢.jpg", "a/٤٢"),
        ("42a.jpg", "42a"),
        ("a.b/c.d.jpg", "a.b/c.d"),
        ("./a//b.jpg", "a/b"),
    ],
)
def test_ids_of_special_names(path, identity):
    assert image_id(path) == identity


def test_an_id_has_at_most_511_bytes():
    assert len(image_id("é" * 255 + "x.jpg").encode()) == 511
    assert message_of(image_id, "é" * 256 + ".jpg") == (
        f"image path too long: {'é' * 40!r}… has 512 bytes, 511 fit in an id; shorten it"
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "no file name in the image path '.'; name a file"),
        ("C:/a.jpg", "image path is absolute: 'C:/a.jpg'; give it relative to the image folder"),
        ("/a.jpg", "image path is absolute: '/a.jpg'; give it relative to the image folder"),
        *[
            (path, f"image path leaves the image folder: {path!r}; give it without '..'")
            for path in ("../../etc/passwd", "a/../42.jpg")
        ],
        ("a\0.jpg", "image path contains a NUL character: 'a\\x00.jpg'; rename the file"),
        ("a\udce9.jpg", "image path is not UTF-8: 'a\\udce9.jpg'; rename the file"),
    ],
)
def test_a_path_that_cannot_be_a_key_is_rejected(path, message):
    assert message_of(image_id, path) == message


def test_a_decimal_id_is_an_integer_in_results():
    assert results_id("000000391895") == 391895
    assert results_id("000000000000") == 0
    assert results_id("1234567890123") == 1234567890123
    assert results_id("a/b") == "a/b"
    assert results_id("٤٢") == "٤٢"


@given(st.lists(st.from_regex(r"[0-9]{12,15}", fullmatch=True), unique=True, max_size=8))
def test_different_ids_stay_different_in_results(ids):
    assert len({results_id(identity) for identity in ids}) == len(ids)


def test_images_are_found_recursively_and_sorted_by_id(tmp_path):
    touch(tmp_path, "z/COCO_val2014_000000000042.jpg", "b.PNG", "a/x/7.JPEG", "notes.txt")
    touch(tmp_path, ".hidden.jpg", ".cache/1.jpg")
    images = find_images(tmp_path)
    assert list(images.items()) == [
        ("000000000007", tmp_path / "a/x/7.JPEG"),
        ("000000000042", tmp_path / "z/COCO_val2014_000000000042.jpg"),
        ("b", tmp_path / "b.PNG"),
    ]


def test_links_to_files_and_folders_are_followed(tmp_path):
    folder, outside = tmp_path / "images", tmp_path / "outside"
    touch(folder, "real.jpg")
    touch(outside, "inside/other.jpg")
    (folder / "again.jpg").symlink_to(folder / "real.jpg")
    (folder / "out.jpg").symlink_to(outside / "inside/other.jpg")
    (folder / "linked").symlink_to(outside)
    (tmp_path / "link").symlink_to(folder)
    names = ["again", "linked/inside/other", "out", "real"]
    assert list(find_images(folder)) == list(find_images(tmp_path / "link")) == names


def test_a_link_to_a_folder_around_it_is_skipped_with_a_warning(tmp_path, caplog):
    touch(tmp_path, "a/real.jpg")
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert list(find_images(tmp_path)) == ["a/real"]
    loop = str(tmp_path / "a/up")
    assert caplog.messages == [f"skipped a link to a folder that contains it: {loop!r}"]


def test_links_that_lead_nowhere_are_listed(tmp_path):
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "itself.jpg").symlink_to(tmp_path / "itself.jpg")
    (tmp_path / "nowhere").symlink_to(tmp_path / "no")
    os.mkfifo(tmp_path / "queue.jpg")  # reading it would wait for ever
    assert list(find_images(tmp_path)) == ["broken", "itself"]


def test_files_of_other_formats_and_images_without_suffix_are_listed(tmp_path):
    suffixes = [*sorted(IMAGE_SUFFIXES), ".JPG", ".Tiff", ".AVIF"]
    names = [f"{number:012}{suffix}" for number, suffix in enumerate(suffixes)]
    touch(tmp_path, *names, "README", "notes.txt")
    Image.new("RGB", (8, 6)).save(tmp_path / "f", format="PNG")
    (tmp_path / "g").write_bytes(b"\0\0\0\x18ftypheic")
    assert [path.name for path in find_images(tmp_path).values()] == [*names, "f", "g"]


def test_a_folder_that_cannot_be_read_is_listed_for_reading_to_report():
    with folder_for_all() as top:
        touch(top, "b/a.jpg", "lost+found/c.jpg")
        folder = top / "lost+found"
        folder.chmod(0)
        with nobody():
            assert [str(path) for path in list_images(top)] == ["b/a.jpg", "lost+found"]
            assert message_of(list_images, folder) == (
                f"cannot read the folder {str(folder)!r} (Permission denied); check the folder"
            )
            assert message_of(read_image, folder, error=UnreadableError) == (
                "cannot read image 'lost+found': Permission denied; check the image folder"
            )


def test_all_files_that_share_an_id_are_named(tmp_path):
    touch(
        tmp_path, "cats/001.jpg", "cats/002.jpg", "dogs/001.jpg", "dogs/002.jpg", "b.jpg", "b.heic"
    )
    assert message_of(find_images, tmp_path) == (
        f"images of {str(tmp_path)!r} share an id: 'b.heic' and 'b.jpg', "
        "'cats/001.jpg' and 'dogs/001.jpg', 'cats/002.jpg' and 'dogs/002.jpg'; remove all but one, "
        "rename them, for example to cats-001.jpg, or set data.ids=path: a number is the id alone"
    )
    (tmp_path / "b.heic").unlink()
    images = find_images(tmp_path, "path")
    assert list(images) == ["b", "cats/001", "cats/002", "dogs/001", "dogs/002"]
    assert images["dogs/001"] == tmp_path / "dogs/001.jpg"


def test_an_empty_or_missing_folder_is_rejected(tmp_path):
    assert message_of(find_images, tmp_path) == (
        f"no images in {str(tmp_path)!r} (searched for .avif .bmp .gif .heic .heif .hif .jfif .jpe "
        ".jpeg .jpg .mpo .png .tif .tiff .webp); check the folder"
    )
    folder = tmp_path / "no"
    assert message_of(find_images, folder) == (
        f"cannot read the folder {str(folder)!r} (No such file or directory); check the folder"
    )


def resolve(folder, *files):
    """Resolve files, each with its index as id."""
    return resolve_files({str(number): file for number, file in enumerate(files)}, folder)


def test_an_image_is_found_under_its_name_or_its_last_part_that_no_other_has(tmp_path):
    folder = tmp_path / "images"
    touch(folder, "val2014/a.jpg", "b.jpg")
    files = resolve(folder, "val2014/a.jpg", "val2014/b.jpg", "c.jpg")
    assert files == {"0": folder / "val2014/a.jpg", "1": folder / "b.jpg"}
    assert resolve(folder, "x/b.jpg", "y/b.jpg") == {}
    assert resolve(folder, "val2014") == resolve(tmp_path, folder.name) == {}


def test_a_2014_name_is_found_in_a_folder_of_2017_names(tmp_path):
    touch(tmp_path, "val2017/000000000042.jpg")
    names = {"000000000042": "val2014/COCO_val2014_000000000042.jpg", "7": "7.jpg"}
    assert resolve_files(names, tmp_path) == {"000000000042": tmp_path / "val2017/000000000042.jpg"}


def test_the_folder_is_scanned_once_and_only_if_a_name_is_not_found(tmp_path, monkeypatch):
    scanned = []
    monkeypatch.setattr(
        "a2cap.data.image_ids.find_images",
        lambda folder, rule: scanned.append(folder) or {"1": folder / "x.jpg"},
    )
    touch(tmp_path, "a.jpg", "a.png")
    assert resolve(tmp_path, "a.jpg") == {"0": tmp_path / "a.jpg"}
    assert scanned == []
    files = resolve(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    assert files == {"0": tmp_path / "a.jpg", "1": tmp_path / "x.jpg"}
    assert scanned == [tmp_path]


def test_links_in_the_image_folder_are_followed(tmp_path):
    folder, outside = tmp_path / "images", tmp_path / "outside"
    touch(folder, "real.jpg")
    touch(outside, "COCO_val2014_42.jpg")
    (folder / "out.jpg").symlink_to(outside / "COCO_val2014_42.jpg")
    (folder / "val2014").symlink_to(outside)  # a COCO folder kept elsewhere
    (folder / "broken.jpg").symlink_to(folder / "nowhere.jpg")
    names = ("out.jpg", "val2014/COCO_val2014_42.jpg", "broken.jpg")
    files = resolve(folder, *names, "a\0b.jpg", "x" * 300 + ".jpg")
    assert files == {"0": folder / names[0], "1": folder / names[1]}
