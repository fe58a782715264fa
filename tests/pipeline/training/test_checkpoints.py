"""Tests of checkpoints: a damaged one is never loaded."""

import errno
import random
import shutil

import numpy as np
import pytest
import torch

from a2cap.data.errors import A2Error
from a2cap.pipeline.training.checkpoints import (
    Checkpoints,
    environment,
    restore_rng_states,
    rng_states,
)
from tests.data.messages import message_of
from tests.file_sizes import limited_to

FILES = ("model.safetensors", "state.pt")


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def save(checkpoints, step, best_step=None):
    """Save a checkpoint whose values all depend on its step."""
    checkpoints.save(
        step,
        # not contiguous, as after a transposition
        tensors={"weight": (torch.arange(6.0).reshape(2, 3) + step).T, "step": torch.tensor(step)},
        state={"position": {"step": step, "loss": step / 3}, "moments": torch.full((3,), step)},
        best_step=best_step,
    )


def flip(content, position):
    """Flip one bit of a byte."""
    changed = bytearray(content)
    changed[position] ^= 0b100
    return bytes(changed)


def test_a_loaded_checkpoint_equals_the_saved_one(checkpoints, caplog):
    assert checkpoints.latest() is None
    assert not caplog.records
    save(checkpoints, 3)
    checkpoint = checkpoints.latest()
    assert checkpoint.step == 3
    tensors = {
        "weight": torch.tensor([[3.0, 6.0], [4.0, 7.0], [5.0, 8.0]]),
        "step": torch.tensor(3),
    }
    torch.testing.assert_close(checkpoint.tensors, tensors, rtol=0, atol=0)
    assert checkpoint.state["position"] == {"step": 3, "loss": 1.0}
    assert checkpoint.state["moments"].tolist() == [3, 3, 3]


@pytest.mark.slow
def test_a_full_disk_raises_the_systems_error_at_any_byte(checkpoints):
    """At some bytes torch raises an error of its own about its archive."""
    save(checkpoints, 3)
    state = {"moments": [torch.zeros(size) for size in (10, 900, 3000, 50, 4000, 7)]}
    checkpoints.save(4, tensors={}, state=state, best_step=None)
    whole = (checkpoints.directory(4) / "state.pt").stat().st_size
    shutil.rmtree(checkpoints.directory(4))
    for limit in range(0, whole, 50):
        with limited_to(limit), pytest.raises(OSError, match="File too large") as raised:
            checkpoints.save(4, tensors={}, state=state, best_step=None)
        assert raised.value.errno == errno.EFBIG
    assert checkpoints.steps() == [3]
    assert checkpoints.latest().step == 3


