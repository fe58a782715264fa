"""The bundled captioner describes scenes that it was not trained on, and says what it knows."""

import pytest

import a2cap
from a2cap.data.files.checksum import sha256_of
from a2cap.data.scenes.generate import write_scenes
from a2cap.data.scenes.truth import judge, read_scenes
from a2cap.extract.extractor import load_extractor
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.captioning.model_description import load_description
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.demo import CONFIG as DEMO
from a2cap.pipeline.weights import captioners, detectors
from tests.test_structure import ROOT

CONFIG = "configs/captioner-scenes.yaml"
FOLDER = captioners.BUNDLED["scenes"].folder
UNSEEN = 5152
"""Seed of the scenes; that of training is in the config's header."""
LEAST_TRUE = {"category": 0.9, "colour": 0.85, "count": 0.8}
"""Shares of the statements; relations are often wrong (docs/scenes-detector.md)."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unseen") / "scenes"
    write_scenes(folder, count=40, seed=UNSEEN, side=224)
    return folder


def test_the_bundled_captioner_is_small_and_states_its_data():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 4_000_000
    description, vocabulary = load_description(FOLDER)
    assert description.trained_on == "scenes" and {"red", "fish", "left"} <= set(vocabulary.words)
    assert description.model == load_config(ROOT / CONFIG).model


def test_the_demo_extracts_the_regions_that_the_bundled_captioner_knows():
    demo = load_config(ROOT / "pipeline" / DEMO)
    known = ExtractorRecord.read(FOLDER / "extractor.json").config
    assert demo.extract.model_copy(update={"weights": None}) == known
    trained = load_config(ROOT / CONFIG)
    alignment = trained.model.alignment
    assert demo.model.model_copy(update={"alignment": alignment}) == trained.model
    assert trained.extract == demo.extract


@pytest.mark.slow
def test_the_bundled_captioner_reads_regions_of_the_bundled_detector(tmp_path):
    record = ExtractorRecord.read(FOLDER / "extractor.json")
    extractor = load_extractor(detectors.BUNDLED["scenes"].path, config=record.config)
    extractor.save(tmp_path / "weights.safetensors")
    assert record.weights_sha256 == sha256_of(tmp_path / "weights.safetensors")


@pytest.mark.slow
def test_captions_of_unseen_scenes_name_what_is_there_in_its_colour(scenes):
    captioner = a2cap.load("scenes", device="cpu", beam_size=3)
    known = read_scenes(scenes / "instances.json")
    images = sorted((scenes / "images").glob("*.jpg"))
    found = [judge(captioner(image).tokens, known[image.stem]) for image in images]
    for family, least in LEAST_TRUE.items():
        stated = [s.is_true for one in found for s in one.statements if s.family == family]
        assert len(stated) >= 20 and sum(stated) >= least * len(stated), family
