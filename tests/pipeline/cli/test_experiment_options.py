"""Under torchrun rank 0 runs the command, and the other ranks join its trainings."""

from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from a2cap.data.errors import ConfigError
from a2cap.model import plug_ins
from a2cap.model.errors import ModelError
from a2cap.pipeline.cli.commands import EXIT_SKIPPED, Commands
from a2cap.pipeline.cli.experiment_options import experiment_options
from a2cap.pipeline.runtime import torchrun

OPTIONS = {
    "config_file": None,
    "overrides": ("runtime.device=cpu",),
    "artifacts": Path("/nowhere"),
    "verbose": False,
}


@pytest.fixture
def events(monkeypatch):
    """Record what this process does in order; torchrun itself is replaced."""
    order = []

    @contextmanager
    def connected(runtime):
        order.append(f"connects on {runtime.device}")
        yield "ranks"
        order.append("disconnects")

    monkeypatch.setattr(torchrun, "connected", connected)
    return order


@pytest.fixture
def start(request, monkeypatch, events):
    """Run a command as one rank of torchrun; return its events."""

    def run(rank, processes, **changes):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, str(rank))
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, str(processes))
        distributed = experiment_options(distributed=True)
        command = distributed(
            lambda options, force: end(f"runs with {options.group}, force {force}")
        )
        command(**OPTIONS | changes, force=True)
        return events

    def end(event):
        events.append(event)
        if code:
            raise click.exceptions.Exit(code)

    code = getattr(request, "param", None)
    return run


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("start", [None, EXIT_SKIPPED], indirect=True)
def test_every_rank_runs_the_command_and_skipped_items_are_no_failure(start, rank):
    """With exit code 3, torchrun would stop the other ranks, and start all of them again."""
    assert start(rank, 2) == ["connects on cpu", "runs with ranks, force True", "disconnects"]


def test_a_single_rank_of_torchrun_runs_the_command(start):
    assert start(0, 1) == ["runs with None, force True"]


def test_without_torchrun_the_command_runs(monkeypatch, events):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    experiment_options(distributed=True)(lambda options: events.append("runs"))(**OPTIONS)
    assert events == ["runs"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrong_configuration_stops_every_rank_before_it_waits(start, rank):
    with pytest.raises(ConfigError, match=r"train\.epochs"):
        start(rank, 2, overrides=("train.epochs=0",))


def invoke(work):
    """Invoke a command that does `work`, and return click's result."""
    command = click.Command("work", callback=work)
    return CliRunner().invoke(Commands("a2", commands={"work": command}), ["work"])


def test_an_error_of_the_model_is_one_line_and_exit_code_1():
    def work():
        raise ModelError("2 beams, 3 groups; choose a divisor")

    answer = invoke(work)
    assert (answer.exit_code, answer.stderr) == (1, "a2: 2 beams, 3 groups; choose a divisor\n")


def test_other_value_errors_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(plug_ins, "_used", [])  # by another test of this process
    assert isinstance(invoke(lambda: int("seven")).exception, ValueError)
