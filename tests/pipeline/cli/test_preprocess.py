"""Command `a2 preprocess --prove`."""

import json

import pytest

from tests.data.messages import written
from tests.pipeline.experiments import a2


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
