"""Training: it learns, keeps the best, refuses what does not fit, and resumes bit for bit."""

import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError, LoaderError, StoreError
from a2cap.data.files.checksum import sha256_of
from a2cap.data.scenes.generate import write_scenes
from a2cap.data.scenes.objects import OBJECT_CATEGORIES
from a2cap.pipeline.captioning import saved_captioner as saved_model
from a2cap.pipeline.config import load_config
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.training import loop as training
from a2cap.pipeline.training import record as training_record
from a2cap.pipeline.training.captioner import cross_entropy
from a2cap.pipeline.training.captioner import task as captioner_phase
from a2cap.pipeline.training.captioner.config import CrossEntropyJob
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.data import read_training_data
from a2cap.pipeline.training.checkpoints import Checkpoints

SMALL = ("train.epochs=2", "train.batch_size=6", "train.checkpoint_every=4")
STEPS_PER_EPOCH, STEPS = 6, 12  # of the 32 training images
OPENINGS = ("a", "the largest is a")


@dataclass(frozen=True)
class Trainer:
    """Trains on the tiny experiment's features and captions, or on changed ones."""

    config_file: Path
    features: Path
    captions: Path

    def __call__(self, directory, *overrides):
        """The directory, filled."""
        directory.mkdir(exist_ok=True)
        config = load_config(self.config_file, (*SMALL, *overrides))
        job = CrossEntropyJob(
            train=config.train, model=config.model, features=self.features, captions=self.captions
        )
        cross_entropy.train_captioner(
            job, config.runtime, directory=directory, events=EventLog(directory)
        )
        return directory

    def until_done(self, directory, *overrides):
        """Starts again after every stop; returns the signals that stopped it."""
        stops = []
        while True:
            try:
                self(directory, *overrides)
            except Interrupted as stop:
                stops.append(stop.signal_number)
            else:
                return stops


@pytest.fixture(scope="module")
def train(experiment):
    return Trainer(
        experiment.config_file, experiment.directory("extract"), experiment.directory("preprocess")
    )


@pytest.fixture(scope="module")
def uninterrupted(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("training") / "uninterrupted")


@pytest.fixture
def signals(monkeypatch):
    """Real signals at the end of updates: step -> the signals that come then."""
    at = {}
    update = CrossEntropyOptimizer.step

    def update_and_signal(self, parts, number):
        losses = update(self, parts, number)
        for sent in at.get(number, ()):
            signal.raise_signal(sent)
        return losses

    monkeypatch.setattr(CrossEntropyOptimizer, "step", update_and_signal)
    return at


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def without_speed(directory):
    return [{**line, "tokens_per_second": None} for line in lines(directory)]


def checkpoint_steps(directory):
    return Checkpoints(directory / "checkpoints").steps()


def events(directory, kind):
    found = map(json.loads, (directory / "events.jsonl").read_text().splitlines())
    return [event for event in found if event["event"] == kind]


