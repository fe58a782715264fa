"""The benchmark of image encoders."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from a2cap.pipeline.engine.artifact_names import ENCODER
from benchmarks import encoder
from benchmarks.photos_data import read_rows


@pytest.fixture
def table(tmp_path):
    """Return captions.csv of five images, two of them to validate."""
    rng = np.random.default_rng(0)
    rows = ["image,caption,split"]
    animals = ("cat", "owl", "dog", "hen", "cow")
    for number, split in enumerate(("train", "val", "train", "train", "val")):
        pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows += [f"{number}.png,a {animals[number]} sits,{split}"] * 5
    path = tmp_path / "captions.csv"
    path.write_text("\n".join(rows))
    return path


def test_the_test_images_are_those_that_choose_nothing(table, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "VALIDATION", 1)
    encoder.write_lines(tmp_path / "two.jsonl", read_rows(table), 2)
    lines = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    assert [(line["image"], line["split"]) for line in lines] == [
        ("0.png", "train"),
        ("2.png", "train"),
        ("1.png", "val"),
        ("4.png", "test"),
    ]
    assert lines[1]["captions"] == ["a dog sits"] * 5


@pytest.mark.slow
def test_both_objectives_train_in_turn(table, tmp_path):
    fields = ("preprocess.min_count=1", "train.epochs=1", "evaluate.beam_size=3")
    fields += tuple(f"encoder.{field}" for field in ("min_images=1", "side=32", "epochs=1"))
    lines = encoder.written_lines(tmp_path / "lines", table, 2)
    figures = encoder.compared(
        tmp_path, lines, tmp_path / "work", encoder="both", seed=0, fields=fields
    )
    assert [set(epoch) & {"mAP", "likelihood"} for epoch in figures["epochs"]] == [{"likelihood"}]
    folders = (tmp_path / "work" / "artifacts" / "train-encoder").glob("*/manifest.json")
    manifests = [json.loads(path.read_text()) for path in folders]
    by_objective = {m["made_from"]["fields"]["encoder"]["objective"]: m for m in manifests}
    of_words = by_objective["words"]["outputs"][ENCODER]["sha256"]
    assert by_objective["captions"]["made_from"]["inputs"]["start"] == of_words


def test_both_loops_are_timed_on_the_same_images(table, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "VALIDATION", 1)
    output = tmp_path / "results.json"
    fields = ("encoder.side=32", "encoder.trained=0.1", "encoder.min_images=1")
    answer = CliRunner().invoke(
        encoder.main,
        ["speed", "--images", str(tmp_path), "--annotations", str(table), "--count", "2"]
        + ["--rounds", "1", "--folder", str(tmp_path / "work"), "--output", str(output)]
        + [word for field in fields for word in ("--set", field)],
    )
    assert answer.exit_code == 0, answer.output
    [result] = json.loads(output.read_text())["speed"]
    assert result["images"] == 2 and all(ratio > 0 for ratio in result["ratios"])
    assert "2 images, side 32, 1 rounds" in answer.output