def test_an_error_of_the_state_itself_is_not_changed(checkpoints, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        save(checkpoints, 3)


def test_the_newest_checkpoint_is_the_one_with_the_highest_step(checkpoints):
    save(checkpoints, 100_000_000)
    save(checkpoints, 99_999_999)
    assert checkpoints.latest().step == 100_000_000


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", [None, b"", b"{", "flipped"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_with_a_warning(
    checkpoints, caplog, name, damage
):
    save(checkpoints, 1)
    save(checkpoints, 2)
    path = checkpoints.directory(2) / name
    content = flip(path.read_bytes(), -100) if damage == "flipped" else damage
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert checkpoints.latest().step == 1
    [message] = caplog.messages
    what = "incomplete" if damage is None and name == "manifest.json" else "damaged"
    assert message.startswith(f"checkpoint is {what}: ")
    assert message.endswith("; going back to the one before it, or to the start")


def test_damaged_checkpoints_give_none_and_are_not_loaded(checkpoints, caplog):
    for step in (1, 2):
        save(checkpoints, step)
        path = checkpoints.directory(step) / "model.safetensors"
        path.write_bytes(flip(path.read_bytes(), -1))
    assert checkpoints.latest() is None
    assert len(caplog.messages) == 2
    assert message_of(checkpoints.load, 2, error=A2Error) == (
        f"checkpoint is damaged: {str(path)!r} differs from its sha256 in the manifest; "
        'train again with "a2 train --force"'
    )


@pytest.mark.parametrize(
    ("bests", "kept"), [((None, 2, 2, 2, 2, 2), [2, 5, 6]), ((1, 1, 1, 4, 4), [4, 5])]
)
def test_only_the_two_newest_and_the_best_are_kept(checkpoints, bests, kept):
    for step, best in enumerate(bests, start=1):
        save(checkpoints, step, best_step=best)
    assert checkpoints.steps() == kept


@pytest.mark.parametrize("missing", [*FILES, "manifest.json", None])
def test_a_checkpoint_that_was_not_renamed_is_used_only_if_it_is_whole(
    checkpoints, tmp_path, missing
):
    save(checkpoints, 1)
    partial = tmp_path / "checkpoints" / ".step-00000002.partial"
    shutil.copytree(checkpoints.directory(1), partial)
    if missing:
        (partial / missing).unlink()
    assert checkpoints.latest().step == (1 if missing else 2)
    assert checkpoints.steps() == ([1] if missing else [1, 2])
    assert partial.exists() == bool(missing)


@pytest.mark.parametrize("dying", ["rmtree", "publish"])
def test_a_step_that_is_saved_again_is_never_without_a_checkpoint(checkpoints, monkeypatch, dying):
    save(checkpoints, 1)
    with monkeypatch.context() as patch:

        def die(path, *arguments, **options):
            remove(checkpoints.directory(1), ignore_errors=True)
            raise KeyboardInterrupt

        remove = shutil.rmtree
        home = "shutil" if dying == "rmtree" else "a2cap.pipeline.training.checkpoints"
        patch.setattr(f"{home}.{dying}", die)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(1, tensors={}, state={"again": True}, best_step=None)
    assert checkpoints.latest().state == {"again": True}


@pytest.mark.parametrize("failing", ["save_tensors", "_save_state", "seal"])
def test_dying_during_a_save_keeps_the_older_checkpoint(
    checkpoints, tmp_path, monkeypatch, failing
):
    save(checkpoints, 1)
    with monkeypatch.context() as patch:

        def die(*arguments):
            raise KeyboardInterrupt

        patch.setattr(f"a2cap.pipeline.training.checkpoints.{failing}", die)
        for step in (2, 3):
            with pytest.raises(KeyboardInterrupt):
                save(checkpoints, step)
    assert checkpoints.steps() == [1]
    assert checkpoints.latest().step == 1
    save(checkpoints, 4)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-00000001", "step-00000004"}  # the next save removed the rest


def test_folders_that_are_not_checkpoints_are_skipped(checkpoints, tmp_path):
    save(checkpoints, 1)
    (tmp_path / "checkpoints" / "step-00000001 copy").mkdir()
    (tmp_path / "checkpoints" / "step-").mkdir()
    assert checkpoints.steps() == [1]


def test_the_state_of_a_whole_training_loads_as_weights_only(checkpoints):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimiser.step()
    state = {"random": rng_states(), "optimizers": [optimiser.state_dict()]}
    checkpoints.save(1, tensors={}, state=state, best_step=None)
    loaded = torch.load(checkpoints.directory(1) / "state.pt", weights_only=True)
    assert loaded["random"]["python"] == state["random"]["python"]
    assert loaded["optimizers"][0]["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_equal_states_are_equal_bytes_in_any_folder(tmp_path):
    for folder in ("one", "another place"):
        save(Checkpoints(tmp_path / folder), 5)
    first, second = (
        [(tmp_path / folder / "step-00000005" / name).read_bytes() for name in FILES]
        for folder in ("one", "another place")
    )
    assert first == second


def draws():
    return (random.random(), random.gauss(0, 1), np.random.rand(), torch.rand(3).tolist())


@pytest.mark.parametrize("before", [0, 1, 700])
def test_restored_rng_states_continue_the_same_sequences(checkpoints, before):
    states_of_this_process = rng_states()
    for _ in range(before):
        draws()
    np.random.standard_normal()  # an odd number of normal draws keeps one back in the state
    checkpoints.save(1, tensors={}, state={"random": rng_states()}, best_step=None)
    expected = [np.random.standard_normal(), draws()]
    draws()
    restore_rng_states(checkpoints.load(1).state["random"])
    assert [np.random.standard_normal(), draws()] == expected
    restore_rng_states(states_of_this_process)


@pytest.mark.parametrize("now", [("a", "b"), ("a",), ("a", "b", "c"), ()])
def test_the_rng_states_of_existing_gpus_are_restored(monkeypatch, now):
    gpus = {0: "first", 1: "second"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(gpus.values()))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, n: gpus.update({n: state}))
    states = rng_states()
    assert states["cuda"] == ["first", "second"]
    gpus = dict(enumerate(now))
    restore_rng_states(states)
    assert list(gpus.values()) == [*("first", "second")[: len(now)], *now[2:]]


def test_the_environment_names_what_exact_resume_depends_on(monkeypatch):
    facts = environment(torch.device("cpu"), ranks=3)
    assert facts.keys() == {"torch", "numpy", "device", "threads", "processes"}
    assert (facts["torch"], facts["processes"]) == (torch.__version__, "3")
    assert facts["threads"] == str(torch.get_num_threads())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert environment(torch.device("cuda", 1), ranks=1)["device"] == "GPU 1"
