"""Evaluation: the files that it writes, what it refuses, and the scoring of somebody's captions."""

import json
import shutil
from importlib.metadata import version

import pytest
import torch
from click.testing import CliRunner

from a2cap.data.captions.attention_file import AttentionFile
from a2cap.data.errors import A2Error, InputError, StoreError
from a2cap.data.features.store import FeatureStore
from a2cap.pipeline.captioning.saved_captioner import load_model
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.config import override
from a2cap.pipeline.engine.stage import EventLog, Input
from a2cap.pipeline.evaluation import evaluate as evaluation
from a2cap.pipeline.evaluation.config import EvaluateConfig
from a2cap.pipeline.evaluation.evaluate import (
    evaluate_captioner,
    read_split,
    score_results,
)
from a2cap.pipeline.metrics import score as metrics
from a2cap.pipeline.metrics.java import JavaError
from a2cap.pipeline.runtime.config import RuntimeConfig

RUNTIME = RuntimeConfig(device="cpu", threads=1)
CONFIG = EvaluateConfig(beam_size=2)
NAMES = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr"]


def contents(directory, name):
    return json.loads((directory / name).read_text())


@pytest.fixture
def inputs(experiment):
    names = {"features": "extract", "captions": "preprocess", "model": "train-xe"}
    return {name: Input(experiment.directory(stage), "d" * 64) for name, stage in names.items()}


@pytest.fixture
def without_jvm(monkeypatch):
    """Scores without METEOR, and tokens as the tokeniser leaves captions of plain words."""
    monkeypatch.setattr(metrics, "_JVM_SCORERS", {})
    monkeypatch.setattr(evaluation, "tokenize", dict)


@pytest.fixture
def run(experiment, inputs, tmp_path, without_jvm):
    """Evaluates the experiment's captioner into a directory of our own."""
    directory = tmp_path / "evaluated"
    directory.mkdir()

    def evaluate(config=CONFIG, **changed):
        with experiment.open() as opened:
            images = opened.images
        found = {**inputs, **changed}
        events = EventLog(directory)
        return evaluate_captioner(
            config, found, images, RUNTIME, directory=directory, events=events
        )

    evaluate.directory = directory
    return evaluate


# --- the stage's files --------------------------------------------------------------------------


def test_metrics_have_the_form_that_is_agreed_on(experiment):
    content = contents(experiment.directory("evaluate"), "metrics.json")
    agreed = {"metrics", "n", "total", "not_run", "provenance"}
    assert content.keys() == agreed | {"confidence", "spice", "captions", "grounding"}
    assert sorted(content["metrics"]) == sorted(NAMES)
    assert all(0 <= content["metrics"][name] <= 1 for name in NAMES if name != "CIDEr")
    assert content["metrics"]["CIDEr"] >= 0
    assert (content["n"], content["total"]) == (4, 4)
    assert list(content["not_run"]) == ["SPICE"]
    provenance = content["provenance"]
    assert all(isinstance(value, str) for value in provenance.values())
    assert provenance["split"] == "test"
    made_by = "ResNet-18, calibrated-random, seed 0, given boxes, weights "
    assert provenance["extractor"].startswith(made_by)
    assert provenance["decoding"] == "beam 2, at most 20 tokens, length penalty 0"
    assert provenance["model.alignment.fusion"] == "gate"
    assert {"digest of features", "digest of captions", "digest of model"} <= provenance.keys()
    assert provenance["train.epochs"] == "8"
    assert provenance["attention"] == "mean over layers and heads"
    assert provenance["version of torch"] == version("torch")
    assert ", preset karpathy, " in provenance["vocabulary"]


def test_grounding_is_measured_where_there_are_boxes(experiment):
    grounding = contents(experiment.directory("evaluate"), "metrics.json")["grounding"]
    assert grounding.keys() == {"original", "aligned", "uniform", "words"}
    assert grounding["words"] >= 1
    assert all(0 <= grounding[name] <= 1 for name in ("original", "aligned", "uniform"))


