"""Scores of a captioner of photographs."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file

import a2cap
from a2cap.data.captions.attention_file import AttentionFile, CaptionAttention, write_attention
from benchmarks import photos
from benchmarks.photos_table import distance_from_even
from benchmarks.study.results import Results
from tests.experiments import detecting

CAPTIONS = (
    ("a.jpg", "A cat sits on a bed.", "val"),
    ("a.jpg", "a cat is on a bed", "val"),
    ("b.jpg", "A red bus, parked.", "val"),
    ("c.jpg", "a dog", "train"),
    ("d.jpg", "two men in a boat", "val"),
)


def write_photos(folder, names):
    (folder / "images").mkdir()
    for name in names:
        Image.new("RGB", (32, 32)).save(folder / "images" / name)
    rows = [f'{image},"{caption}",{split}' for image, caption, split in CAPTIONS]
    (folder / "captions.csv").write_text("\n".join(["image,caption,split", *rows]))


@pytest.mark.slow
def test_photographs_of_a_split_are_captioned_and_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(photos, "RESULTS", tmp_path / "photos.csv")
    write_photos(tmp_path, ("a.jpg", "b.jpg"))  # the others are not read
    kept = tmp_path / "captions.jsonl"
    options = ["--photos", str(tmp_path), "--count", "2", "--set", "evaluate.beam_size=1"]
    options += ["--row", "two, greedy", "--output", str(kept)]
    answer = CliRunner().invoke(photos.main, ["score", *options])
    assert answer.exit_code == 0, answer.output
    assert "2 photographs of 'val'" in answer.output
    header, _, figures = answer.output.splitlines()[-3:]
    assert header.split()[: len(photos.SHOWN)] == list(photos.SHOWN) and "CPU time" in header
    assert all(0 <= float(figure) <= 1 for figure in figures.split()[:4])
    [row] = Results.read(photos.RESULTS).rows
    assert (row.label, row.phase) == ("two, greedy", "val") and "cores" in row.machine
    assert [f"{row.values[name]:.3f}" for name in ("CIDEr", "METEOR")] == [
        figures.split()[photos.SHOWN.index(name)] for name in ("CIDEr", "METEOR")
    ]
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [Path(line["image"]).name for line in lines] == ["a.jpg", "b.jpg"]
    assert photos.read_captions(kept) == {line["image"]: line["caption"] for line in lines}


@pytest.mark.slow
def test_a_written_captioner_has_half_the_bits_and_its_encoder(experiment, tmp_path):
    trained, target = experiment.directory("train-xe"), tmp_path / "captioner"
    encoder = trained / "weights.safetensors"
    photos.write_captioner(trained, encoder, target, {"photographs": 4})
    tensors, halves = (load_file(f / "model.safetensors") for f in (trained, target))
    for name, tensor in tensors.items():
        assert halves[name].equal(tensor.half() if tensor.is_floating_point() else tensor)
    Image.new("RGB", (96, 96)).save(tmp_path / "photo.png")
    detecting(target)  # boxes were given in training
    assert a2cap.load(target)(tmp_path / "photo.png").beams


@pytest.mark.slow
def test_a_row_of_the_table_is_trained_once_and_printed(tmp_path):
    write_photos(tmp_path, ("a.jpg", "b.jpg", "c.jpg", "d.jpg"))
    smallest = (
        "train.epochs=1",
        "scst.epochs=0",
        "preprocess.min_count=1",
        "evaluate.min_length=2",
    )
    options = ["--photos", tmp_path, "--folder", tmp_path / "table", "--row", "gru, none"]
    fields = [word for field in smallest for word in ("--set", field)]
    first, again = (
        CliRunner().invoke(photos.main, ["table", *map(str, options), *fields]) for _ in range(2)
    )
    assert first.exit_code == 0, first.output
    [row] = [line for line in first.output.splitlines() if line.startswith("gru, none")]
    assert row in again.output
    artifacts = tmp_path / "table" / "artifacts"
    assert len(list((artifacts / "train-xe").iterdir())) == 1
    [evaluation] = (artifacts / "evaluate").iterdir()
    shown = CliRunner().invoke(photos.main, ["show", str(evaluation)]).output.splitlines()[-1]
    assert shown.split()[1:] == row.split()[3:]
    assert 0 < float(row.split()[-1]) < 1


def test_the_distance_from_even_attention_is_that_of_words_by_hand(tmp_path):
    row = np.eye(4, dtype=np.float32)[:1]  # 3/4 from even
    images = {"a": np.concatenate((row, np.ones_like(row) / 4)), "b": row, "c": row[:0]}
    write_attention(
        tmp_path / "attention.h5",
        [(name, CaptionAttention(rows, rows)) for name, rows in images.items()],
    )
    assert distance_from_even(AttentionFile(tmp_path / "attention.h5")) == pytest.approx(0.5)


def test_an_error_is_one_line(tmp_path):
    answer = CliRunner().invoke(photos.main, ["score", "--photos", str(tmp_path)])
    assert answer.exit_code == 1
    assert answer.stderr == f"a2: no file '{tmp_path / 'captions.csv'}'; check the path\n"


def test_a_row_that_the_table_lacks_is_refused(tmp_path):
    answer = CliRunner().invoke(photos.main, ["table", "--photos", str(tmp_path), "--row", "cnn"])
    assert answer.exit_code == 2
    assert "no row: cnn; rows: transformer, none" in answer.output
