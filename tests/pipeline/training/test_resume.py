"""Tests of exact resume: a stopped training ends as an uninterrupted one, bit for bit."""

import multiprocessing
import os
import signal

import pytest
import torch

from a2cap.data.errors import LoaderError
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.captioning import saved_captioner
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.training import loop
from a2cap.pipeline.training.captioner import task
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.checkpoints import Checkpoints
from tests.pipeline.training.runs import (
    STEPS,
    STEPS_PER_EPOCH,
    assert_equal_results,
    checkpoint_steps,
    copied_artifacts,
    events,
    last_checkpoint,
    metrics,
    outcome,
    signalled_after,
    train_command,
    until_done,
)

# the first update, mid-epoch, a checkpoint, the last and the first batch of an epoch, the end
CAPTIONER_STEPS = (1, 3, 4, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1, STEPS)
STOPS = [
    *((kind, step) for kind in ("cross-entropy", "self-critical") for step in CAPTIONER_STEPS),
    ("detector", 4),
    *(pytest.param("detector", step, marks=pytest.mark.slow) for step in (1, 2, 3, 6)),
]
MANY_STOPS = [
    ("cross-entropy", 0),
    ("cross-entropy", 2),
    ("self-critical", 0),
    *(
        pytest.param(kind, workers, marks=pytest.mark.slow)
        for kind, workers in (("self-critical", 2), ("detector", 0), ("detector", 2))
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step"), STOPS)
def test_a_stopped_training_ends_as_an_uninterrupted_one(training, tmp_path, signals, kind, step):
    train, uninterrupted = training(kind)
    sent = signal.SIGINT if step % 2 else signal.SIGTERM
    signals[0, step] = [sent]
    found = tmp_path / "stopped"
    assert outcome(lambda: train(found)) == sent
    assert not (found / "model.safetensors").exists()
    assert not (found / "detector.safetensors").exists()
    assert checkpoint_steps(found)[-1] == step
    signals.clear()
    train(found)
    [resumed] = events(found, "resume")
    assert resumed["step"] == step
    assert_equal_results(found, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), MANY_STOPS)
def test_a_training_stopped_many_times_ends_as_an_uninterrupted_one(
    training, tmp_path, signals, kind, workers
):
    train, uninterrupted = training(kind)
    steps = [1, 3, 4] if kind == "detector" else [2, 6, 7, 10]
    signals.update({(0, step): [signal.SIGTERM] for step in steps})
    found = tmp_path / "stopped"
    stops = until_done(lambda: train(found, workers=workers))
    assert stops == [signal.SIGTERM] * len(steps)
    assert [event["step"] for event in events(found, "resume")] == steps
    assert_equal_results(found, uninterrupted)


DETECTOR_RECIPES = (
    {"optimiser": "sgd", "deterministic": True},
    {"precision": "bf16"},
    {"accumulate": 2, "seed": 7},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "choices", "changes"),
    [
        ("self-critical", ["scst.dropout=rescore"], {}),
        ("self-critical", ["scst.mask=continued", "scst.deterministic=true"], {}),
        *(
            pytest.param("detector", [], changes, marks=pytest.mark.slow)
            for changes in DETECTOR_RECIPES
        ),
    ],
)
def test_every_recipe_resumes_exactly(training, tmp_path, signals, kind, choices, changes):
    train, _ = training(kind)
    expected = train(tmp_path / "uninterrupted", *choices, **changes)
    signals[0, 5] = [signal.SIGTERM]
    found = tmp_path / "stopped"
    assert until_done(lambda: train(found, *choices, **changes)) == [signal.SIGTERM]
    assert_equal_results(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cross-entropy", "self-critical"])
def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    training, tmp_path, signals, caplog, kind
):
    train, uninterrupted = training(kind)
    signals[0, 10] = [signal.SIGTERM]
    found = tmp_path / "stopped"
    assert outcome(lambda: train(found)) == signal.SIGTERM
    name = "state.pt" if kind == "cross-entropy" else "model.safetensors"
    damaged = found / "checkpoints" / "step-00000010" / name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    until_done(lambda: train(found))
    assert events(found, "resume")[0]["step"] == 8
    assert "going back to the one before it" in caplog.text
    assert_equal_results(found, uninterrupted)


@pytest.mark.slow
def test_dropout_is_on_in_the_compared_trainings(train, uninterrupted, tmp_path):
    other = train(tmp_path / "without", "model.dropout=0.0", "train.epochs=1")
    assert '"dropout": 0.1' in (uninterrupted / "model.json").read_text()
    assert metrics(other)[0]["loss"] != metrics(uninterrupted)[0]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_stop_during_validation_ends_the_run_after_it(
    train, uninterrupted, tmp_path, monkeypatch, epoch
):
    validate = task.cider
    validated = []

    def score(candidates, references):
        validated.append(candidates)
        if len(validated) == epoch:
            signal.raise_signal(signal.SIGTERM)
        return validate(candidates, references)

    monkeypatch.setattr(task, "cider", score)
    found = tmp_path / "stopped"
    assert outcome(lambda: train(found)) == signal.SIGTERM
    assert len(metrics(found)) == epoch
    assert not (found / "model.safetensors").exists()
    train(found)
    assert len(validated) == 2
    assert_equal_results(found, uninterrupted)