def test_the_attention_at_each_word_of_every_caption_is_kept(experiment):
    directory = experiment.directory("evaluate")
    attention = AttentionFile(directory / "attention.h5")
    store = FeatureStore(experiment.directory("extract") / "features.lmdb")
    for entry in contents(directory, "captions.json"):
        image_id = f"{entry['image_id']:012d}"
        shape = (len(entry["caption"].split()), len(store[image_id]))
        assert attention[image_id].aligned.shape == shape


@pytest.mark.parametrize(("attention", "kept"), [("all", 4), ("report", 2), ("none", None)])
def test_attention_is_kept_of_as_many_images_as_asked(run, attention, kept):
    run(EvaluateConfig(beam_size=1, attention=attention, report_images=2))
    path = run.directory / "attention.h5"
    assert (len(AttentionFile(path)) if path.exists() else None) == kept


def test_only_the_attention_that_is_kept_is_a_declared_output_and_reads_the_boxes(experiment):
    for value, has in (("all", True), ("none", False)):
        stage = experiment.open(f"evaluate.attention={value}").stage("evaluate")
        assert ("attention.h5" in stage.outputs) is has
        assert ("instances" in stage.inputs) is has


def test_without_boxes_there_is_no_grounding(run):
    run()
    assert "grounding" not in contents(run.directory, "metrics.json")


def test_a_captioner_that_was_copied_without_its_manifest_can_be_evaluated(run, inputs, tmp_path):
    copied = tmp_path / "model"
    shutil.copytree(inputs["model"].path, copied)
    (copied / "manifest.json").unlink()
    run(model=Input(copied, "c" * 64))
    provenance = contents(run.directory, "metrics.json")["provenance"]
    assert "model.width" in provenance
    assert not [name for name in provenance if name.startswith("train.")]


def test_cross_entropy_is_unsaid_where_a_refined_captioner_lost_its_configuration(
    run, inputs, tmp_path
):
    refined = tmp_path / "model"
    shutil.copytree(inputs["model"].path, refined)
    manifest = contents(refined, "manifest.json")
    manifest["pre_image"].update({"stage": "train-scst", "params": {"scst": {"idf": "image"}}})
    (refined / "manifest.json").write_text(json.dumps(manifest))
    (refined / "config.yaml").unlink()
    run(model=Input(refined, "c" * 64))
    provenance = contents(run.directory, "metrics.json")["provenance"]
    trained = [name for name in provenance if name.startswith(("scst.", "train."))]
    assert trained == ["scst.idf"]


def test_every_choice_of_decoding_is_named(run):
    run(
        EvaluateConfig(beam_size=4, length_penalty=0.7, no_repeat_ngram=3, groups=2, diversity=0.25)
    )
    provenance = contents(run.directory, "metrics.json")["provenance"]
    assert provenance["decoding"] == (
        "beam 4, at most 20 tokens, length penalty 0.7, no 3 words in a row twice, "
        "2 groups with diversity 0.25"
    )
    assert "ensemble" not in provenance


def test_an_ensemble_of_equal_captioners_says_what_one_of_them_says(run, inputs, experiment):
    again = inputs["model"]
    config = CONFIG.model_copy(update={"ensemble": (again.path, again.path)})
    run(config, **{"model.2": again, "model.3": again})
    expected = contents(experiment.directory("evaluate"), "captions.json")
    assert contents(run.directory, "captions.json") == expected
    provenance = contents(run.directory, "metrics.json")["provenance"]
    assert provenance["ensemble"] == "3 captioners, mean of probabilities"
    assert provenance["attention"] == "mean over layers, heads and captioners"
    assert "digest of model.3" in provenance


def test_metrics_have_intervals_and_captions_have_figures(experiment):
    content = contents(experiment.directory("evaluate"), "metrics.json")
    for name in NAMES:
        low, high = content["confidence"][name]
        assert low <= content["metrics"][name] <= high
    assert content["captions"]["captions"] == 4
    assert 0 <= content["captions"]["beam_diversity"] <= 1
    assert content["captions"]["unknown"] == 0
    report = (experiment.directory("evaluate") / "report.html").read_text()
    low, high = content["confidence"]["CIDEr"]
    assert f">{low:.3f}–{high:.3f}<" in report
    assert "<dt>beam diversity</dt>" in report


