"""Tests of exact resume: every recipe and kind ends as an uninterrupted training, bit for bit."""

import shutil
import signal
from dataclasses import replace

import pytest
import torch
import yaml

from a2cap.data.errors import A2Error
from a2cap.data.files.checksum import sha256_of
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.training import checkpoints
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from tests.data.messages import message_of
from tests.model.kinds import KINDS, VARIANTS
from tests.pipeline.training.runs import (
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


RECIPES = [
    ("cross-entropy", []),
    ("self-critical", ["scst.dropout=rescore"]),
    ("self-critical", ["scst.mask=continued", "scst.deterministic=true"]),
    ("detector", {}),
    ("detector", {"optimiser": "sgd", "deterministic": True}),
    ("detector", {"precision": "bf16"}),
    ("detector", {"accumulate": 2, "seed": 7}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "recipe"), RECIPES)
def test_every_recipe_resumes_exactly(training, tmp_path, signals, kind, recipe):
    train, uninterrupted = training(kind)

    def run(name):
        words, changes = ([], recipe) if isinstance(recipe, dict) else (recipe, {})
        return train(tmp_path / name, *words, **changes)

    expected = run("uninterrupted") if recipe else uninterrupted
    signals.update({(0, 2): [signal.SIGINT], (0, 5): [signal.SIGTERM]})
    assert until_done(lambda: run("stopped")) == [signal.SIGINT, signal.SIGTERM]
    assert [event["step"] for event in events(tmp_path / "stopped", "resume")] == [2, 5]
    assert_equal_results(tmp_path / "stopped", expected)


@pytest.mark.parametrize(("sent", "raised"), [([signal.SIGTERM], Interrupted), ([], RuntimeError)])
def test_a_signal_that_also_ends_other_ranks_is_a_stop_and_not_an_error(
    train, tmp_path, monkeypatch, sent, raised
):
    def update(self, parts, number):
        for number_of_signal in sent:
            signal.raise_signal(number_of_signal)
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(CrossEntropyUpdater, "step", update)
    with pytest.raises(raised):
        train(tmp_path / "ended", workers=1)
    assert checkpoint_steps(tmp_path / "ended") == []


@pytest.mark.slow
def test_a_gpu_that_is_lost_is_one_line_and_the_training_resumes(
    train, uninterrupted, tmp_path, monkeypatch
):
    step = CrossEntropyUpdater.step

    def lose(self, parts, number):
        if number == 4:
            raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might")
        return step(self, parts, number)

    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropyUpdater, "step", lose)
        assert message_of(train, tmp_path / "lost", error=A2Error) == (
            "the GPU failed after step 3: CUDA error: unspecified launch failure; run the same "
            "command again, which goes on from the last checkpoint"
        )
    train(tmp_path / "lost")
    assert_equal_results(tmp_path / "lost", uninterrupted)


@pytest.mark.slow
def test_a_second_signal_during_a_save_leaves_no_finished_checkpoint(
    train, uninterrupted, tmp_path, signals, monkeypatch
):
    signals[0, 5] = [signal.SIGTERM]
    result = tmp_path / "stopped"
    with monkeypatch.context() as patch:

        def signal_and_digest(path):
            if path.parent.name == ".step-00000005.partial":
                signal.raise_signal(signal.SIGTERM)
            return sha256_of(path)

        patch.setattr("a2cap.data.files.sealed_folder.sha256_of", signal_and_digest)
        assert outcome(lambda: train(result)) == signal.SIGTERM
    assert {path.name for path in (result / "checkpoints").iterdir()} == {
        "step-00000004",
        ".step-00000005.partial",
    }
    # update 5 is made again, and so is its signal
    assert until_done(lambda: train(result)) == [signal.SIGTERM]
    assert_equal_results(result, uninterrupted)