def assert_equal_results(one, other):
    """Bit for bit, and what is said of each epoch."""
    for name in ("model.safetensors", "model.json", "vocabulary.json", "extractor.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert without_speed(one) == without_speed(other)


def scored(monkeypatch, *scores):
    """Validation finds these CIDErs, one epoch after the other."""
    left = list(scores)
    monkeypatch.setattr(captioner_phase, "cider", lambda candidates, references: left.pop(0))


# what a training makes


def test_a_directory_holds_all_that_captions_need(uninterrupted, train):
    assert {path.name for path in uninterrupted.iterdir()} == {
        "model.safetensors",
        "model.json",
        "vocabulary.json",
        "extractor.json",
        "weights.safetensors",
        "checkpoints",
        "metrics.jsonl",
        "events.jsonl",
        "tensorboard",
    }
    for name in ("extractor.json", "weights.safetensors"):
        assert (uninterrupted / name).read_bytes() == (train.features / name).read_bytes()


def test_the_loss_falls_clearly_in_a_few_epochs(train, tmp_path):
    found = train(tmp_path / "few", "train.epochs=4", "train.batch_size=3")
    losses = [line["loss"] for line in lines(found)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]


def captioned_by_their_largest_things(experiment, folder):
    """600 scenes as the tiny experiment's 40, captioned by the largest thing's colour and kind."""
    scenes = folder / "scenes"
    write_scenes(scenes, count=600, seed=0, side=96, workers=1)
    instances = json.loads((scenes / "instances.json").read_text())
    kinds = {category["id"]: category["name"] for category in instances["categories"]}
    largest = {}
    for thing in sorted(instances["annotations"], key=lambda thing: thing["area"]):
        if kinds[thing["category_id"]] in OBJECT_CATEGORIES:  # clutter is not spoken of
            largest[thing["image_id"]] = [thing["attributes"][0], kinds[thing["category_id"]]]
    karpathy = json.loads((scenes / "dataset_coco.json").read_text())
    for image in karpathy["images"]:
        for sentence, opening in zip(image["sentences"], OPENINGS, strict=False):
            words = [*opening.split(), *largest[image["cocoid"]]]
            sentence.update(tokens=words, raw=" ".join(words))
        del image["sentences"][len(OPENINGS) :]
    (folder / "captions.json").write_text(json.dumps(karpathy))
    places = {
        "images": scenes / "images",
        "annotations": folder / "captions.json",
        "instances": scenes / "instances.json",
    }
    return experiment.open(
        *(f"data.{name}={place}" for name, place in places.items()), artifacts=folder / "artifacts"
    )


@pytest.mark.slow
def test_a_captioner_that_trains_longer_describes_the_validation_scenes(experiment, tmp_path):
    """CIDEr of 60 scenes, mean of five epochs: 1.3 to 1.8 with three seeds, blind 0.4 to 0.6."""
    with captioned_by_their_largest_things(experiment, tmp_path) as opened:
        for stage in ("calibrate", "extract", "preprocess"):
            opened.run(stage)
        folders = [
            opened.result(stage, needed_by="a test").directory
            for stage in ("extract", "preprocess")
        ]
    train = Trainer(experiment.config_file, *folders)
    sizes = ("model.width=32", "model.feed_forward=64", "train.batch_size=8")
    rate = ("train.schedule=constant", "train.lr=0.003")
    found = lines(train(tmp_path / "longer", "train.epochs=10", "train.patience=10", *sizes, *rate))
    assert sum(line["CIDEr"] for line in found[-5:]) / 5 > 0.9
    assert found[-1]["loss"] < 0.9


def test_metrics_have_one_line_per_epoch(uninterrupted):
    found = lines(uninterrupted)
    assert [line["epoch"] for line in found] == [1, 2]
    assert [line["step"] for line in found] == [6, 12]
    assert all(
        line.keys()
        == {"epoch", "step", "loss", "mask_loss", "mean_mask", "CIDEr", "tokens_per_second"}
        for line in found
    )


def test_the_board_has_speed_and_divergence_of_each_epoch(uninterrupted):
    board = EventAccumulator(str(uninterrupted / "tensorboard")).Reload()
    names = board.Tags()["scalars"]
    layers = [name for name in names if name.startswith("validation/JSD/layer_")]
    assert layers
    assert {"validation/CIDEr", "train/tokens_per_second"} <= set(names)
    for name in layers:
        found = board.Scalars(name)
        assert [entry.step for entry in found] == [6, 12]
        assert all(0 <= entry.value <= math.log(2) for entry in found)


def test_equal_settings_train_equal_captioners(train, uninterrupted, tmp_path):
    assert_equal_results(train(tmp_path / "again"), uninterrupted)


def test_another_seed_trains_another_captioner(train, uninterrupted, tmp_path):
    other = train(tmp_path / "other", "train.seed=1")
    names = ("model.safetensors", "model.json")
    equal = [(other / name).read_bytes() == (uninterrupted / name).read_bytes() for name in names]
    assert equal == [False, True]


@pytest.mark.parametrize("choice", ["train.grouping=caption", "model.alignment.fusion=none"])
def test_other_recipes_train_too(train, tmp_path, choice):
    found = lines(train(tmp_path / "other", choice, "train.batch_size=12"))
    assert found[1]["loss"] < found[0]["loss"]
    assert (found[0]["mask_loss"] == 0.0) == (choice.endswith("none"))


def test_the_best_epoch_is_saved_and_not_the_last(train, tmp_path, monkeypatch):
    scored(monkeypatch, 0.7, 0.4)
    found = train(tmp_path / "best")
    checkpoints = Checkpoints(found / "checkpoints")
    assert checkpoints.steps() == [6, 8, 12]
    saved = load_file(found / "model.safetensors")
    best, last = checkpoints.load(6).tensors, checkpoints.load(12).tensors
    assert saved.keys() == best.keys()
    assert all(torch.equal(saved[name], best[name]) for name in best)
    assert not all(torch.equal(saved[name], last[name]) for name in last)


def test_of_equal_epochs_the_first_is_the_best(train, tmp_path, monkeypatch):
    scored(monkeypatch, 0.4, 0.4)
    found = train(tmp_path / "equal")
    assert load_file(found / "model.safetensors")["schedule_step"].item() == 6


@pytest.mark.parametrize(
    ("patience", "scores"),
    [(1, [0.5, 0.4]), (2, [0.1, 0.0, 0.5, 0.4, 0.5])],
)
def test_training_ends_when_patience_runs_out(train, tmp_path, monkeypatch, patience, scores):
    scored(monkeypatch, *scores)
    found = train(
        tmp_path / "early", f"train.patience={patience}", "train.epochs=9", "train.batch_size=16"
    )
    assert [line["CIDEr"] for line in lines(found)] == scores
    best = scores.index(max(scores)) + 1
    assert load_file(found / "model.safetensors")["schedule_step"].item() == 2 * best


def test_patience_is_remembered_by_a_training_that_resumes(train, tmp_path, monkeypatch, signals):
    scored(monkeypatch, 0.5, 0.4, 0.3)
    signals[5] = [signal.SIGTERM]
    overrides = ("train.patience=2", "train.epochs=9", "train.batch_size=16")
    assert train.until_done(tmp_path / "early", *overrides) == [signal.SIGTERM]
    assert [line["CIDEr"] for line in lines(tmp_path / "early")] == [0.5, 0.4, 0.3]


def test_only_as_many_validation_images_are_decoded_as_asked_for(train, tmp_path, monkeypatch):
    asked = []

    def score(candidates, references):
        asked.append((sorted(candidates), sorted(references)))
        return 0.5

    monkeypatch.setattr(captioner_phase, "cider", score)
    train(tmp_path / "some", "train.max_validation_images=2", "train.epochs=1")
    first = read_training_data(train.features, train.captions).validation[:2]
    assert asked == [(sorted(first), sorted(first))]


def test_progress_is_told_now_and_then_with_the_step_and_all_of_them(train, tmp_path, monkeypatch):
    monkeypatch.setattr(training_record, "_SECONDS_BETWEEN_EVENTS", 0.0)
    found = events(train(tmp_path / "told"), "progress")
    assert [(event["step"], event["total"]) for event in found] == [
        (step, STEPS) for step in range(1, STEPS + 1)
    ]


# exact resume


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(1, id="after the first update"),
        pytest.param(3, id="in the middle of an epoch"),
        pytest.param(4, id="where a checkpoint is due anyway"),
        pytest.param(STEPS_PER_EPOCH, id="at the last batch of an epoch"),
        pytest.param(STEPS_PER_EPOCH + 1, id="at the first batch of an epoch"),
        pytest.param(STEPS, id="at the very last batch"),
    ],
)
def test_a_stopped_training_ends_as_if_left_alone(train, uninterrupted, tmp_path, signals, step):
    sent = signal.SIGINT if step % 2 else signal.SIGTERM
    signals[step] = [sent]
    found = tmp_path / "stopped"
    with pytest.raises(Interrupted) as stop:
        train(found)
    assert stop.value.signal_number == sent
    assert not (found / "model.safetensors").exists()
    assert checkpoint_steps(found)[-1] == step
    train(found)
    assert events(found, "resume") == [events(found, "resume")[0] | {"step": step}]
    assert_equal_results(found, uninterrupted)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_training_stopped_many_times_ends_as_if_left_alone(
    train, uninterrupted, tmp_path, signals, workers
):
    steps = (2, 6, 7, 10)
    signals.update({step: [signal.SIGTERM] for step in steps})
    found = tmp_path / "stopped"
    assert train.until_done(found, f"runtime.workers={workers}") == [signal.SIGTERM] * 4
    assert [event["step"] for event in events(found, "resume")] == list(steps)
    assert_equal_results(found, uninterrupted)


