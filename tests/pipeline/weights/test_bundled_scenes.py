"""The bundled detector and captioner of scenes, on scenes that they were not trained on."""

import pytest

import a2cap
from a2cap.data.detection.coco import read_coco
from a2cap.data.files.checksum import sha256_of
from a2cap.data.scenes.generate import write_scenes
from a2cap.data.scenes.objects import COLOURS, MUTED, SIZES, TEXTURES
from a2cap.data.scenes.truth import judge, read_scenes
from a2cap.extract.extractor import load_extractor
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.captioning.model_description import load_description
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.demo import CONFIG as DEMO
from a2cap.pipeline.training.detector.validation import detector_figures
from a2cap.pipeline.weights import captioners, detectors
from tests.test_structure import ROOT

DETECTOR = "configs/detector-scenes.yaml"
UNSEEN_BOXES = 5151
"""Seed of the scenes; those of training and validation are in the config's header."""
FAMILIES = ((*COLOURS, *MUTED), TEXTURES, tuple(SIZES))
GOALS = (0.97, 0.95, 0.90)
"""Least accuracy of colours, textures and sizes of the objects that are found."""


@pytest.fixture(scope="module")
def detector():
    return load_detector(detectors.BUNDLED["scenes"].path)


def test_the_bundled_detector_has_the_architecture_of_its_config(detector):
    config = load_config(ROOT / DETECTOR).detector
    architecture, meta = detector.architecture, detector.meta
    assert (architecture.depth, architecture.width) == (config.depth, config.width)
    assert meta.scale == (config.min_side, config.max_side)
    assert meta.last_stage == config.last_stage
    assert meta.region_pooling == config.region_pooling
    assert len(meta.anchors) == len(config.anchor_sizes) * len(config.anchor_ratios)


@pytest.mark.slow
def test_the_bundled_detector_generalises_to_unseen_scenes(detector, tmp_path):
    config = load_config(ROOT / DETECTOR).detector
    write_scenes(tmp_path / "scenes", count=60, seed=UNSEEN_BOXES, side=config.min_side)
    data = read_coco(tmp_path / "scenes" / "instances.json", tmp_path / "scenes" / "images")
    figures = detector_figures(detector, data, config)
    assert figures["AP50"] >= 0.90
    assert figures["proposal_recall"]["36"] >= 0.95
    families = [figures["attribute_accuracy"]["/".join(names)] for names in FAMILIES]
    assert len(families) == len(config.attribute_families)
    for accuracy, goal in zip(families, GOALS, strict=True):
        assert accuracy >= goal


CAPTIONER = "configs/captioner-scenes.yaml"
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
    assert description.model == load_config(ROOT / CAPTIONER).model


def test_the_demo_extracts_the_regions_that_the_bundled_captioner_knows():
    demo = load_config(ROOT / "pipeline" / DEMO)
    known = ExtractorRecord.read(FOLDER / "extractor.json").config
    assert demo.extract.model_copy(update={"weights": None}) == known
    trained = load_config(ROOT / CAPTIONER)
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
    judged = [judge(captioner(image).tokens, known[image.stem]) for image in images]
    for family, least in LEAST_TRUE.items():
        stated = [s.is_true for j in judged for s in j.statements if s.family == family]
        assert len(stated) >= 20 and sum(stated) >= least * len(stated), family
