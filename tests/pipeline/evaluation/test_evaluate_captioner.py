"""Evaluation of a captioner on a split: its outputs and the inputs that it rejects."""

import json
import re
import shutil
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from a2cap.data.annotations.caption import AnnotatedCaption
from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.captions.attention_file import AttentionFile
from a2cap.data.captions.caption_file import write_captions
from a2cap.data.captions.coco_objects import coco_categories
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.json_file import read_json
from a2cap.data.files.sealed_folder import SkippedItem, read_manifest, write_manifest
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.evaluation import evaluate_captioner as evaluation
from a2cap.pipeline.evaluation import score_captions
from a2cap.pipeline.evaluation.evaluate_captioner import (
    evaluate_captioner,
    read_split,
    with_existing_split,
)
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig, EvaluationRun
from a2cap.pipeline.metrics import metric_table
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from tests.data.messages import message_of

RUNTIME = RuntimeConfig(device="cpu", threads=1)
CONFIG = EvaluateConfig(beam_size=2)
NAMES = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr"]


@pytest.fixture
def inputs(experiment):
    names = {"features": "extract", "captions": "preprocess", "model": "train-xe"}
    return {name: Input(experiment.directory(stage), "d" * 64) for name, stage in names.items()}


@pytest.fixture
def without_jvm(monkeypatch):
    """Score without METEOR, and with the identity as tokeniser."""
    monkeypatch.delitem(metric_table.FAMILIES, "METEOR")
    monkeypatch.setattr(score_captions, "tokenize", lambda captions, _: dict(captions))


@pytest.fixture
def run(experiment, inputs, tmp_path, without_jvm):
    """Evaluate the experiment's captioner into a directory of the test."""
    directory = tmp_path / "evaluated"
    directory.mkdir()

    def evaluate(config=CONFIG, **changed):
        with experiment.open() as opened:
            images = opened.files.images
        read = {**inputs, **changed}
        events = EventLog(directory)
        run = EvaluationRun(config, read, images, RUNTIME, directory, events, "absent")
        return evaluate_captioner(run)

    evaluate.directory = directory
    return evaluate


# --- the stage's files --------------------------------------------------------------------------


def test_metrics_json_has_the_documented_keys_and_the_grounding(experiment):
    content = read_json(experiment.directory("evaluate") / "metrics.json")
    keys = {"metrics", "n", "total", "not_run", "provenance"}
    assert content.keys() == keys | {
        *("confidence", "spice", "captions", "grounding", "bleu_without_brevity_penalty")
    }
    assert sorted(content["metrics"]) == sorted(NAMES)
    assert all(0 <= content["metrics"][name] <= 1 for name in NAMES if name != "CIDEr")
    assert content["metrics"]["CIDEr"] >= 0
    assert (content["n"], content["total"]) == (4, 4)
    assert list(content["not_run"]) == ["SPICE"]
    provenance = content["provenance"]
    assert all(isinstance(value, str) for value in provenance.values())
    assert provenance["split"] == "test"
    extractor = "ResNet-18, random, seed 0, given boxes, weights "
    assert provenance["extractor"].startswith(extractor)
    assert provenance["decoding"] == "beam 2, at most 20 tokens, length penalty 0"
    assert provenance["model.alignment.fusion"] == "gate"
    assert {"digest of features", "digest of captions", "digest of model"} <= provenance.keys()
    assert provenance["train.epochs"] == "8"
    assert provenance["attention"] == "mean over layers and heads"
    assert provenance["version of torch"] == version("torch")
    assert ", preset karpathy, " in provenance["vocabulary"]
    grounding = content["grounding"]
    assert grounding.keys() == {"original", "aligned", "uniform", "words"}
    assert grounding["words"] >= 1
    assert all(0 <= grounding[name] <= 1 for name in ("original", "aligned", "uniform"))
    for name in NAMES:
        low, high = content["confidence"][name]
        assert low <= content["metrics"][name] <= high
    assert (content["captions"]["captions"], content["captions"]["unknown"]) == (4, 0)
    assert 0 <= content["captions"]["beam_diversity"] <= 1


