"""Estimates of disk space and memory, compared with measured peaks."""

from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.weights.initial import random_detector
from a2cap.model.captioners.attributes.lstm_a_config import LstmAConfig
from a2cap.model.captioners.kinds import make_captioner
from a2cap.pipeline.configuration import Config, load_config
from a2cap.pipeline.stages.estimates import (
    captioner_parameters,
    detector_bytes,
    detector_memory,
    detector_training_disk,
    encoder_memory,
    feature_width,
    step_memory,
)
from a2cap.pipeline.stages.train_scst import self_critical_tokens
from a2cap.pipeline.stages.train_xe import training_tokens
from a2cap.pipeline.training.captioner.train_config import TrainConfig
from a2cap.pipeline.training.checkpoints import training_disk
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from tests.model.kinds import KINDS

GIB = 2**30


def test_the_width_of_a_weights_file_is_read_from_its_header(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"roi_heads.box_predictor.cls_score.weight": torch.zeros(7, 24)}, path)
    assert feature_width(ExtractConfig(), path) == 24


@pytest.mark.parametrize("content", [b"", b"\x80\x04abcdefghij"])
def test_the_width_of_other_layouts_is_the_published_one(tmp_path, content):
    path = tmp_path / "weights.pkl"
    path.write_bytes(content)
    assert feature_width(ExtractConfig(), path) == 2048
    save_file({"other": torch.zeros(3)}, path)
    assert feature_width(ExtractConfig(), path) == 2048


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_without_making_any_and_tokens_take_memory(kind):
    config = KINDS[kind]()
    captioner = make_captioner(config, feature_width=24, vocabulary_size=40)
    counted = captioner_parameters(config, width=24, vocabulary=40)
    assert counted == sum(parameter.numel() for parameter in captioner.parameters())
    step = partial(step_memory, tokens=1, parameters=0, vocabulary=0)
    few, many = (step(Config(model=config, train=TrainConfig(max_regions=n))) for n in (2, 12))
    assert many >= few > 4 * config.width


# Peak of the process less that after the imports, one thread, torch 2.15: measured with one image
# of 480 x 640, with 10 x 5 captions of 20 tokens over 50 regions, and two updates of 32 images.
DETECTORS = [(101, 14, 1.19), (101, 7, 0.80), (18, 14, 0.50)]
SMALL = ("width=128", "encoder_layers=2", "decoder_layers=2", "feed_forward=512")
CAPTIONERS = [((), 1.85), (SMALL, 0.47)]
WHOLE = ("side=260", "trained=1")
ENCODERS = [
    (("side=160",), 0.48),
    (("side=160", "objective=captions"), 0.60),
    (WHOLE, 5.21),
    ((*WHOLE, "precision=bf16"), 3.81),
]


@pytest.mark.parametrize(("depth", "roi_size", "measured"), DETECTORS)
def test_the_detector_s_memory_is_near_what_was_measured(depth, roi_size, measured):
    network, config = Architecture(depth=depth), ExtractConfig(roi_size=roi_size)
    estimate = detector_memory(config, detector_bytes(network), network.feature_width) / GIB
    assert 0.7 * measured < estimate < 1.1 * measured


@pytest.mark.parametrize(("fields", "measured"), CAPTIONERS)
def test_the_memory_of_training_is_near_what_was_measured(fields, measured):
    config = load_config(None, ["train.max_regions=50", *(f"model.{f}" for f in fields)])
    parameters = captioner_parameters(config.model, width=2048, vocabulary=10_000)
    tokens = training_tokens(config)
    estimate = step_memory(config, tokens=tokens, parameters=parameters, vocabulary=10_000) / GIB
    assert 0.7 * measured < estimate < 1.1 * measured


def of_encoder(*fields, ranks=1):
    words = ("extract.weights=encoder", "extract.boxes=grid")
    lite = "extract.grid_backbone=efficientnet-lite2"
    config = load_config(None, [*words, lite, *(f"encoder.{f}" for f in fields)])
    return encoder_memory(config, ranks, vocabulary=2_000)


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "measured"), ENCODERS)
def test_the_memory_of_an_encoder_is_near_what_was_measured(fields, measured):
    assert 0.65 * measured < of_encoder(*fields) / GIB < 1.1 * measured


@pytest.mark.slow
def test_an_encoder_keeps_the_maps_of_the_images_that_are_computed_at_once():
    def memory(images, *fields, ranks=1):
        return of_encoder("side=64", f"batch_size={images}", *fields, ranks=ranks)

    maps = memory(2) - memory(1)
    weights = memory(1) - maps
    assert weights > 3 * 4 * 4_800_000  # most are trained: with a gradient and two moments
    assert memory(8) == weights + 8 * maps
    assert memory(8, "accumulate=2", ranks=2) == memory(2)
    assert memory(8, "precision=bf16") == memory(4)

    def decoder(images):
        return memory(images, "objective=captions") - memory(images)

    assert decoder(16) - decoder(8) == 2 * (decoder(8) - decoder(4)) > 0
    assert memory(8, "trained=0.1") < memory(8)
    assert memory(8) < memory(8, "side=128") < memory(32)  # smaller maps have wider edges


def test_the_memory_of_a_step_is_estimated_with_more_attributes_than_the_few_tokens_it_runs():
    config = Config(model=LstmAConfig(width=6, embedding=6))
    assert config.model.least_vocabulary == 1004
    assert step_memory(config, tokens=0, parameters=3, vocabulary=2000) == 4 * 4 * 3


def test_a_step_keeps_the_tokens_of_the_part_that_is_computed_at_once():
    def tokens(*overrides, processes=1):
        return training_tokens(load_config(None, overrides), processes)

    half = tokens("train.batch_size=5")
    assert tokens("train.batch_size=10") == 2 * half
    assert tokens("train.batch_size=10", processes=2) == half
    assert tokens("train.batch_size=10", "train.accumulate=2") == half
    assert tokens("train.batch_size=19", "train.accumulate=2", processes=2) == half
    assert tokens("train.grouping=caption") < tokens("train.grouping=image")


def test_a_self_critical_step_keeps_the_tokens_of_its_samples():
    def tokens(*overrides):
        return self_critical_tokens(load_config(None, overrides))

    assert tokens() == 10 * 5 * 20  # images, samples, tokens
    assert tokens("scst.samples=6") > tokens()
    assert tokens("scst.mask=continued") > tokens()
    assert tokens("scst.accumulate=10") < tokens()


@pytest.mark.parametrize(("optimiser", "states"), [("sgd", 1), ("adamw", 2)])
def test_checkpoints_of_a_detector_hold_its_tensors_and_the_optimisers_states(optimiser, states):
    config = DetectorConfig(depth=18, width=8, proposal_width=16, optimiser=optimiser)
    architecture = Architecture(
        depth=18,
        width=8,
        classes=1,
        attributes=0,
        anchors=12,
        proposal_width=16,
        embedding_width=0,
        attribute_width=0,
    )
    meta = caffe_meta(origin="test", classes=1)
    tensors = random_detector(architecture, meta, generator=torch.Generator()).state_dict()
    numbers = sum(tensor.numel() for tensor in tensors.values())
    assert detector_training_disk(config) == 4 * numbers * (4 * (1 + states) + 1)


def test_four_checkpoints_with_their_moments_and_the_captioner_are_on_the_disk():
    assert training_disk(1000) == 4 * 1000 * (4 * 3 + 1)
