"""Stage preprocess: its outputs, skipped items, and rejected inputs."""

import json

import numpy as np
import pytest

from a2cap.data.annotations.read import read_annotations
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.document_frequencies import DocumentFrequencies
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.data_config import PreprocessConfig
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.artifact_names import REFERENCES
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.metrics.tokenization import tokenize
from a2cap.pipeline.stages import preprocess as stage
from a2cap.pipeline.stages.preprocess import preprocess
from tests.data.messages import message_of, touch
from tests.experiments import a2, settings

CONFIG = PreprocessConfig(min_count=1)
UNICODE = PreprocessConfig(min_count=1, tokenizer="unicode")


@pytest.fixture
def run(tmp_path):
    """Preprocess annotations into one directory."""
    directory = tmp_path / "made"
    directory.mkdir()

    def preprocess_into(annotations, config=CONFIG, split_list=None):
        read = read_annotations(annotations, split_list=split_list)
        return preprocess(config, read, annotations, directory, EventLog(directory))

    preprocess_into.directory = directory
    return preprocess_into


@pytest.fixture
def quick(monkeypatch):
    """Replace the tokeniser by one without a JVM."""
    monkeypatch.setattr(
        stage, "tokenize", lambda raw, _: {k: [s.lower() for s in v] for k, v in raw.items()}
    )


@pytest.fixture
def write(tmp_path):
    """Write a captions.jsonl of (image, captions, split)."""

    def write_lines(*rows):
        path = tmp_path / "captions.jsonl"
        keys = ("image", "captions", "split")
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
        path.write_text("\n".join(lines))
        return path

    return write_lines


THREE = [
    ("1.jpg", ["A red dog.", "The dog runs."], "train"),
    ("2.jpg", ["A cat!"], "val"),
    ("3.jpg", ["Two (2) cats"], "test"),
]


def test_preprocessing_writes_vocabulary_captions_references_and_frequencies(run, experiment):
    annotations = experiment.scenes / "dataset_coco.json"
    assert run(annotations) == []
    assert {path.name for path in run.directory.iterdir()} == {
        "vocabulary.json",
        "captions.h5",
        "references.json",
        "document_frequencies.npz",
        "events.jsonl",
    }
    images = read_annotations(annotations).images
    vocabulary = Vocabulary.load(run.directory / "vocabulary.json")
    captions = CaptionFile(run.directory / "captions.h5")
    assert captions.vocabulary_digest == vocabulary.digest
    for image in (image for image in images if image.split == "train"):
        decoded = [vocabulary.decode(row) for row in captions.captions(image.image_id)]
        assert decoded == [" ".join(caption.tokens) for caption in image.captions]
    raw = {p.image_id: [caption.raw for caption in p.captions] for p in images}
    assert load_reference_tokens(run.directory / REFERENCES) == tokenize(raw)


def test_vocabulary_and_frequencies_are_those_of_train_and_restval(run, write, quick):
    run(write(*THREE[:2], ("9.jpg", ["Red dog."], "restval")))
    captions = CaptionFile(run.directory / "captions.h5")
    assert captions.image_ids("train") == ["000000000001", "000000000009"]
    assert captions.image_ids("test") == []  # which is not required
    vocabulary = Vocabulary.load(run.directory / "vocabulary.json")
    assert sorted(vocabulary.words[4:]) == ["a", "dog", "red", "runs", "the"]
    assert DocumentFrequencies.load(run.directory / "document_frequencies.npz").documents == 2


@pytest.mark.usefixtures("tolerant")
def test_bad_items_are_skipped_with_reasons(run, write, quick):
    skipped = run(
        write(
            *THREE,
            ("4.jpg", ["A dog."], "tset"),
            ("5.jpg", ["A dog.", " . "], "train"),
            ("6.jpg", [], "train"),
            ("1.jpg", ["Again."], "val"),
        )
    )
    assert skipped == [
        SkippedItem("000000000005", "caption 1: empty"),
        SkippedItem("line 7", "split 'val', 'train' in line 1"),
        SkippedItem("000000000004", "unknown split: 'tset'"),
        SkippedItem("000000000006", "no caption"),
    ]
    captions = CaptionFile(run.directory / "captions.h5")
    assert captions.image_ids("train") == ["000000000001", "000000000005"]
    assert len(captions.captions("000000000005")) == 1


def test_an_image_of_several_bad_captions_is_one_bad_image(run, write, quick):
    good = [(f"{n}.jpg", ["A dog."], "val" if n else "train") for n in range(20)]
    assert len(run(write(*good, ("20.jpg", [3] * 5, "train")))) == 5


