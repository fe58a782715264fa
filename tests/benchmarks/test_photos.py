"""Scores of a captioner of photographs."""

import json
from pathlib import Path

from click.testing import CliRunner
from PIL import Image

from benchmarks import photos

CAPTIONS = (
    ("a.jpg", "A cat sits on a bed.", "val"),
    ("a.jpg", "a cat is on a bed", "val"),
    ("b.jpg", "A red bus, parked.", "val"),
    ("c.jpg", "a dog", "train"),
    ("d.jpg", "two men in a boat", "val"),
)


def test_photographs_of_a_split_are_captioned_and_scored(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.jpg", "b.jpg"):  # the others are not read
        Image.new("RGB", (32, 32)).save(tmp_path / "images" / name)
    rows = [f'{image},"{caption}",{split}' for image, caption, split in CAPTIONS]
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption,split", *rows]))
    kept = tmp_path / "captions.jsonl"
    options = ["--photos", str(tmp_path), "--count", "2", "--beam-size", "1"]
    answer = CliRunner().invoke(photos.main, ["score", *options, "--output", str(kept)])
    assert answer.exit_code == 0, answer.output
    assert "2 photographs of 'val'" in answer.output
    header, _, figures = answer.output.splitlines()[-3:]
    assert header.split()[:5] == list(photos.SHOWN) and "CPU time" in header
    assert all(0 <= float(figure) <= 1 for figure in figures.split()[:4])
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [Path(line["image"]).name for line in lines] == ["a.jpg", "b.jpg"]
    assert photos.read_captions(kept) == {line["image"]: line["caption"] for line in lines}