def test_dropout_is_on_in_what_is_compared(train, uninterrupted, tmp_path):
    other = train(tmp_path / "without", "model.dropout=0.0", "train.epochs=1")
    assert json.loads((uninterrupted / "model.json").read_text())["model"]["dropout"] == 0.1
    assert lines(other)[0]["loss"] != lines(uninterrupted)[0]["loss"]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_stop_during_validation_ends_the_run_after_it(
    train, uninterrupted, tmp_path, monkeypatch, epoch
):
    validate = captioner_phase.cider
    validated = []

    def score(candidates, references):
        validated.append(candidates)
        if len(validated) == epoch:
            signal.raise_signal(signal.SIGTERM)
        return validate(candidates, references)

    monkeypatch.setattr(captioner_phase, "cider", score)
    found = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        train(found)
    assert len(lines(found)) == epoch
    assert not (found / "model.safetensors").exists()
    train(found)
    assert len(validated) == 2
    assert_equal_results(found, uninterrupted)


def test_two_loader_processes_and_a_stop_change_nothing(train, uninterrupted, tmp_path, signals):
    signals[9] = [signal.SIGTERM]
    assert train.until_done(tmp_path / "two", "runtime.workers=2") == [signal.SIGTERM]
    assert_equal_results(tmp_path / "two", uninterrupted)