@pytest.mark.parametrize(("sent", "raised"), [([signal.SIGTERM], Interrupted), ([], LoaderError)])
def test_a_signal_that_also_ends_the_loaders_is_a_stop_and_not_an_error(
    train, tmp_path, monkeypatch, sent, raised
):
    """torch raises RuntimeError at any operation when one of its loaders dies."""

    def update(self, parts, number):
        for number_of_signal in sent:
            signal.raise_signal(number_of_signal)
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    monkeypatch.setattr(CrossEntropyOptimizer, "step", update)
    with pytest.raises(raised):
        train(tmp_path / "ended")
    assert checkpoint_steps(tmp_path / "ended") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_killed_loader_is_reported_and_the_same_command_resumes(
    train, uninterrupted, tmp_path, monkeypatch
):
    step = CrossEntropyOptimizer.step

    def kill_a_loader(self, parts, number):
        if number == STEPS_PER_EPOCH + 1:
            [loader] = multiprocessing.active_children()
            loader.kill()
            # until it is dead: else this process could train on the batches that are there already
            os.waitid(os.P_PID, loader.pid, os.WEXITED | os.WNOWAIT)
        return step(self, parts, number)

    found = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropyOptimizer, "step", kill_a_loader)
        with pytest.raises(
            LoaderError,
            # the reason differs with the moment of the kill
            match=r"^a data loader worker died: .+; the newest checkpoint is kept, "
            r"lower runtime\.workers or the batch size if memory ran out, and run again$",
        ):
            train(found, workers=1)
    assert max(checkpoint_steps(found)) == STEPS_PER_EPOCH
    train(found)
    assert_equal_results(found, uninterrupted)


@pytest.mark.slow
def test_a_second_signal_ends_the_run_without_saving(train, uninterrupted, tmp_path, signals):
    signals[0, 6] = [signal.SIGINT, signal.SIGINT]
    found = tmp_path / "stopped"
    assert outcome(lambda: train(found)) == signal.SIGINT
    assert checkpoint_steps(found) == [4]
    signals.clear()
    train(found)
    assert_equal_results(found, uninterrupted)


@pytest.mark.slow
def test_a_second_signal_during_a_save_leaves_no_finished_checkpoint(
    train, uninterrupted, tmp_path, signals, monkeypatch
):
    signals[0, 5] = [signal.SIGTERM]
    found = tmp_path / "stopped"
    with monkeypatch.context() as patch:

        def signal_and_digest(path):
            if path.parent.name == ".step-00000005.partial":
                signal.raise_signal(signal.SIGTERM)
            return sha256_of(path)

        patch.setattr("a2cap.pipeline.training.checkpoints.sha256_of", signal_and_digest)
        assert outcome(lambda: train(found)) == signal.SIGTERM
    assert {path.name for path in (found / "checkpoints").iterdir()} == {
        "step-00000004",
        ".step-00000005.partial",
    }
    # update 5 is made again, and so is its signal
    assert until_done(lambda: train(found)) == [signal.SIGTERM]
    assert_equal_results(found, uninterrupted)


@pytest.mark.slow
def test_a_run_that_died_between_an_epochs_line_and_its_checkpoint_has_one_line_of_it(
    train, uninterrupted, tmp_path, monkeypatch
):
    save = Checkpoints.save

    def die_at_the_end_of_an_epoch(self, step, **what):
        if what["state"]["position"]["epoch"] == 1:
            raise Interrupted(signal.SIGKILL)
        save(self, step, **what)

    found = tmp_path / "died"
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", die_at_the_end_of_an_epoch)
        assert outcome(lambda: train(found)) == signal.SIGKILL
    assert [line["epoch"] for line in metrics(found)] == [1]
    train(found)
    assert [line["epoch"] for line in metrics(found)] == [1, 2]
    assert_equal_results(found, uninterrupted)


def stop(*arguments, **named):
    raise Interrupted(signal.SIGTERM)


def test_a_run_that_died_after_its_last_epoch_only_saves_the_model(
    train, uninterrupted, tmp_path, monkeypatch
):
    found = tmp_path / "died"
    with monkeypatch.context() as patch:
        patch.setattr(saved_captioner, "save_model", stop)
        assert outcome(lambda: train(found)) == signal.SIGTERM
    monkeypatch.setattr(CrossEntropyOptimizer, "step", None)
    train(found)
    assert_equal_results(found, uninterrupted)