def test_what_was_counted_of_each_image_is_kept(experiment):
    directory = experiment.directory("evaluate")
    images = contents(directory, "per_picture.json")["pictures"]
    captioned = [f"{e['image_id']:012d}" for e in contents(directory, "captions.json")]
    assert list(images) == captioned
    for found in images.values():
        assert found.keys() == {"caption", "references", "metrics", "spice", "BLEU", "METEOR"}
        assert list(found["metrics"]) == sorted(NAMES)
        assert (len(found["BLEU"]), len(found["METEOR"])) == (10, 23)
    mean = sum(found["metrics"]["CIDEr"] for found in images.values()) / 4
    assert mean == pytest.approx(contents(directory, "metrics.json")["metrics"]["CIDEr"])


def test_captions_are_in_coco_s_results_form(experiment):
    entries = contents(experiment.directory("evaluate"), "captions.json")
    images = contents(experiment.scenes, "dataset_coco.json")["images"]
    assert [entry["image_id"] for entry in entries] == sorted(
        image["cocoid"] for image in images if image["split"] == "test"
    )
    assert all(entry.keys() == {"image_id", "caption"} for entry in entries)
    assert all(isinstance(entry["caption"], str) for entry in entries)


@pytest.mark.slow
def test_the_scores_are_those_of_scoring_the_captions_by_themselves(experiment, tmp_path):
    """With METEOR, so that all that is measured anywhere is compared once."""
    evaluated = experiment.directory("evaluate")
    references = experiment.directory("preprocess") / "references.json"
    chosen = {f"{entry['image_id']:012d}" for entry in contents(evaluated, "captions.json")}
    known = json.loads(references.read_text())
    mine = tmp_path / "references.json"
    mine.write_text(json.dumps({name: known[name] for name in chosen}))
    scores = score_results(evaluated / "captions.json", mine, tmp_path / "scores")
    assert scores.scores.metrics == pytest.approx(contents(evaluated, "metrics.json")["metrics"])


def test_equal_runs_write_equal_bytes(run):
    made = []
    for _ in range(2):
        assert run() == []
        names = ("captions.json", "report.html", "attention.h5")
        made.append([(run.directory / name).read_bytes() for name in names])
    assert made[0] == made[1]


def test_another_split_is_captioned_when_asked(run, inputs):
    run(EvaluateConfig(split="val", beam_size=1))
    captioned = [f"{e['image_id']:012d}" for e in contents(run.directory, "captions.json")]
    assert captioned == list(read_split("val", inputs).references)
    assert "Captions of the val split" in (run.directory / "report.html").read_text()


def test_batches_do_not_change_the_captions(run):
    made = []
    for batch_size in (1, 3, 50):
        run(EvaluateConfig(beam_size=2, batch_size=batch_size))
        made.append(contents(run.directory, "captions.json"))
    assert made[0] == made[1] == made[2]


def test_the_report_shows_a_baseline_beside(run, tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"metrics": {"Bleu_1": 0.125, "CIDEr": 0.0625}}))
    config = EvaluateConfig(beam_size=2, baseline=path, baseline_name="blind captioner")
    run(config, baseline=Input(path, "b" * 64))
    report = (run.directory / "report.html").read_text()
    assert "blind captioner" in report
    assert "0.125" in report
    assert contents(run.directory, "metrics.json")["provenance"]["digest of baseline"] == "b" * 12


# --- groups of words ----------------------------------------------------------------------------


@pytest.fixture
def words(tmp_path):
    """A file of groups of words that the scenes' captions have."""
    path = tmp_path / "words.json"
    kinds = ["ball", "balls", "box", "boxes", "star", "stars", "house", "houses"]
    colours = ["red", "orange", "yellow", "green", "blue", "purple", "white", "black"]
    path.write_text(json.dumps({"kinds": kinds, "colours": colours}))
    return Input(path, "w" * 64)


