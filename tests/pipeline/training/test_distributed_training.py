"""Tests of several ranks: they train as one rank does, and stop, resume and fail together."""

import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from a2cap.data.errors import InputError
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.captioner import cross_entropy
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from a2cap.pipeline.training.checkpoints import Checkpoints
from tests.pipeline.training.runs import (
    assert_equal_results,
    copied_artifacts,
    events,
    outcome,
    train_command,
    without_speed,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

KEY_BIAS = re.compile(r"(key_value|query_key_value)\.bias")


def assert_close_results(ours, theirs):
    """Compare losses and tensors except biases of keys: no loss depends on them, so Adam turns
    the rounding of their gradient into full steps."""
    for line, its in zip(without_speed(ours), without_speed(theirs), strict=True):
        assert line == pytest.approx(its, rel=1e-4)
    mine, expected = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    for name in (name for name in mine if not KEY_BIAS.search(name)):
        torch.testing.assert_close(mine[name], expected[name], rtol=0, atol=1e-5, msg=name)


def test_two_ranks_train_as_one_on_the_same_batches(train, together, tmp_path):
    settings = ("model.dropout=0", "train.lr=0.1", "train.accumulate=2", "train.grouping=caption")
    alone = train(tmp_path / "alone", *settings)
    joint = tmp_path / "together"
    assert together(2, lambda _: outcome(lambda: train(joint, *settings))) == [None, None]
    assert_close_results(joint, alone)


@pytest.fixture(scope="module")
def uninterrupted_ranks(train, together, tmp_path_factory):
    """Train with two ranks and dropout, without interruption."""
    result = tmp_path_factory.mktemp("together") / "uninterrupted"
    assert together(2, lambda _: outcome(lambda: train(result))) == [None, None]
    return result


@pytest.mark.parametrize(
    ("kind", "stops"),
    [("cross-entropy", [(1, 3), (0, 6), (1, 9)]), ("detector", [(1, 2), (0, 3), (1, 5)])],
)
def test_a_signal_to_one_rank_stops_all_and_they_resume_exactly(
    request, training, together, tmp_path, signals, kind, stops
):
    train, _ = training(kind)
    result = tmp_path / "stopped"
    if kind == "cross-entropy":
        alone = request.getfixturevalue("uninterrupted_ranks")
    else:
        alone = tmp_path / "alone"
        assert together(2, lambda _: outcome(lambda: train(alone))) == [None, None]
    for rank, step in stops:
        signals.clear()
        signals[rank, step] = [signal.SIGTERM]
        ended = together(2, lambda _: outcome(lambda: train(result)))
        assert ended == [signal.SIGTERM] * 2
        assert Checkpoints(result / "checkpoints").steps()[-1] == step
        assert not list(result.glob("*.safetensors"))
    signals.clear()
    assert together(2, lambda _: outcome(lambda: train(result))) == [None, None]
    assert_equal_results(result, alone)


@pytest.mark.parametrize(
    ("agreement", "step", "others"),
    [(4, 5, signal.SIGTERM), (7, 7, signal.SIGTERM), (14, 12, None)],
    ids=["within an epoch", "at its end", "at the end of the last"],
)
def test_a_signal_during_the_exchange_stops_the_ranks_at_the_next_one(
    train, together, uninterrupted_ranks, tmp_path, monkeypatch, agreement, step, others
):
    """The rank that got the signal may neither save nor stop alone."""
    agree = Ranks.agree_to_stop
    agreements = 0

    def agree_and_signal(self, stop):
        nonlocal agreements
        agreements += 1
        stopped = agree(self, stop)
        if (self.rank, agreements) == (0, agreement):
            signal.raise_signal(signal.SIGTERM)
        return stopped

    result = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(Ranks, "agree_to_stop", agree_and_signal)
        ended = together(2, lambda _: outcome(lambda: train(result)))
    assert ended == [signal.SIGTERM, others]
    assert Checkpoints(result / "checkpoints").steps()[-1] == step
    assert together(2, lambda _: outcome(lambda: train(result))) == [None, None]
    assert_equal_results(result, uninterrupted_ranks)


def test_each_rank_draws_its_own_dropout(uninterrupted_ranks):
    state = Checkpoints(uninterrupted_ranks / "checkpoints").latest().state
    first, other = state["random"]
    assert not torch.equal(first["torch"], other["torch"])
    assert state["environment"]["processes"] == "2"


def test_another_number_of_ranks_resumes_and_warns(train, together, tmp_path, signals, caplog):
    settings = ("model.dropout=0", "train.lr=0.1")
    alone, result = train(tmp_path / "alone", *settings), tmp_path / "changed"
    signals[0, 5] = [signal.SIGINT]
    ended = together(2, lambda _: outcome(lambda: train(result, *settings)))
    assert ended == [signal.SIGINT] * 2
    signals[0, 8] = [signal.SIGINT]
    assert outcome(lambda: train(result, *settings)) == signal.SIGINT
    assert (
        "train: processes 2 -> 1 since the checkpoint; the result will not equal that of an "
        "uninterrupted run bit for bit"
    ) in caplog.messages
    signals.clear()
    assert together(3, lambda _: outcome(lambda: train(result, *settings))) == [None] * 3
    assert {path.name for path in result.iterdir()} == {path.name for path in alone.iterdir()}
    assert_close_results(result, alone)


def test_a_loss_that_is_not_finite_ends_all_ranks_and_names_the_images_of_all(
    train, together, tmp_path, monkeypatch
):
    """The rank with the loss of NaN need not be the one with the cause."""
    compute = cross_entropy.two_losses

    def poisoned(captioner, memory, captions, **teaching):
        losses = compute(captioner, memory, captions, **teaching)
        broken = captioner.schedule_step.item() == 6 and Ranks.current().rank == 1
        return replace(losses, caption=losses.caption * torch.nan) if broken else losses

    monkeypatch.setattr(cross_entropy, "two_losses", poisoned)
    result = tmp_path / "poisoned"
    first, second = together(2, lambda _: outcome(lambda: train(result)))
    assert first == second
    assert first.startswith("loss is not finite at step 6: loss nan, mask_loss -")
    assert len(re.search(r"\(images (.*)\);", first)[1].split(", ")) == 2
    assert Checkpoints(result / "checkpoints").latest().step == 4


def test_a_rank_that_dies_ends_the_others_with_an_error(train, together, tmp_path, monkeypatch):
    update = CrossEntropyUpdater.step

    def die(self, parts, number):
        if number == 6 and Ranks.current().rank == 1:
            raise InputError("its disk is gone")
        return update(self, parts, number)

    monkeypatch.setattr(CrossEntropyUpdater, "step", die)
    result = tmp_path / "died"
    first, second = together(2, lambda _: outcome(lambda: train(result)))
    assert second == "its disk is gone"
    assert first.startswith("rank 0 of 2 lost the others (")
    assert first.endswith("); read their error messages, then run the same command again")
    assert Checkpoints(result / "checkpoints").latest().step == 4


def start_torchrun(experiment, artifacts, *overrides):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launcher += ("--max-restarts", "1")
    command = train_command(experiment, artifacts, overrides, launcher=launcher)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_checkpoint(started, partial, step):
    while started.poll() is None and not (partial / "checkpoints" / f"step-{step:08}").exists():
        time.sleep(0.01)


def kill_rank(started, rank):
    """Kill one of torchrun's processes, its children."""
    [children] = Path(f"/proc/{started.pid}/task/{started.pid}").glob("children")
    for process in map(int, children.read_text().split()):
        if f"RANK={rank}" in Path(f"/proc/{process}/environ").read_text().split("\0"):
            os.kill(process, signal.SIGKILL)


def test_under_torchrun_killed_and_stopped_ranks_resume_exactly(
    experiment, train, together, two_ranks, tmp_path
):
    """torchrun restarts the ranks after a kill; the signal comes in the third of four epochs, to
    loaders too, with no save due."""
    overrides = ("train.epochs=4", "train.batch_size=2", "train.checkpoint_every=20")
    alone = tmp_path / "alone"
    assert together(2, lambda _: outcome(lambda: train(alone, *overrides))) == [None, None]
    artifacts = copied_artifacts(experiment, tmp_path, "train-xe", "evaluate")
    with experiment.open(*overrides, artifacts=artifacts) as opened:
        key = opened.stage("train-xe").made_from.key
    partial = artifacts / "train-xe" / f"{key}.partial"
    started = start_torchrun(experiment, artifacts, *overrides, "runtime.workers=1")
    wait_for_checkpoint(started, partial, 20)
    kill_rank(started, 0)
    wait_for_checkpoint(started, partial, 40)
    started.send_signal(signal.SIGTERM)
    _, printed_errors = started.communicate(timeout=600)
    assert started.returncode != 0
    assert printed_errors.count("a2: stopped; run the same command again to resume") == 2, (
        printed_errors
    )
    assert 40 < Checkpoints(partial / "checkpoints").steps()[-1] < 64

    command = train_command(experiment, artifacts, overrides)
    main, other = two_ranks(*command[command.index("train") :])
    assert (main.exit_code, other.exit_code) == (0, 0), main.stderr + other.stderr
    assert main.stdout.startswith("train-xe: done in")
    result = artifacts / "train-xe" / key
    assert len(events(result, "resume")) == 2
    assert_equal_results(result, alone)