@pytest.mark.slow
def test_a_stop_while_a_detector_is_evaluated_loses_nothing(
    train_detector, uninterrupted_detector, tmp_path, monkeypatch
):
    found = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr("a2cap.pipeline.training.detector.train.detector_figures", stop)
        assert outcome(lambda: train_detector(found)) == signal.SIGTERM
    assert not (found / "figures.json").exists()
    train_detector(found)
    assert_equal_results(found, uninterrupted_detector)


@pytest.mark.slow
def test_resume_in_another_environment_warns_that_it_is_not_exact(
    train, tmp_path, monkeypatch, signals, caplog
):
    signals[0, 3] = [signal.SIGTERM]
    found = tmp_path / "moved"
    assert outcome(lambda: train(found)) == signal.SIGTERM
    here = loop.environment(torch.device("cpu"), ranks=1)
    elsewhere = {**here, "torch": "9.9", "device": "abacus"}
    monkeypatch.setattr(loop, "environment", lambda device, ranks: elsewhere)
    train(found)
    assert [text for text in caplog.messages if "->" in text] == [
        f"train: torch {here['torch']} -> 9.9, device {here['device']} -> abacus since the "
        "checkpoint; the result will not equal that of an uninterrupted run bit for bit"
    ]


@pytest.mark.slow
def test_a_stopped_stage_ends_with_the_same_digest(experiment, tmp_path, signals):
    artifacts = copied_artifacts(experiment, tmp_path, "train-xe", "evaluate")
    for step, sent in ((3, signal.SIGTERM), (4, signal.SIGINT), (6, signal.SIGTERM)):
        signals[0, step] = [sent]
    with experiment.open(artifacts=artifacts) as opened:
        for _ in range(3):
            with pytest.raises(Interrupted):
                opened.run("train-xe")
            assert opened.status("train-xe").state == "partial"
        result = opened.run("train-xe")
        assert result.ran
        assert not opened.run("train-xe").ran
    expected = experiment.open().result("train-xe", needed_by="a test")
    assert result.manifest.digest == expected.manifest.digest
    assert result.directory.name == expected.directory.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "overrides", "workers"),
    [
        ("train-xe", ("train.epochs=2", "train.batch_size=1", "train.checkpoint_every=5"), 2),
        ("train-scst", ("scst.epochs=2", "scst.batch_size=6", "scst.checkpoint_every=1"), 0),
    ],
)
def test_kill_9_in_the_middle_of_epochs_ends_with_the_same_digest(
    experiment, tmp_path, stage, overrides, workers
):
    small = ("scst.samples=2", "scst.max_length=8", "scst.validation_beam_size=2")
    chosen = (*small, "scst.epochs=0", *overrides, f"runtime.workers={workers}")
    without = ("train-xe", "evaluate") if stage == "train-xe" else ("evaluate",)
    phase = ["--phase", stage.removeprefix("train-")]
    killed, alone = (
        copied_artifacts(experiment, tmp_path / name, *without) for name in ("killed", "alone")
    )
    positions = []
    with experiment.open(*chosen, artifacts=killed) as opened:
        partial = killed / stage / f"{opened.stage(stage).pre_image.key}.partial"
        command = train_command(experiment, killed, chosen) + phase
        for checkpoints in (2, 3):
            killed_run = signalled_after(checkpoints, signal.SIGKILL, command)
            assert killed_run.returncode == -signal.SIGKILL, killed_run.stderr
            positions.append(last_checkpoint(partial).state["position"]["batch"])
        assert any(positions), "all kills came at the end of an epoch"
        result = opened.run(stage)
    assert len(events(result.directory, "resume")) == 2
    with experiment.open(*chosen, artifacts=alone) as opened:
        expected = opened.run(stage)
    assert result.manifest.digest == expected.manifest.digest
    assert_equal_results(result.directory, expected.directory)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_and_its_loaders_leaves_it_resumable(experiment, tmp_path, sent):
    """Ctrl-C reaches the loader processes too; a scheduler's SIGTERM often does."""
    artifacts = copied_artifacts(experiment, tmp_path, "train-xe", "evaluate")
    overrides = ("train.epochs=2", "train.batch_size=4", "train.checkpoint_every=1")
    overrides = (*overrides, "runtime.workers=2")
    with experiment.open(*overrides, artifacts=artifacts) as opened:
        partial = artifacts / "train-xe" / f"{opened.stage('train-xe').pre_image.key}.partial"
        command = train_command(experiment, artifacts, overrides)
        ended = signalled_after(1, sent, command, group=True)
        assert ended.returncode == 128 + sent, ended.stderr
        assert ended.stderr.endswith("a2: stopped; run the same command again to resume\n")
        last_checkpoint(partial)
        resumed = opened.run("train-xe")
    assert [line["epoch"] for line in metrics(resumed.directory)] == [1, 2]