def test_groups_of_words_are_scored_apart_and_shown_beside_the_baseline_s(run, words, tmp_path):
    run(word_groups=words)
    first = contents(run.directory, "metrics.json")
    assert list(first["word_groups"]) == ["colours", "kinds"]
    assert first["word_groups"]["kinds"]["words"]["pictures"] >= 1
    assert first["provenance"]["digest of word_groups"] == "w" * 12
    images = contents(run.directory, "per_picture.json")["pictures"]
    said = sum(found["word_groups"]["colours"]["said"] for found in images.values())
    assert said == first["word_groups"]["colours"]["words"]["said"]

    other = tmp_path / "other.json"
    first["word_groups"]["colours"]["words"]["f1"] = 0.4375
    other.write_text(json.dumps(first))
    config = EvaluateConfig(beam_size=2, baseline=other, baseline_name="blind captioner")
    run(config, word_groups=words, baseline=Input(other, "b" * 64))
    report = (run.directory / "report.html").read_text()
    assert "<caption>Groups of words</caption>" in report
    assert "<td>0.438</td>" in report


def test_without_groups_of_words_nothing_is_said_of_them(experiment):
    directory = experiment.directory("evaluate")
    assert "Groups of words" not in (directory / "report.html").read_text()
    assert "word_groups" not in contents(directory, "metrics.json")


# --- images without features ------------------------------------------------------------------


@pytest.fixture
def skipping(inputs, tmp_path):
    """Lists images of the test split as skipped by extraction; returns the changed input."""

    def skip(image_ids):
        features = tmp_path / "features"
        shutil.copytree(inputs["features"].path, features)
        lines = [json.dumps({"id": name, "reason": "it was empty"}) for name in image_ids]
        (features / "skipped.jsonl").write_text("\n".join(lines))
        return Input(features, "e" * 64)

    return skip


def test_images_that_extraction_skipped_leave_and_are_counted(run, inputs, skipping):
    lost, *kept = read_split("test", inputs).references
    [skipped] = run(features=skipping([lost]))
    assert (skipped.image_id, skipped.reason) == (lost, "it was empty")
    assert len(contents(run.directory, "captions.json")) == len(kept) == 3
    content = contents(run.directory, "metrics.json")
    assert (content["n"], content["total"]) == (3, 4)
    report = (run.directory / "report.html").read_text()
    assert "<strong>3 of 4</strong> images scored, 1 skipped" in report
    assert "it was empty" in report


def test_a_split_of_which_nothing_is_left_is_refused(run, inputs, skipping):
    with pytest.raises(InputError) as raised:
        run(features=skipping(read_split("test", inputs).references))
    assert str(raised.value) == (
        "no image of split 'test' has features; set evaluate.split to another one"
    )


def test_features_of_another_width_are_refused(inputs, experiment):
    width = load_model(inputs["model"].path, device=torch.device("cpu")).description.region_width
    store = FeatureStore(inputs["features"].path / "features.lmdb")
    store.require_width(width)
    object.__setattr__(store.seal, "__dict__", {**store.seal.__dict__, "feature_width": 32})
    with pytest.raises(StoreError) as raised:
        store.require_width(width)
    assert str(raised.value) == (
        f"region width of {str(store.path)!r} is 32, the model expects 64; "
        "retrain, or extract with the checkpoint that it was trained on"
    )


def test_a_directory_without_a_model_is_refused(run, tmp_path):
    with pytest.raises(A2Error) as raised:
        run(model=Input(tmp_path, "m" * 64))
    assert str(raised.value) == (
        f"no trained model in {str(tmp_path)!r}: model.safetensors is missing; "
        'name a directory that "a2 train" has finished'
    )


def test_without_java_nothing_is_decoded(run, monkeypatch):
    def no_java():
        raise JavaError("no java")

    monkeypatch.setattr(evaluation, "find_java", no_java)
    with pytest.raises(JavaError):
        run()
    assert list(run.directory.iterdir()) == []