@pytest.mark.slow
def test_resume_in_another_environment_warns_that_it_is_not_exact(
    train, tmp_path, monkeypatch, signals, caplog
):
    signals[0, 3] = [signal.SIGTERM]
    result = tmp_path / "moved"
    assert outcome(lambda: train(result)) == signal.SIGTERM
    here = checkpoints.environment(torch.device("cpu"), ranks=1)
    elsewhere = {**here, "torch": "9.9", "device": "abacus"}
    monkeypatch.setattr(checkpoints, "environment", lambda device, ranks: elsewhere)
    train(result)
    assert [text for text in caplog.messages if "->" in text] == [
        f"train: torch {here['torch']} -> 9.9, device {here['device']} -> abacus since the "
        "checkpoint; the result will not equal that of an uninterrupted run bit for bit"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_command_that_loads_with_threads_leaves_it_resumable(
    experiment, tmp_path, sent
):
    artifacts = copied_artifacts(experiment, tmp_path, "train-xe", "evaluate")
    overrides = ("train.epochs=2", "train.batch_size=4", "train.checkpoint_every=1")
    overrides = (*overrides, "runtime.workers=2")
    with experiment.open(*overrides, artifacts=artifacts) as opened:
        partial = artifacts / "train-xe" / f"{opened.stage('train-xe').made_from.key}.partial"
        command = train_command(experiment, artifacts, overrides)
        ended = signalled_after(1, sent, command)
        assert ended.returncode == 128 + sent, ended.stderr
        assert ended.stderr.endswith("a2: stopped; run the same command again to resume\n")
        last_checkpoint(partial)
        resumed = opened.run("train-xe")
    assert [line["epoch"] for line in metrics(resumed.directory)] == [1, 2]


OPTIONS = (
    *("train.ema=0.9", "train.label_smoothing=0.1", "train.schedule=cosine", "train.lr=0.01"),
    *("train.scheduled_sampling=0.5", "train.scheduled_sampling_epochs=1", "train.warmup=2"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in (*KINDS, *VARIANTS) if kind != "transformer"])
def test_a_stopped_training_of_a_kind_ends_as_an_uninterrupted_one(
    train, tmp_path, signals, request, kind
):
    settings = yaml.safe_load(train.config_file.read_text())
    make = {**KINDS, **VARIANTS}[kind]
    model = make(alignment=AlignmentConfig())
    rates = {"feature_dropout": 0.3, "dropout": 0.3, "attention_dropout": 0.2}
    if kind == "hard attention" or not model.has_attention:
        del rates["attention_dropout"]
    fields = {name: rate for name, rate in rates.items() if name in type(model).model_fields}
    model = make(alignment=AlignmentConfig(), **fields)
    if kind == "hard attention":  # as its authors train
        settings["train"] |= {"grouping": "length", "optimiser": "rmsprop"}
        settings["train"] |= {"epochs": 2, "batch_size": 24}
    config_file = tmp_path / "kind.yaml"
    config_file.write_text(yaml.safe_dump({**settings, "model": model.model_dump(mode="json")}))
    train = replace(train, config_file=config_file)
    if model.grid_cells:
        without_store = shutil.ignore_patterns("features.lmdb")
        shutil.copytree(train.features, tmp_path / "extracted", ignore=without_store)
        (tmp_path / "extracted" / "features.lmdb").symlink_to(request.getfixturevalue("cells"))
        train = replace(train, features=tmp_path / "extracted")
    uninterrupted = train(tmp_path / "uninterrupted", *OPTIONS)
    result = tmp_path / "stopped"
    signals[0, 3] = [signal.SIGINT]
    assert outcome(lambda: train(result, *OPTIONS)) == signal.SIGINT
    signals.clear()
    train(result, *OPTIONS)
    assert [event["step"] for event in events(result, "resume")] == [3]
    assert_equal_results(result, uninterrupted)
    assert all(line["label_smoothing"] for line in metrics(result))
    penalties = {"show-attend-tell": "doubly_stochastic", "hard attention": "reinforce"}
    for name, penalty in penalties.items():
        assert all((penalty in line) == (kind == name) for line in metrics(result))