def test_the_attention_at_each_token_of_every_caption_is_saved(experiment):
    directory = experiment.directory("evaluate")
    attention = AttentionFile(directory / "attention.h5")
    store = FeatureStore(experiment.directory("extract") / "features.lmdb")
    for entry in read_json(directory / "captions.json"):
        image_id = f"{entry['image_id']:012d}"
        shape = (len(entry["caption"].split()), len(store[image_id]))
        assert attention[image_id].aligned.shape == shape


@pytest.mark.parametrize(
    ("attention", "room", "saved", "layered", "certified"),
    [("all", 8 << 20, 4, 2, 2), ("report", 0, 2, 0, 2), ("none", 8 << 20, None, 0, 0)],
)
def test_attention_is_saved_for_the_configured_images(
    run, monkeypatch, attention, room, saved, layered, certified
):
    monkeypatch.setattr(evaluation, "MAX_LAYER_BYTES", room)
    run(EvaluateConfig(beam_size=1, attention=attention, report_images=2))
    path = run.directory / "attention.h5"
    assert (len(AttentionFile(path)) if path.exists() else None) == saved
    report = (run.directory / "report.html").read_text()
    assert report.count('"layers":[{"heads":2,') == layered
    # (all, without the top region, without that after alignment) of each word
    assert len(re.findall(r'"certificates":\[\[[\d.]+,[\d.]+,[\d.]+\]', report)) == certified


def test_attention_is_an_output_and_boxes_an_input_only_if_attention_is_saved(experiment):
    for value, has in (("all", True), ("none", False)):
        stage = experiment.open(f"evaluate.attention={value}").stage("evaluate")
        assert ("attention.h5" in stage.outputs) is has
        assert ("instances" in stage.inputs) is has


@pytest.mark.slow
def test_boxes_of_images_of_another_size_are_listed_and_not_used(run, experiment, tmp_path, caplog):
    content = read_json(experiment.scenes / "instances.json")
    for image in content["images"]:
        image["width"] = 95
    (tmp_path / "instances.json").write_text(json.dumps(content))
    run(instances=Input(tmp_path / "instances.json", "d" * 64))
    assert "grounding" not in read_json(run.directory / "metrics.json")
    reason = "image of 96 x 96 pixels after EXIF rotation, its boxes expect 95 x 96"
    listed = [message for message in caplog.messages if reason in message]
    assert len(listed) == 4  # the images of the split


@pytest.mark.slow
def test_a_captioner_that_was_copied_without_its_manifest_can_be_evaluated(run, inputs, tmp_path):
    copied = tmp_path / "model"
    shutil.copytree(inputs["model"].path, copied)
    (copied / "manifest.json").unlink()
    run(model=Input(copied, "c" * 64))
    provenance = read_json(run.directory / "metrics.json")["provenance"]
    assert "model.width" in provenance
    assert not [name for name in provenance if name.startswith("train.")]


@pytest.mark.slow
def test_provenance_names_every_decoding_option(run):
    run(
        EvaluateConfig(
            beam_size=4,
            consensus=True,
            neighbours=2,
            length_penalty=0.7,
            no_repeat_ngram=3,
            groups=2,
            diversity=0.25,
        )
    )
    provenance = read_json(run.directory / "metrics.json")["provenance"]
    assert provenance["decoding"] == (
        "beam 4, at most 20 tokens, length penalty 0.7, chosen by consensus, "
        "captions of the 2 nearest training images vote with weight 16, "
        "no 3 words in a row twice, 2 groups with diversity 0.25"
    )
    assert "ensemble" not in provenance


def test_votes_of_the_nearest_training_images_choose_the_captions(run, inputs, monkeypatch):
    plain = EvaluateConfig(beam_size=4)
    run(plain)
    before = read_json(run.directory / "captions.json")
    searched = []

    def find(store, captions, image_ids, *, count, max_regions, events):
        searched.append((store.path.parent, captions, list(image_ids), count, max_regions))
        return lambda image_id, hypotheses: 1e3 * torch.arange(len(hypotheses))

    monkeypatch.setattr(evaluation.Neighbours, "find", find)
    run(plain.model_copy(update={"consensus": True, "neighbours": 2}))
    after = read_json(run.directory / "captions.json")
    folders = inputs["features"].path, inputs["captions"].path
    assert searched == [(*folders, list(read_split("test", inputs)[0]), 2, None)]
    # the votes choose the last beam of each image
    assert [row["image_id"] for row in after] == [row["image_id"] for row in before]
    assert all(a["caption"] != b["caption"] for a, b in zip(after, before, strict=True))