# --- somebody's captions ------------------------------------------------------------------------

THEIRS = {1: "a red dog runs", 2: "two dogs"}
CAPTION_ALL = "caption every image"
PEOPLE_S = {1: ["A red dog runs.", "The dog is running."], 2: ["Two cats sleep.", "Cats."]}


@pytest.fixture
def theirs(tmp_path):
    """Writes results and references; returns the options that name them."""

    def write(captions=THEIRS, references=PEOPLE_S):
        results = [{"image_id": number, "caption": text} for number, text in captions.items()]
        pairs = [(number, text) for number, texts in references.items() for text in texts]
        coco = {
            "images": [{"id": number} for number in references],
            "annotations": [
                {"id": place, "image_id": number, "caption": text}
                for place, (number, text) in enumerate(pairs)
            ],
        }
        (tmp_path / "theirs.json").write_text(json.dumps(results))
        (tmp_path / "people.json").write_text(json.dumps(coco))
        named = {"results": "theirs.json", "references": "people.json", "output": "scores"}
        return [word for name, file in named.items() for word in (f"--{name}", tmp_path / file)]

    return write


@pytest.fixture
def a2_evaluate(monkeypatch):
    monkeypatch.setattr(metrics, "_JVM_SCORERS", {})

    def evaluate(*arguments):
        words = ["evaluate", *map(str, arguments)]
        return CliRunner().invoke(cli, words, catch_exceptions=False)

    return evaluate


def test_somebody_s_captions_are_scored(a2_evaluate, theirs, tmp_path):
    answer = a2_evaluate(*theirs())
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0] == "Bleu_1   0.8333"  # five of six words, and none too short
    assert lines[-2].startswith("SPICE    not run: ")
    assert lines[-1] == f"report: {tmp_path / 'scores' / 'report.html'}"
    content = contents(tmp_path / "scores", "metrics.json")
    assert (content["n"], content["total"]) == (2, 2)
    assert content["metrics"]["Bleu_1"] == pytest.approx(5 / 6)
    assert list(content["provenance"]) == ["sha256 of people.json", "sha256 of theirs.json"]
    report = (tmp_path / "scores" / "report.html").read_text()
    assert "Captions of theirs.json" in report
    assert '"caption":"a red dog runs"' in report


def test_groups_of_words_of_somebody_s_captions_are_scored(a2_evaluate, theirs, tmp_path):
    path = tmp_path / "words.json"
    path.write_text('{"kinds": ["dog", "dogs", "cats"], "colours": ["red"]}')
    named = ["--set", override("data.word_groups", path)]
    assert a2_evaluate(*theirs(), *named).exit_code == 0
    content = contents(tmp_path / "scores", "metrics.json")
    colours, kinds = (content["word_groups"][name] for name in ("colours", "kinds"))
    assert (colours["words"]["precision"], colours["pairs"]["accuracy"]) == (1, 1)
    assert (kinds["words"]["precision"], kinds["words"]["said"]) == (0.5, 2)
    assert "sha256 of words.json" in content["provenance"]

    path.write_text('{"kinds": []}')
    answer = a2_evaluate(*theirs(), *named, "--force")
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: group 'kinds' of {str(path)!r} is not a list of words; add some, or remove it\n"
    )


def test_scores_that_are_there_are_replaced_only_by_force(a2_evaluate, theirs, tmp_path):
    assert a2_evaluate(*theirs()).exit_code == 0
    before = (tmp_path / "scores" / "metrics.json").read_bytes()
    named = theirs({1: "a cat", 2: "a dog"})
    answer = a2_evaluate(*named)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: {str(tmp_path / 'scores')!r} already contains scores; "
        "name another folder, or use --force\n"
    )
    assert (tmp_path / "scores" / "metrics.json").read_bytes() == before
    assert a2_evaluate(*named, "--force").exit_code == 0
    assert (tmp_path / "scores" / "metrics.json").read_bytes() != before


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (
            {1: "a dog"},
            "1 of 2 images with references have no caption: 000000000002; "
            "caption them, or score the others with --allow-missing",
        ),
        (
            {**THEIRS, 3: "a bird"},
            "1 of 3 captions have no reference: 000000000003; "
            "remove them, or add references for those images",
        ),
    ],
)
def test_captions_of_other_images_are_refused(a2_evaluate, theirs, tmp_path, captions, message):
    answer = a2_evaluate(*theirs(captions))
    assert (answer.exit_code, answer.stderr) == (1, f"a2: {message}\n")
    assert not (tmp_path / "scores").exists()