@pytest.mark.parametrize(("sent", "raised"), [([signal.SIGTERM], Interrupted), ([], LoaderError)])
def test_a_signal_that_also_ends_the_loaders_is_a_stop_and_not_an_error(
    train, tmp_path, monkeypatch, sent, raised
):
    """torch raises RuntimeError wherever this process is when one of its loaders dies."""

    def update(self, parts, number):
        for number_of_signal in sent:
            signal.raise_signal(number_of_signal)
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    monkeypatch.setattr(CrossEntropyOptimizer, "step", update)
    with pytest.raises(raised):
        train(tmp_path / "ended")
    assert checkpoint_steps(tmp_path / "ended") == []


@pytest.mark.filterwarnings("ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_loader_that_the_kernel_kills_is_named_and_the_same_command_resumes(
    train, uninterrupted, tmp_path, monkeypatch
):
    step = CrossEntropyOptimizer.step

    def kill_a_loader(self, parts, number):
        if number == STEPS_PER_EPOCH + 1:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        return step(self, parts, number)

    found = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropyOptimizer, "step", kill_a_loader)
        with pytest.raises(
            LoaderError,
            # which words torch or the system have for it depends on where it was just then
            match=r"^a data loader worker died: .+; the newest checkpoint is kept, "
            r"lower runtime\.workers or the batch size if memory ran out, and run again$",
        ):
            train(found, "runtime.workers=1")
    assert max(checkpoint_steps(found)) == STEPS_PER_EPOCH
    train(found)
    assert_equal_results(found, uninterrupted)


def test_a_second_signal_ends_the_run_without_saving(train, uninterrupted, tmp_path, signals):
    signals[6] = [signal.SIGINT, signal.SIGINT]
    found = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        train(found)
    assert checkpoint_steps(found) == [4]
    signals.clear()
    train(found)
    assert_equal_results(found, uninterrupted)