def test_an_ensemble_of_equal_captioners_predicts_the_captions_of_one(run, inputs, experiment):
    again = inputs["model"]
    config = CONFIG.model_copy(update={"ensemble": (again.path, again.path)})
    run(config, **{"model.2": again, "model.3": again})
    expected = read_json(experiment.directory("evaluate") / "captions.json")
    assert read_json(run.directory / "captions.json") == expected
    provenance = read_json(run.directory / "metrics.json")["provenance"]
    assert provenance["ensemble"] == "3 captioners, mean of probabilities"
    assert provenance["extractor"].startswith("ResNet-18, random, seed 0, given boxes, weights ")
    assert provenance["attention"] == "mean over layers, heads and captioners"
    assert "digest of model.3" in provenance


def test_the_counts_of_each_image_are_saved(experiment):
    directory = experiment.directory("evaluate")
    images = read_json(directory / "per_image.json")["images"]
    entries = read_json(directory / "captions.json")
    assert list(images) == [f"{entry['image_id']:012d}" for entry in entries]
    annotated = read_json(experiment.scenes / "dataset_coco.json")["images"]
    test_split = sorted(image["cocoid"] for image in annotated if image["split"] == "test")
    assert [entry["image_id"] for entry in entries] == test_split
    for stored in images.values():
        assert stored.keys() == {"caption", "references", "metrics", "spice", "BLEU", "METEOR"}
        assert list(stored["metrics"]) == sorted(NAMES)
        assert (len(stored["BLEU"]), len(stored["METEOR"])) == (10, 23)
    mean = sum(stored["metrics"]["CIDEr"] for stored in images.values()) / 4
    assert mean == pytest.approx(read_json(directory / "metrics.json")["metrics"]["CIDEr"])


def test_equal_runs_write_equal_bytes(run):
    made = []
    for _ in range(2):
        assert run() == []
        names = ("captions.json", "report.html", "attention.h5")
        made.append([(run.directory / name).read_bytes() for name in names])
    assert made[0] == made[1]


@pytest.mark.slow
def test_the_configured_split_is_captioned(run, inputs):
    run(EvaluateConfig(split="val", beam_size=1))
    captioned = [f"{e['image_id']:012d}" for e in read_json(run.directory / "captions.json")]
    assert captioned == list(read_split("val", inputs)[0])
    assert "Captions of the val split" in (run.directory / "report.html").read_text()


# --- groups of words ----------------------------------------------------------------------------


def test_groups_of_words_are_scored_and_shown_with_the_baseline(run, experiment, tmp_path):
    words = Input(experiment.scenes / "words.json", "w" * 64)
    run(word_groups=words)
    first = read_json(run.directory / "metrics.json")
    assert {"colours", "kinds"} <= first["word_groups"].keys()
    assert first["word_groups"]["kinds"]["images"] >= 1
    assert first["provenance"]["digest of word_groups"] == "w" * 12
    images = read_json(run.directory / "per_image.json")["images"]
    total = sum(saved["word_groups"]["colours"]["predicted"] for saved in images.values())
    assert total == first["word_groups"]["colours"]["predicted"]

    other = tmp_path / "other.json"
    first["word_groups"]["colours"]["f1"] = 0.4375
    other.write_text(json.dumps(first))
    config = EvaluateConfig(beam_size=2, baseline=other, baseline_name="blind captioner")
    run(config, word_groups=words, baseline=Input(other, "b" * 64))
    report = (run.directory / "report.html").read_text()
    assert 'aria-label="Groups of words"' in report
    assert ">0.438</td>" in report and "blind captioner" in report
    assert read_json(run.directory / "metrics.json")["provenance"]["digest of baseline"] == "b" * 12


# --- CHAIR --------------------------------------------------------------------------------------


