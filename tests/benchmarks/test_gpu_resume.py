"""Trainings that are killed by the check of a GPU: their settings, failures and comparison."""

import json
import sys

import pytest
import torch
from safetensors.torch import save_file

from a2cap.pipeline.configuration import load_config
from benchmarks import gpu_resume, self_critical
from tests.data.messages import message_of

SIZES, MODEL = self_critical.QUICK, self_critical.SMALL


def test_both_trainings_are_deterministic_and_on_the_device(tmp_path):
    path = gpu_resume.write_experiment(tmp_path, torch.device("cuda"), SIZES, MODEL)
    config = load_config(path)
    assert config.runtime.device == "cuda"
    assert [c.deterministic for c in (config.train, config.scst)] == [True, True]
    updates = gpu_resume.EPOCH * config.train.epochs
    assert updates > 2 * config.train.checkpoint_every  # the kill is in the middle


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (
            lambda folder: gpu_resume._kill(folder, folder, "train-xe"),
            "a2 train ended before it was killed: a2: no GPU",
        ),
        (
            lambda folder: gpu_resume._await(gpu_resume._train(folder, folder), folder),
            "a2 train failed: a2: no GPU",
        ),
    ],
    ids=["killed", "awaited"],
)
def test_a_training_that_fails_is_an_error_with_its_last_line(tmp_path, monkeypatch, act, problem):
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nraise SystemExit('a log\\na2: no GPU')\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert message_of(act, tmp_path / "killed", error=RuntimeError) == problem


@pytest.mark.parametrize(
    ("weight", "event", "expected"),
    [
        (1.0, "resume", {"tensors": 2, "differing": 0, "resumed_at": 8, "updates": 40}),
        (1.0000001, "resume", "1 of 2 tensors differ after a resume"),
        (1.0, "start", "the training began again, without its checkpoint"),
    ],
)
def test_results_are_compared_bit_for_bit(tmp_path, weight, event, expected):
    for name, value in (("whole", 1.0), ("killed", weight)):
        result = tmp_path / name / "key"
        result.mkdir(parents=True)
        tensors = {"bias": torch.zeros(2), "weight": torch.tensor([value])}
        save_file(tensors, result / "model.safetensors")
        (result / "events.jsonl").write_text(json.dumps({"event": event, "step": 8}))
        (result / "metrics.jsonl").write_text('{"step": 20}\n{"step": 40}')
    folders = tmp_path / "whole", tmp_path / "killed"
    if isinstance(expected, dict):
        assert gpu_resume._compared(*folders) == expected
    else:
        assert message_of(gpu_resume._compared, *folders, error=RuntimeError) == expected