def test_a_second_signal_during_a_save_leaves_nothing_under_a_final_name(
    train, uninterrupted, tmp_path, signals, monkeypatch
):
    signals[5] = [signal.SIGTERM]
    found = tmp_path / "stopped"
    with monkeypatch.context() as patch:

        def signal_and_digest(path):
            if path.parent.name == ".step-00000005.partial":
                signal.raise_signal(signal.SIGTERM)
            return sha256_of(path)

        patch.setattr("a2cap.pipeline.training.checkpoints.sha256_of", signal_and_digest)
        with pytest.raises(Interrupted):
            train(found)
    assert {path.name for path in (found / "checkpoints").iterdir()} == {
        "step-00000004",
        ".step-00000005.partial",
    }
    # the arranged signal comes again, as update 5 is made again
    assert train.until_done(found) == [signal.SIGTERM]
    assert_equal_results(found, uninterrupted)


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    train, uninterrupted, tmp_path, signals, caplog
):
    signals[10] = [signal.SIGTERM]
    found = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        train(found)
    damaged = found / "checkpoints" / "step-00000010" / "state.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    train.until_done(found)
    assert events(found, "resume")[0]["step"] == 8
    assert "going back to the one before it" in caplog.text
    assert_equal_results(found, uninterrupted)


def test_a_run_that_died_between_an_epochs_line_and_its_checkpoint_has_one_line_of_it(
    train, uninterrupted, tmp_path, monkeypatch
):
    save = Checkpoints.save

    def die_at_the_end_of_an_epoch(self, step, **what):
        if what["state"]["position"]["epoch"] == 1:
            raise Interrupted(signal.SIGKILL)
        save(self, step, **what)

    found = tmp_path / "died"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Checkpoints, "save", die_at_the_end_of_an_epoch)
        train(found)
    assert [line["epoch"] for line in lines(found)] == [1]
    train(found)
    assert [line["epoch"] for line in lines(found)] == [1, 2]
    assert_equal_results(found, uninterrupted)


def test_a_run_that_died_after_its_last_epoch_only_saves_the_model(
    train, uninterrupted, tmp_path, monkeypatch
):
    found = tmp_path / "died"
    with monkeypatch.context() as patch:

        def die(*arguments, **named):
            raise Interrupted(signal.SIGKILL)

        patch.setattr(saved_model, "save_model", die)
        with pytest.raises(Interrupted):
            train(found)
    monkeypatch.setattr(CrossEntropyOptimizer, "step", None)
    train(found)
    assert_equal_results(found, uninterrupted)


def copied_artifacts(experiment, folder):
    """The experiment's artifacts without the trained captioner and its evaluation."""
    ignored = shutil.ignore_patterns("train-xe", "evaluate")
    return Path(shutil.copytree(experiment.artifacts, folder / "artifacts", ignore=ignored))


def test_a_stopped_stage_ends_with_the_same_digest(experiment, tmp_path, signals):
    artifacts = copied_artifacts(experiment, tmp_path)
    signals.update({3: [signal.SIGTERM], 4: [signal.SIGINT], 6: [signal.SIGTERM]})
    opened = experiment.open(artifacts=artifacts)
    for _ in range(3):
        with pytest.raises(Interrupted):
            opened.run("train-xe")
        assert opened.status("train-xe").state == "partial"
    outcome = opened.run("train-xe")
    assert outcome.ran
    assert not opened.run("train-xe").ran
    opened.close()
    expected = experiment.open().result("train-xe", needed_by="a test")
    assert outcome.manifest.digest == expected.manifest.digest
    assert outcome.directory.name == expected.directory.name