def test_with_missing_captions_the_others_are_scored_when_allowed(a2_evaluate, theirs, tmp_path):
    answer = a2_evaluate(*theirs({1: THEIRS[1]}), "--allow-missing")
    assert answer.exit_code == 3
    assert answer.stdout.splitlines()[0] == "Bleu_1   1.0000"  # all four words of image 1
    assert answer.stderr == (
        "a2: 1 of 2 images with references have no caption: 000000000002; scored without them\n"
    )
    content = contents(tmp_path / "scores", "metrics.json")
    assert (content["n"], content["total"]) == (1, 2)
    report = (tmp_path / "scores" / "report.html").read_text()
    assert "<strong>1 of 2</strong> images scored, 1 skipped" in report
    assert "no caption in theirs.json" in report


def test_allowing_missing_captions_changes_nothing_where_none_is_missing(a2_evaluate, theirs):
    answer = a2_evaluate(*theirs(), "--allow-missing")
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[0] == "Bleu_1   0.8333"


@pytest.mark.parametrize("option", [[], ["--allow-missing"]])
def test_captions_of_unknown_images_are_never_allowed(a2_evaluate, theirs, option):
    answer = a2_evaluate(*theirs({3: "a bird"}), *option)
    assert (answer.exit_code, answer.stderr) == (
        1,
        "a2: 1 of 1 captions have no reference: 000000000003; "
        "remove them, or add references for those images\n",
    )


def test_missing_captions_are_allowed_only_of_results(a2_evaluate):
    answer = a2_evaluate("--allow-missing")
    assert answer.exit_code == 2
    assert answer.stderr.splitlines()[-1] == (
        "Error: --allow-missing belongs to --results; name them, or leave it out"
    )


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (
            {**THEIRS, 2: "a" * 10_000_000},
            "caption in entry 2 of {path} has 10,000,000 characters, "
            "the limit is 10,000; shorten it",
        ),
        ({**THEIRS, 2: "\n\t"}, "1 captions in {path} are empty: 000000000002; " + CAPTION_ALL),
        (
            {**THEIRS, 2: 7},
            "caption in entry 2 of {path} is 7; give a string",
        ),
    ],
)
def test_captions_that_cannot_be_scored_never_reach_the_jvm(
    a2_evaluate, theirs, tmp_path, monkeypatch, captions, message
):
    monkeypatch.setattr(evaluation, "tokenize", None)
    monkeypatch.setattr(evaluation, "read_reference_tokens", None)
    answer = a2_evaluate(*theirs(captions))
    path = repr(str(tmp_path / "theirs.json"))
    assert (answer.exit_code, answer.stderr) == (1, f"a2: {message.format(path=path)}\n")
    assert not (tmp_path / "scores").exists()


def test_captions_of_any_script_are_scored(a2_evaluate, theirs):
    people = {1: ["一只 红色 的 狗 跑", "ein Hündchen läuft"], 2: ["собака 🐕 бежит"]}
    answer = a2_evaluate(*theirs({1: people[1][1], 2: people[2][0]}, people))
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == "Bleu_1   1.0000"


def test_results_that_are_not_there_are_named(a2_evaluate, tmp_path):
    answer = a2_evaluate("--results", "r.json", "--references", "x.json", "--output", tmp_path)
    assert (answer.exit_code, answer.stderr) == (1, "a2: no file 'r.json'; check the path\n")
