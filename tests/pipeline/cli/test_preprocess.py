"""Command `a2 preprocess`: proofs of presets, and captions of a folder."""

import json

import pytest

from a2cap.data.captions.caption_file import CaptionFile
from tests.data.messages import touch, written
from tests.experiments import a2, settings


@pytest.mark.parametrize(
    ("preset", "code", "output"),
    [
        ("aoanet", 0, "aoanet: 2 words, 10,368 in husthuaan/AoANet; only the size is published\n"),
        ("karpathy", 0, "karpathy: 2 words; no list is published\n"),
        ("coco", 2, ""),
    ],
)
def test_prove_compares_the_words_and_runs_no_stage(tmp_path, preset, code, output):
    lines = [
        json.dumps({"image": f"{number}.jpg", "captions": ["a dog"] * 5, "split": split})
        for number, split in enumerate(("train", "val", "test"))
    ]
    annotations = written(tmp_path, "\n".join(lines), "captions.jsonl")
    options = ("--set", f"data.annotations={annotations}", "--artifacts", tmp_path / "artifacts")
    answer = a2("preprocess", "--preset", preset, "--prove", *options)
    assert (answer.exit_code, answer.stdout) == (code, output)
    assert not (tmp_path / "artifacts" / "preprocess").exists()
    assert code == 0 or "preprocess.vocabulary" in answer.stderr


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
    answer = a2("preprocess", *options)
    assert (answer.exit_code, answer.exception) == (0, None), answer.output
    [captions] = (tmp_path / "artifacts").glob("preprocess/*/captions.h5")
    found = CaptionFile(captions)
    assert [len(found.image_ids(split)) for split in ("train", "val", "test")] == [8, 1, 1]
    assert "nothing to do" in a2("preprocess", *options).stdout
    (folder / "3.txt").write_text("A cat.")
    assert "nothing to do" not in a2("preprocess", *options).stdout