def killed_after(process, partial, checkpoints):
    """Kills it once it has written so many more checkpoints, somewhere between two of them."""
    log = partial / "events.jsonl"

    def written():
        return log.read_text().count('"checkpoint"') if log.exists() else 0

    wanted = written() + checkpoints
    while process.poll() is None and written() < wanted:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_in_the_middle_of_epochs_ends_with_the_same_digest(experiment, tmp_path, workers):
    overrides = (
        "train.epochs=4",
        "train.batch_size=1",
        "train.checkpoint_every=5",
        f"runtime.workers={workers}",
    )
    (tmp_path / "killed").mkdir()
    (tmp_path / "alone").mkdir()
    artifacts = copied_artifacts(experiment, tmp_path / "killed")
    opened = experiment.open(*overrides, artifacts=artifacts)
    partial = artifacts / "train-xe" / f"{opened.stage('train-xe').pre_image.key}.partial"
    command = [sys.executable, "-m", "a2cap.pipeline", "train", "-c", str(experiment.config_file)]
    command += ["--artifacts", str(artifacts)]
    command += [word for override in overrides for word in ("--set", override)]
    positions = []
    for checkpoints in (2, 4, 3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert killed_after(process, partial, checkpoints) == -signal.SIGKILL
        positions.append(Checkpoints(partial / "checkpoints").latest().state["position"]["batch"])
    assert any(positions), "all kills came at the end of an epoch"
    outcome = opened.run("train-xe")
    opened.close()
    assert len(events(outcome.directory, "resume")) == 3
    assert [line["epoch"] for line in lines(outcome.directory)] == [1, 2, 3, 4]

    alone = experiment.open(*overrides, artifacts=copied_artifacts(experiment, tmp_path / "alone"))
    expected = alone.run("train-xe")
    alone.close()
    assert outcome.manifest.digest == expected.manifest.digest
    assert_equal_results(outcome.directory, expected.directory)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_and_its_loaders_ends_it_resumable(experiment, tmp_path, sent):
    """Ctrl-C reaches the loader's processes too; a scheduler's SIGTERM often does."""
    artifacts = copied_artifacts(experiment, tmp_path)
    overrides = ("train.epochs=2", "train.batch_size=1", "runtime.workers=2")
    opened = experiment.open(*overrides, "train.checkpoint_every=1", artifacts=artifacts)
    partial = artifacts / "train-xe" / f"{opened.stage('train-xe').pre_image.key}.partial"
    command = [sys.executable, "-m", "a2cap.pipeline", "train", "-c", str(experiment.config_file)]
    command += ["--artifacts", str(artifacts), "--set", "train.checkpoint_every=1"]
    command += [word for override in overrides for word in ("--set", override)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = partial / "events.jsonl"
    while process.poll() is None and not (log.exists() and "checkpoint" in log.read_text()):
        time.sleep(0.002)
    os.killpg(process.pid, sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert said.endswith("a2: stopped; run the same command again to resume\n"), said
    assert Checkpoints(partial / "checkpoints").latest() is not None
    resumed = opened.run("train-xe")
    opened.close()
    assert [line["epoch"] for line in lines(resumed.directory)] == [1, 2]


# how it is computed


def test_figures_that_are_read_later_change_nothing(
    train, uninterrupted, tmp_path, monkeypatch, signals
):
    """As on a GPU; the stop comes between two looks."""
    monkeypatch.setattr(cross_entropy, "_read_interval", lambda device: 5)
    signals[8] = [signal.SIGTERM]
    found = tmp_path / "later"
    assert train.until_done(found) == [signal.SIGTERM]
    assert_equal_results(found, uninterrupted)


def test_a_loss_that_is_no_number_is_found_before_anything_of_it_is_saved(
    train, tmp_path, monkeypatch
):
    monkeypatch.setattr(cross_entropy, "_read_interval", lambda device: 5)
    poison(monkeypatch, 6, caption=torch.nan)
    with pytest.raises(A2Error, match="loss is not finite at step 6: loss nan"):
        train(tmp_path / "poisoned")
    kept = Checkpoints(tmp_path / "poisoned" / "checkpoints")
    assert kept.steps() == [4]
    assert all(tensor.isfinite().all() for tensor in kept.load(4).tensors.values())


@pytest.mark.parametrize("choice", ["train.precision=bf16", "train.accumulate=4"])
def test_a_training_that_computes_otherwise_learns_the_same_but_for_rounding_and_noise(
    train, uninterrupted, tmp_path, choice
):
    found = train(tmp_path / "otherwise", choice)
    losses = [line["loss"] for line in lines(found)]
    assert losses == pytest.approx([line["loss"] for line in lines(uninterrupted)], rel=0.02)
    assert losses != [line["loss"] for line in lines(uninterrupted)]
    tensors = load_file(found / "model.safetensors").values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32, torch.int64}


def test_where_compiling_fails_training_goes_on_and_says_so_once(
    train, uninterrupted, tmp_path, monkeypatch, caplog
):
    def compile_(forward, **options):
        def compiled(*arguments, **named):
            raise RuntimeError("no C++ compiler")

        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    found = train(tmp_path / "compiled", "train.compile=true", "model.dropout=0")
    said = [text for text in caplog.messages if "compile" in text]
    assert said == ["torch.compile failed, the model runs uncompiled: no C++ compiler"]
    assert_equal_results(found, train(tmp_path / "plain", "model.dropout=0"))


def test_a_resumption_elsewhere_says_that_it_is_not_exact(
    train, tmp_path, monkeypatch, signals, caplog
):
    signals[3] = [signal.SIGTERM]
    found = tmp_path / "moved"
    with pytest.raises(Interrupted):
        train(found)
    here = training.environment(torch.device("cpu"), ranks=1)
    elsewhere = {**here, "torch": "9.9", "device": "abacus"}
    monkeypatch.setattr(training, "environment", lambda device, ranks: elsewhere)
    train(found)
    assert [text for text in caplog.messages if "->" in text] == [
        f"train: torch {here['torch']} -> 9.9, device {here['device']} -> abacus since the "
        "checkpoint; the result will not equal that of an uninterrupted run bit for bit"
    ]


# what is refused


def poison(monkeypatch, step, **changes):
    """From one update on, losses are what `changes` makes of them."""
    compute = cross_entropy.two_losses

    def poisoned(captioner, memory, captions):
        losses = compute(captioner, memory, captions)
        if captioner.schedule_step.item() < step:
            return losses
        return replace(losses, **{k: getattr(losses, k) * factor for k, factor in changes.items()})

    monkeypatch.setattr(cross_entropy, "two_losses", poisoned)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"caption": torch.nan},
            r"loss nan, mask_loss -?\d+\.\d+, mean_mask \d\.\d+, gradient norm nan",
        ),
        (
            {"mask": torch.nan},
            r"loss \d+\.\d+, mask_loss nan, mean_mask \d\.\d+, gradient norm nan",
        ),
        (
            {"caption": torch.inf},
            r"loss inf, mask_loss -?\d+\.\d+, mean_mask \d\.\d+, gradient norm nan",
        ),
    ],
)
def test_a_loss_that_is_no_number_names_step_and_images_and_keeps_the_last_good_checkpoint(
    train, tmp_path, monkeypatch, changes, said
):
    poison(monkeypatch, 6, **changes)
    seen = []
    update = CrossEntropyOptimizer.step

    def step(self, parts, number):
        seen.append(parts[0].image_ids)
        return update(self, parts, number)

    monkeypatch.setattr(CrossEntropyOptimizer, "step", step)
    with pytest.raises(A2Error) as error:
        train(tmp_path / "poisoned")
    assert len(seen) == 6
    assert re.fullmatch(
        rf"loss is not finite at step 6: {said} \(images {', '.join(seen[-1])}\); "
        "the last good checkpoint is kept, lower train.lr and train again",
        str(error.value),
    )
    kept = Checkpoints(tmp_path / "poisoned" / "checkpoints").latest()
    assert kept.step == 4
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())