def test_more_bad_items_than_the_limit_are_rejected(run, write):
    bad = [(f"{number}.jpg", ["A dog."], "tset") for number in range(10, 21)]
    assert message_of(run, write(*THREE, *bad)).startswith(
        "11 of 14 images of data.annotations cannot be used, at most 1 may be left out: "
        "'000000000010' (unknown split: 'tset'), "
    )


@pytest.mark.parametrize("split", ["train", "val"])
def test_training_and_validation_must_have_an_image(run, write, split):
    path = write(*[row for row in THREE if row[2] != split])
    assert message_of(run, path) == (
        f"no image of split {split!r} in {str(path)!r}; give each of train and val at least one"
    )


def test_references_are_the_first_captions_by_id(run, tmp_path, quick):
    texts = [(3, "Third."), (1, "First."), (2, "Second.")]
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in (1, 2)]
    annotations = [
        {"id": 10 * image["id"] + order, "image_id": image["id"], "caption": text}
        for image in images
        for order, text in texts
    ]
    path, splits = tmp_path / "captions.json", tmp_path / "splits.txt"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    splits.write_text("1 train\n2 val\n")
    run(path, CONFIG.model_copy(update={"references": 2}), splits)
    tokens = load_reference_tokens(run.directory / REFERENCES)
    assert tokens["000000000002"] == ["first.", "second."]


def test_images_that_are_not_in_the_split_list_are_not_reported(run, experiment, tmp_path, quick):
    (tmp_path / "splits.txt").write_text("1 train\n2 val\n3 test\n")
    captions = experiment.scenes / "captions.json"
    assert run(captions, split_list=tmp_path / "splits.txt") == []
    assert CaptionFile(run.directory / "captions.h5").image_ids("val") == ["000000000002"]


def test_words_of_any_script_are_those_of_vocabulary_captions_and_references(run, write):
    rows = [("1.jpg", ["Ein Hund läuft.", "一只狗。"], "train"), ("2.jpg", ["एक कुत्ता"], "val")]
    run(write(*rows, ("3.jpg", ["كلب، ينام"], "test")), UNICODE)
    vocabulary = Vocabulary.load(run.directory / "vocabulary.json")
    assert set(vocabulary.words[4:]) == {"ein", "hund", "läuft", *"一只狗"}
    assert vocabulary.tokenizer == "unicode"
    captions = CaptionFile(run.directory / "captions.h5").captions("000000000001")
    decoded = [vocabulary.decode(row) for row in captions]
    references = load_reference_tokens(run.directory / REFERENCES)
    assert references["000000000001"] == decoded == ["ein hund läuft", "一 只 狗"]
    assert references["000000000003"] == ["كلب ينام"]


def test_ptb_tokens_are_those_of_vocabulary_and_captions_too(run, write, quick):
    rows = [("1.jpg", ["It's Well-lit."], "train"), *THREE[1:]]
    run(write(*rows), PreprocessConfig(min_count=1, tokenizer="ptb"))
    vocabulary = Vocabulary.load(run.directory / "vocabulary.json")
    assert sorted(vocabulary.words[4:]) == ["it's", "well-lit."]  # of the quick tokeniser


def test_long_captions_are_cut_to_the_configured_length(run, write, quick):
    run(
        write(("7.jpg", ["one two three four five"], "train"), *THREE[1:]),
        PreprocessConfig(min_count=1, max_length=3),
    )
    vocabulary = Vocabulary.load(run.directory / "vocabulary.json")
    [row] = CaptionFile(run.directory / "captions.h5").captions("000000000007")
    assert vocabulary.decode(row) == "one two three"
    assert np.count_nonzero(row) == 4


@pytest.mark.slow
def test_a_folder_of_images_with_text_files_needs_only_a_split(tmp_path):
    folder = tmp_path / "my images"
    for number in range(10):
        touch(folder, f"{number}.jpg")
        (folder / f"{number}.txt").write_text("A dog runs.\nA dog.\n")
    options = [
        *("--artifacts", tmp_path / "artifacts"),
        *settings(
            f"data.annotations={folder}",
            "data.split=random(0.8/0.1/0.1, 1)",
            "preprocess.min_count=1",
        ),
    ]
    answer = a2("preprocess", *options, code=0)
    assert (answer.exit_code, answer.exception) == (0, None), answer.output
    [captions] = (tmp_path / "artifacts").glob("preprocess/*/captions.h5")
    captions_file = CaptionFile(captions)
    assert [len(captions_file.image_ids(split)) for split in ("train", "val", "test")] == [8, 1, 1]
    assert "nothing to do" in a2("preprocess", *options).stdout
    (folder / "3.txt").write_text("A cat.")
    assert "nothing to do" not in a2("preprocess", *options).stdout
