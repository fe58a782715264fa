"""Trainings and evaluations of Python programs are those of the commands."""

import json
from pathlib import Path

import numpy as np
import pytest

import a2cap
from a2cap.data.errors import ConfigError
from a2cap.pipeline.configuration import load_config
from tests.data.messages import message_of


def test_finished_results_are_those_of_the_stages(experiment):
    trained = a2cap.train(experiment.config_file, artifacts=experiment.artifacts)
    assert (trained.folder, trained.ran) == (experiment.directory("train-xe"), False)
    assert [row["epoch"] for row in trained.epochs] == list(range(1, 9))
    assert trained.captioner(device="cpu").name == str(trained.folder)
    evaluation = trained.evaluate()
    assert (evaluation.folder, evaluation.ran) == (experiment.directory("evaluate"), False)
    content = json.loads((evaluation.folder / "metrics.json").read_text())
    assert (evaluation.metrics, evaluation.not_run, evaluation.n) == tuple(
        content[name] for name in ("metrics", "not_run", "n")
    )
    assert len(evaluation.captions) == evaluation.n and evaluation.report.is_file()
    assert f"<td>CIDEr</td><td>{evaluation.metrics['CIDEr']:.4f}</td>" in evaluation._repr_html_()


@pytest.mark.slow
def test_a_training_runs_what_is_missing_and_is_evaluated(experiment, tmp_path):
    settings = {"train.epochs": 1, "data.images": experiment.scenes / "images"}
    trained = a2cap.train(experiment.config_file, settings, artifacts=tmp_path)
    assert trained.ran and len(trained.epochs) == 1
    evaluation = trained.evaluate({"evaluate.beam_size": 1})
    assert evaluation.ran and evaluation.metrics["CIDEr"] >= 0
    again = a2cap.evaluate(
        trained.config, {"evaluate.beam_size": 1}, artifacts=str(tmp_path), force=True
    )
    assert again.ran and again.metrics == evaluation.metrics


def test_a_file_its_content_and_its_configuration_are_the_same(experiment):
    path = experiment.config_file
    expected = load_config(path, ["train.epochs=3"])
    named = a2cap.configure(path, {"train.epochs": 3})
    assert named.runtime.name == path.stem
    for other in (load_config(path), load_config(path).model_dump(), named):
        config = a2cap.configure(other, {"train.epochs": 3, "runtime.name": None})
        assert config == expected
    assert a2cap.configure("a2-gate") == a2cap.configure(Path("a2-gate"))
    assert a2cap.configure() == load_config()
    assert a2cap.configure({"model": "gru"}) == load_config(None, ["model=gru"])
    assert (
        a2cap.configure("a2-gate", {"model": "gru"}).model
        == a2cap.configure({"model": "gru"}).model
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data.images", Path("a b: c, #1'\"\\ é")),
        ("data.images", "2"),
        ("train.lr", 1e-30),
        ("train.lr", 1e-5),
        ("evaluate.ensemble", (Path("a"), Path("[b]"))),
        ("data.annotations", None),
    ],
)
def test_settings_are_python_values(name, value):
    section, field = name.split(".")
    actual = getattr(getattr(a2cap.configure(None, {name: value}), section), field)
    assert actual == (Path(value) if value == "2" else value)


def test_unusable_settings_are_refused_together():
    message = message_of(
        a2cap.configure, {"train": {"epoch": 3}}, {"nope": 1, "model.width": "x"}, error=ConfigError
    )
    assert message.startswith("3 problems in the configuration:")
    assert "'nope=1' is not an override; write section.field=value" in message
    assert message_of(a2cap.configure, 5, error=ConfigError) == (
        "not a configuration: int; give a file, its content or a Config"
    )
    assert message_of(a2cap.train, phase="cst", error=ConfigError) == (
        "phase is unknown: 'cst'; choose one of xe, scst, all"
    )
    assert message_of(a2cap.configure, None, {"train.lr": np.float32(1)}, error=ConfigError) == (
        "train.lr: not a value of a setting: float32; give a number, text, path or list"
    )
