"""The bundled captioner of photographs: the default, small, and at ease with any image file."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import a2cap
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.captioning.model_description import load_description
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.weights import captioners
from a2cap.pipeline.weights.detectors import BUNDLED
from tests.experiments import a2
from tests.test_structure import ROOT

FOLDER = captioners.BUNDLED["photos"].folder
CAT = Path(str(files("a2cap.pipeline") / "chelsea.jpg"))


@pytest.fixture(scope="module")
def captioner():
    return a2cap.load(device="cpu")


def test_it_is_small_and_the_one_that_its_configuration_trains():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 15_000_000
    description, vocabulary = load_description(FOLDER)
    assert description.trained_on == "coco-photos" and "surfboard" in vocabulary.words
    assert description.model == load_config(ROOT / "configs/captioner-photos.yaml").model
    provenance = json.loads((FOLDER / "provenance.json").read_text())
    assert provenance["photographs"] == 5557 and "CC BY 4.0" in provenance["captions"]


def test_it_names_the_cat_and_shows_aligned_attention(captioner):
    caption = captioner(CAT)
    assert "cat" in caption.tokens
    assert caption.attention.original.shape == (len(caption.tokens), 49)
    assert not np.allclose(caption.attention.aligned, caption.attention.original)
    assert caption.boxes[-1, 2:].tolist() == [451, 300]


def test_it_is_the_default_of_a2_caption(captioner):
    answer = a2("caption", CAT, code=0)
    assert answer.stdout == f"{CAT}: {captioner(CAT).caption}\n"
    assert answer.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "size"),
    [
        ("a.png", "RGB", (1, 1)),
        ("a.png", "RGB", (20_000, 10)),
        ("a.jpg", "L", (60, 40)),
        ("a.jpg", "CMYK", (60, 40)),
        ("a.png", "I;16", (60, 40)),
        ("a.png", "RGBA", (60, 40)),
    ],
)
def test_images_of_any_size_and_mode_have_a_caption(captioner, tmp_path, name, mode, size):
    Image.new(mode, size).save(tmp_path / name)
    caption = captioner(tmp_path / name)
    assert caption.caption and (caption.regions.width, caption.regions.height) == size


@pytest.mark.slow
def test_training_goes_on_from_it_on_photographs_of_ones_own(tmp_path):
    with Image.open(CAT) as cat:
        for number in range(3):
            cat.resize((224 + number, 224)).save(tmp_path / f"{number}.jpg")
    splits = ("train", "val", "test")
    lines = [
        {"image": f"{number}.jpg", "captions": [f"a tabby cat looks {side}"], "split": split}
        for number, (side, split) in enumerate(zip(("left", "up", "down"), splits, strict=True))
    ]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    start = ("extract.weights=photos", "train.start=photos")
    data = (f"data.images={tmp_path}", f"data.annotations={tmp_path / 'captions.jsonl'}")
    few = ("preprocess.min_count=1", "train.epochs=1", "evaluate.beam_size=3")
    fields = [word for field in (*start, *data, *few) for word in ("--set", field)]
    folder = tmp_path / "artifacts"
    ran = a2(
        "run", "-c", ROOT / "configs/captioner-photos.yaml", *fields, "--artifacts", folder, code=0
    )
    assert "another extractor" not in ran.stderr
    [training] = (folder / "train-xe").glob("*/extractor.json")
    own, bundled = (ExtractorRecord.read(file) for file in (training, FOLDER / "extractor.json"))
    assert own.weights_sha256 == bundled.weights_sha256 == BUNDLED["photos"].sha256
    assert not own.differences(bundled)