def test_chair_is_computed_of_instances_of_coco(run, experiment, tmp_path):
    content = read_json(experiment.scenes / "instances.json")
    for category, name in zip(content["categories"], sorted(coco_categories()), strict=False):
        category["name"] = name
    (tmp_path / "instances.json").write_text(json.dumps(content))
    run(
        EvaluateConfig(beam_size=1, chair=True, attention="none"),
        instances=Input(tmp_path / "instances.json", "d" * 64),
    )
    metrics = read_json(run.directory / "metrics.json")["metrics"]
    assert 0 <= metrics["CHAIR-s"] <= 1 and 0 <= metrics["CHAIR-recall"] <= 1
    rows = read_json(run.directory / "per_image.json")["images"].values()
    assert sum(row["CHAIR"][0] for row in rows) == 4  # captions


# --- images without features ------------------------------------------------------------------


def test_a_split_without_features_is_rejected(run, inputs, tmp_path):
    features = shutil.copytree(inputs["features"].path, tmp_path / "features")
    skipped = tuple(SkippedItem(name, "it was empty") for name in read_split("test", inputs)[0])
    before = read_manifest(features)
    write_manifest(features, before.model_copy(update={"skipped": skipped}))
    assert message_of(run, features=Input(features, "e" * 64)) == (
        "no image of split 'test' has features; set evaluate.split to another one"
    )


@pytest.mark.parametrize(("splits", "evaluated"), [(("train", "val"), "val"), (("test",), "test")])
def test_validation_is_evaluated_where_there_is_no_test_split(tmp_path, splits, evaluated):
    vocabulary = Vocabulary.from_counts({"dog": 1}, "karpathy", min_count=1)
    images = [
        AnnotatedImage(split, f"{split}.jpg", split, (AnnotatedCaption("dog", ("dog",)),))
        for split in splits
    ]
    write_captions(tmp_path / "captions.h5", images, vocabulary, preset="karpathy")
    inputs = {"captions": Input(tmp_path, "0" * 64)}
    made = EvaluationRun(EvaluateConfig(), inputs, {}, RUNTIME, tmp_path, EventLog(tmp_path), None)
    assert with_existing_split(made) == replace(made, config=EvaluateConfig(split=evaluated))


# --- SPICE --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_result_without_spice_is_kept_and_made_again_once_spice_is_installed(
    copy, monkeypatch, without_meteor
):
    def measure(candidates):
        return np.full(len(candidates), 0.25)

    spice = ("--set", "evaluate.spice=true")
    for _ in range(2):
        answer = copy.a2("evaluate", *spice, code=3)
        assert "SPICE    not run: SPICE needs its parser and Rhino; run " in answer.stdout
        assert answer.stderr.splitlines()[-1].startswith("a2: scored without SPICE; run ")
    assert "nothing to do" in answer.stdout
    monkeypatch.setattr("a2cap.pipeline.metrics.spice.spice_jars", list)
    monkeypatch.setattr("a2cap.pipeline.metrics.all_metrics.PARTS", ())
    monkeypatch.setitem(metric_table.FAMILIES, "SPICE", metric_table.family_of("SPICE"))
    monkeypatch.setattr("a2cap.pipeline.metrics.spice.spice_statistics", measure)
    why = copy.a2("status", *spice, "--explain").stdout
    assert "evaluate.has_spice False -> True" in why
    answer = copy.a2("evaluate", *spice, code=0)
    assert (answer.exit_code, "SPICE    0.2500" in answer.stdout) == (0, True), answer.stderr


@pytest.mark.parametrize("max_length", [2, 9])
def test_the_head_of_the_report_states_the_captioner_and_cut_captions(tmp_path, max_length):
    caption = AnnotatedCaption("a red dog", ("a", "red", "dog"))
    image = AnnotatedImage("1", "1.jpg", "val", (caption,))
    path, vocabulary = tmp_path / "captions.h5", Vocabulary.from_counts({"a": 9})
    write_captions(path, [image], vocabulary, preset="karpathy", max_length=max_length)
    inputs = {"model": Input(tmp_path, "m" * 64), "captions": Input(tmp_path, "c" * 64)}
    model = SimpleNamespace(description=SimpleNamespace(model=NicConfig()))
    facts = evaluation._facts(EvaluateConfig(split="val"), inputs, model)
    assert facts["Model"] == f"nic, fusion none, digest {'m' * 12}"
    cut = "1 of 1 captions (100.0%) have more than 2 tokens and are cut"
    assert facts.get("Long captions") == (cut if max_length == 2 else None)