def test_a_rate_that_is_far_too_high_never_leaves_a_checkpoint_of_no_numbers(train, tmp_path):
    high = ("train.schedule=constant", "train.lr=1e30", "train.checkpoint_every=1")
    with pytest.raises(A2Error, match="loss is not finite at step"):
        train(tmp_path / "high", *high)
    kept = Checkpoints(tmp_path / "high" / "checkpoints").latest()
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())


def changed_copy(directory, folder):
    return Path(shutil.copytree(directory, folder, symlinks=True))


def rename_image(captions, place, image_id):
    """Gives the image at a place of captions.h5 another id."""
    with h5py.File(captions / "captions.h5", "r+") as file:
        names = file["image_ids"][...]
        names[place] = image_id.encode()
        file["image_ids"][...] = names
        return file["splits"].asstr()[place]


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_image_without_features_is_refused_by_its_id(train, tmp_path, split):
    captions = changed_copy(train.captions, tmp_path / "captions")
    with h5py.File(captions / "captions.h5") as file:
        place = file["splits"].asstr()[...].tolist().index(split)
    rename_image(captions, place, "000000999999")
    with pytest.raises(StoreError) as error:
        replace(train, captions=captions)(tmp_path / "model")
    store = train.features / "features.lmdb"
    assert str(error.value) == (
        f"no features for 1 images in {str(store)!r}: '000000999999'; run \"a2 extract\" first"
    )
    assert not list((tmp_path / "model").glob("checkpoints/step-*"))


