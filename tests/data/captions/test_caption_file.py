import shutil
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from a2cap.data.annotations.caption import AnnotatedCaption, tokenize
from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.captions.caption_file import CaptionFile, CutCaptions, write_captions
from a2cap.data.captions.vocabulary import EOS, PAD, UNK, Vocabulary
from tests.data.messages import message_of

VOCABULARY = Vocabulary.from_counts({"a": 9, "dog": 8, "runs": 7})
A, DOG, RUNS = 4, 5, 6


def image(image_id: str, split: str, *captions: str) -> AnnotatedImage:
    texts = tuple(AnnotatedCaption(caption, tokenize(caption)) for caption in captions)
    return AnnotatedImage(image_id, f"{image_id}.jpg", split, texts)


IMAGES = (
    image("000000000042", "train", "A dog runs.", "dog"),
    image("straße/é", "val", "a cat"),
    image("b", "train", "a a a a a a"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "captions.h5"
    write_captions(path, IMAGES, VOCABULARY, preset="karpathy", max_length=4)
    return path


def test_captions_are_truncated_end_in_eos_and_are_padded(path):
    captions = CaptionFile(path)
    path.unlink()  # it has been read
    assert captions.captions("000000000042").tolist() == [
        [A, DOG, RUNS, EOS, PAD],
        [DOG, EOS, PAD, PAD, PAD],
    ]
    assert captions.captions("straße/é").tolist() == [[A, UNK, EOS, PAD, PAD]]
    captions.captions("b")[:] = 0  # a copy
    assert captions.captions("b").tolist() == [[A, A, A, A, EOS]]
    assert captions.captions("b").dtype == np.int32


def test_cut_captions_are_counted_and_may_stay_without_eos(path):
    assert str(CaptionFile(path).cut) == (
        "1 of 4 captions (25.0%) have more than 4 tokens and are cut"
    )
    write_captions(path, IMAGES, VOCABULARY, preset="karpathy", max_length=4, eos_after_cut=False)
    captions = CaptionFile(path)
    assert captions.captions("b").tolist() == [[A, A, A, A, PAD]]
    assert captions.captions("000000000042")[0].tolist() == [A, DOG, RUNS, EOS, PAD]
    assert captions.cut == CutCaptions(1, 4, 4)
    assert CutCaptions.count(IMAGES, preset="karpathy", max_length=5) == CutCaptions(1, 4, 5)
    none = CutCaptions.count(IMAGES, preset="karpathy", max_length=6)
    assert (str(none), none.is_much) == ("", False)
    assert [CutCaptions(cut, 100, 20).is_much for cut in (2, 3)] == [False, True]


def test_the_file_has_the_documented_datasets(path):
    with h5py.File(path) as file:
        described = {name: (item.shape, item.dtype.str) for name, item in file.items()}
        assert file["lengths"][...].tolist() == [4, 2, 3, 5]
        assert file["offsets"][...].tolist() == [0, 2, 3, 4]
        assert file["image_ids"].asstr()[...].tolist() == [p.image_id for p in IMAGES]
        assert file["splits"].asstr()[...].tolist() == ["train", "val", "train"]
        assert file.attrs["vocabulary_digest"] == VOCABULARY.digest
    assert described.pop("image_ids")[0] == described.pop("splits")[0] == (3,)
    assert described == {
        "tokens": ((4, 5), "<i4"),
        "lengths": ((4,), "<i4"),
        "offsets": ((4,), "<i8"),
    }


def test_the_name_of_the_data_is_kept(path, tmp_path):
    named = tmp_path / "named.h5"
    write_captions(named, IMAGES, VOCABULARY, preset="karpathy", dataset="coco")
    assert [CaptionFile(file).dataset for file in (path, named)] == ["", "coco"]


def test_ids_of_the_annotations_are_kept_if_they_are_not_those_of_the_files(path, tmp_path):
    owned = tmp_path / "owned.h5"
    ids = (7, "x_1", 2**40)
    images = [replace(image, own_id=own) for image, own in zip(IMAGES, ids, strict=True)]
    write_captions(owned, images, VOCABULARY, preset="karpathy", max_length=4)
    read, files = CaptionFile(owned), [image.image_id for image in IMAGES]
    assert dict(read.identities.own_ids) == dict(zip(files, ids, strict=True))
    assert read.files == {file: f"{file}.jpg" for file in files}
    equal = [replace(IMAGES[0], own_id=42), *IMAGES[1:]]
    write_captions(owned, equal, VOCABULARY, preset="karpathy", max_length=4)
    assert owned.read_bytes() == path.read_bytes()
    assert (CaptionFile(path).files, bool(CaptionFile(path).identities)) == ({}, False)


def test_images_of_a_split_keep_their_order(path):
    captions = CaptionFile(path)
    assert captions.image_ids("train") == ["000000000042", "b"]
    assert captions.image_ids("val") == ["straße/é"]
    assert captions.image_ids("test") == []
    assert captions.vocabulary_digest == VOCABULARY.digest


def test_captions_are_tokenized_by_the_preset(tmp_path):
    vocabulary = Vocabulary.from_counts({"dog": 9, "'s": 9, "dogs": 9}, "m2")
    for preset, words in (("m2", ["dog", "'s"]), ("karpathy", ["dogs"])):
        path = tmp_path / f"{preset}.h5"
        write_captions(path, [image("a", "train", "Dog's")], vocabulary, preset=preset)
        encoded = CaptionFile(path).captions("a")
        assert encoded.shape == (1, 21)
        assert encoded[0, : len(words) + 1].tolist() == [*vocabulary.encode(words), EOS]


def test_equal_input_gives_equal_bytes(path, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    again = tmp_path / "again.h5"
    write_captions(again, IMAGES, VOCABULARY, preset="karpathy", max_length=4)
    assert again.read_bytes() == path.read_bytes()


def test_unknown_images_and_splits_and_empty_and_missing_files_are_rejected(path, tmp_path):
    assert message_of(CaptionFile(path).captions, "7") == (
        f"no captions for image '7' in {str(path)!r}; "
        'check data.annotations and run "a2 preprocess" again'
    )
    unknown_split = "unknown split: 'dev'; use train, val or test"
    assert message_of(CaptionFile(path).image_ids, "dev") == unknown_split
    missing = tmp_path / "x.h5"
    no_file = f'no file {str(missing)!r}; run "a2 preprocess" first'
    assert message_of(CaptionFile, missing) == no_file
    assert message_of(write_captions, missing, [], VOCABULARY, preset="karpathy") == (
        f"no images to write into {str(missing)!r}; check data.annotations"
    )


@pytest.mark.parametrize("kept", [0, 100, 2000])
def test_a_truncated_file_is_rejected(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    message = message_of(CaptionFile, path)
    assert message.startswith(f"damaged captions {str(path)!r} (")
    assert message.endswith('); run "a2 preprocess" again')


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("lengths", [1, 2], "numbers of tokens and lengths differ"),
        ("tokens", [1, 2, 3, 4], "numbers of tokens and lengths differ"),
        ("lengths", [4, 2, 3, 6], "a caption is longer than its row"),
        ("tokens", [[-1] * 9] * 4, "a token is negative"),
        ("offsets", [0, 4], "numbers of images, splits and offsets differ"),
        ("splits", [b"train"], "numbers of images, splits and offsets differ"),
        ("offsets", [0, 2, 1, 4], "offsets do not partition the captions"),
        ("offsets", [0, 2, 3, 9], "offsets do not partition the captions"),
        ("splits", [b"train", b"dev", b"val"], "unknown split"),
    ],
)
def test_inconsistent_datasets_are_rejected(path, name, value, problem):
    with h5py.File(path, "a") as file:
        del file[name]
        dtype = h5py.string_dtype("utf-8", 5) if name == "splits" else np.int64
        file[name] = np.array(value, dtype=dtype)
    assert message_of(CaptionFile, path) == (
        f'damaged captions {str(path)!r} ({problem}); run "a2 preprocess" again'
    )


@pytest.mark.parametrize("name", ["tokens", "lengths", "offsets", "image_ids", "splits"])
def test_a_missing_dataset_or_one_in_another_file_is_named(path, name):
    shutil.copyfile(path, path.with_name("other.h5"))
    with h5py.File(path, "a") as file:
        del file[name]
    assert name in message_of(CaptionFile, path)
    with h5py.File(path, "a") as file:
        file[name] = h5py.ExternalLink("other.h5", name)
    assert f"({name} is not a dataset inside the file; " in message_of(CaptionFile, path)