def test_captions_and_vocabulary_that_do_not_belong_together_are_refused(train, tmp_path):
    captions = changed_copy(train.captions, tmp_path / "captions")
    vocabulary = Vocabulary.load(captions / "vocabulary.json")
    Vocabulary((*vocabulary.words, "zebra"), vocabulary.preset).save(captions / "vocabulary.json")
    with pytest.raises(InputError) as error:
        replace(train, captions=captions)(tmp_path / "model")
    assert str(error.value) == (
        f'captions and vocabulary do not match: {str(captions)!r}; run "a2 preprocess --force"'
    )


def skip(features, image_ids):
    listed = [json.dumps({"id": name, "reason": "unreadable"}) for name in image_ids]
    (features / "skipped.jsonl").write_text("".join(f"{line}\n" for line in listed))


def test_what_extraction_skipped_is_neither_trained_nor_validated_on(train, tmp_path, monkeypatch):
    data = read_training_data(train.features, train.captions)
    left_out = {data.captions.image_ids("train")[0], data.validation[0]}
    features = changed_copy(train.features, tmp_path / "features")
    skip(features, sorted(left_out))
    seen, validated = set(), set()
    update = CrossEntropyOptimizer.step

    def step(self, parts, number):
        seen.update(parts[0].image_ids)
        return update(self, parts, number)

    def score(candidates, references):
        validated.update(candidates)
        return 0.5

    monkeypatch.setattr(CrossEntropyOptimizer, "step", step)
    monkeypatch.setattr(captioner_phase, "cider", score)
    replace(train, features=features)(tmp_path / "model", "train.epochs=1")
    assert seen == set(data.captions.image_ids("train")) - left_out
    assert validated == set(data.validation) - left_out


def test_training_with_no_validation_image_left_is_refused_at_once(train, tmp_path):
    data = read_training_data(train.features, train.captions)
    features = changed_copy(train.features, tmp_path / "features")
    skip(features, data.validation)
    with pytest.raises(InputError) as error:
        replace(train, features=features)(tmp_path / "model")
    assert str(error.value) == (
        "no validation image has features: all are in "
        f"{str(features / 'skipped.jsonl')!r}; fix their files and extract again"
    )


def test_a_damaged_best_checkpoint_is_not_replaced_by_another(train, tmp_path, monkeypatch):
    scored(monkeypatch, 0.5, 0.4)
    found = tmp_path / "damaged"
    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "best_tensors", lambda self: pytest.fail("saved"))
        with pytest.raises(pytest.fail.Exception, match="saved"):
            train(found)
    path = found / "checkpoints" / "step-00000006" / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(A2Error) as error:
        train(found)
    assert str(error.value) == (
        f'checkpoint is damaged: {str(path)!r}; train again with "a2 train --force"'
    )
    assert not (found / "model.safetensors").exists()


def test_before_an_epoch_has_ended_there_is_nothing_to_save(train, tmp_path, monkeypatch):
    monkeypatch.setattr(training.Training, "finished", True)
    with pytest.raises(A2Error) as error:
        train(tmp_path / "nothing")
    assert str(error.value) == (
        "no epoch has ended yet: nothing to save; set train.epochs to 1 or more"
    )
