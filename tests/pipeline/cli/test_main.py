"""Commands: help, usage errors, and the stages that each command runs."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from a2cap.model.captioners.kinds import KINDS
from a2cap.pipeline.cli import main as commands
from a2cap.pipeline.cli.main import cli
from tests.experiments import a2, settings

CONTEXT = click.Context(cli)
COMMANDS = {name: cli.get_command(CONTEXT, name) for name in cli.list_commands(CONTEXT)}


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_of_every_command_ends_with_an_example_that_parses(option):
    for name in ("", *COMMANDS):
        answer = a2(*name.split(), option, code=0)
        assert answer.stdout.startswith(f"Usage: a2 {name}".strip())
        first, *lines = answer.stdout.rpartition("\n\n")[2].replace("\\\n", " ").splitlines()
        assert first == "  Example:", name
        assert lines[0].startswith(f"    a2 {name}".rstrip())
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "a2"
            above = click.Context(cli, **cli.context_settings)
            called, command, rest = cli.resolve_command(above, words)
            command.make_context(called, rest, parent=above)


def test_help_lists_every_command_in_a_section_with_its_summary():
    folder = Path(commands.__file__).parent
    modules = [path for path in folder.glob("*/*.py") if f"\ndef {path.stem}(" in path.read_text()]
    assert sorted(path.stem for path in modules) == sorted(COMMANDS)
    listed = {name: text for _, names in cli.sections.values() for name, text in names.items()}
    texts = {name: command.get_short_help_str(1000) for name, command in COMMANDS.items()}
    assert listed == texts
    for group in (command for command in COMMANDS.values() if isinstance(command, click.Group)):
        texts |= {name: c.get_short_help_str(1000) for name, c in group.commands.items()}
    assert [text for text in texts.values() if len(text) > 55] == []
    text = a2("--help").stdout
    assert "\nOwn images:\n  caption      Caption image files with a trained captioner.\n" in text
    assert "..." not in text.partition("Run:")[2]


def test_without_a_command_the_stages_and_a_first_command_are_printed():
    answer = a2(code=0)
    first, _, *stages, _, attempt, _ = answer.stdout.splitlines()
    assert first.startswith("a2 captions images and trains captioners")
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "no command 'evalute'; did you mean 'evaluate'?" in a2("evalute").stderr
    assert [line.split()[:2] for line in stages] == [
        ["a2", name] for name in ("extract", "preprocess", "train", "evaluate")
    ]
    assert attempt == "try: a2 caption photo.jpg"


def test_help_and_commands_about_results_import_no_heavy_package(experiment, tmp_path):
    paths = ["-c", str(experiment.config_file), "--artifacts", str(experiment.artifacts)]
    finished = shlex.join(["status", *paths])
    lines = ("--help", "runs", "config show", "verify", "clean", "status", finished)
    script = (
        "import shlex, sys, click\n"
        "from a2cap.pipeline.cli.main import cli\n"
        "heavy = {'torch', 'cv2', 'h5py', 'PIL', 'rich', 'jinja2', 'fsspec', 'pooch', 'requests'}\n"
        f"for line in {lines!r}:\n"
        "    try:\n"
        "        cli(shlex.split(line), standalone_mode=False)\n"
        "    except (click.ClickException, click.exceptions.Exit):\n"
        "        pass\n"
        "    never = heavy | {'numpy', 'lmdb', 'matplotlib'} if line == '--help' else heavy\n"
        "    assert not never & set(sys.modules), (line, never & set(sys.modules))\n"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(" done") == 4


def test_the_version_is_printed():
    answer = a2("--version")
    assert answer.stdout.startswith("a2, version 0.")
    assert answer.exit_code == 0


# --- usage and configuration: exit code 2 -------------------------------------------------------


def test_the_configuration_is_shown_explained_and_compared(copy):
    shown = a2("config", "show", *settings("train.lr=0.25"))
    assert yaml.safe_load(shown.stdout)["train"]["lr"] == 0.25
    assert a2("config", "explain", "evaluate.beam_size").stdout.splitlines() == [
        "evaluate.beam_size: default 5. K, beams kept per image, or captions sampled; "
        "1 beam is greedy decoding",
        "valid: integer, >= 1, <= 1000",
    ]
    valid = {
        "train.betas": "list of number, >= 0, < 1",
        "runtime.threads": "integer, >= 1, <= 1024 or null",
        "model.alignment.aligned_layers": "all or list of integer, >= 1",
        "data.images": "path or null",
        "model.kind": ", ".join([*KINDS, "or module:Class of an installed package"]),
    }
    for field, text in valid.items():
        assert a2("config", "explain", field).stdout.splitlines()[-1] == f"valid: {text}"
    section = a2("config", "explain", "runtime").stdout.splitlines()
    assert [line.split(":")[0] for line in section] == [
        f"runtime.{name}" for name in ("device", "workers", "threads", "compile", "ray", "name")
    ]
    assert a2("config", "explain", "train.bach_size", code=2).stderr == (
        "a2: unknown field: 'train.bach_size'; did you mean 'train.batch_size'?\n"
    )
    assert a2("config", "explain", "batch", code=2).stderr == (
        "a2: unknown field: 'batch'; did you mean 'scst.batch_size'?\n"
    )
    trained = copy.directory("train-xe")
    assert a2("config", "diff", trained, copy.experiment.config_file).stdout == (
        "no setting differs\n"
    )
    other = copy.artifacts / "other.yaml"
    other.write_text(shown.stdout)
    assert "train.lr 1.0 -> 0.25\n" in a2("config", "diff", trained, other).stdout


@pytest.mark.parametrize("option", ["--images", "--output"])
def test_options_that_belong_together_are_required(option):
    answer = a2("extract", option, "x", code=2)
    message = "Error: --images and --output belong together; name both or neither\n"
    assert answer.stderr.endswith(message)


# --- stages that run ----------------------------------------------------------------------------


def test_a_second_run_finds_every_stage_up_to_date(copy):
    before = copy.finished()
    answer = copy.a2("run", code=0)
    lines = answer.stdout.splitlines()
    assert [line.split(": ")[:2] for line in lines[:4]] == [
        [stage, "up to date"] for stage in ("extract", "preprocess", "train-xe", "evaluate")
    ]
    assert lines[4] == "nothing to do: every result exists; --force reruns a stage"
    assert copy.finished() == before


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_evaluation_ends_with_the_scores_and_the_report(copy, command):
    answer = copy.a2(command)
    folder = copy.directory("evaluate")
    scores = json.loads((folder / "metrics.json").read_text())["metrics"]
    *_, meteor, _, cider, spice, unpenalised, last = answer.stdout.splitlines()
    assert unpenalised.startswith("BLEU-1 to 4 without brevity penalty: 0.")
    for line, name in ((meteor, "METEOR"), (cider, "CIDEr")):  # and the ends of its interval
        shown, value, low, to, high = line.split()
        assert (shown, value, to) == (name, f"{scores[name]:.4f}", "to")
        assert float(low) <= float(value) <= float(high)
    assert spice.startswith("SPICE    not run: ")
    assert last == f"report: {folder / 'report.html'}"


@pytest.mark.parametrize(
    ("until", "last"), [("extract", "extract"), ("preprocess", "preprocess"), ("train", "train-xe")]
)
def test_a_run_stops_after_the_named_stage(copy, until, last):
    *stages, _ = copy.a2("run", "--until", until).stdout.splitlines()
    assert stages[-1].startswith(f"{last}: up to date: ")
    dry = copy.a2("run", "--until", until, "--dry-run").stdout.splitlines()
    assert dry[-1].split()[:2] == [last, "done"]


def test_a_dry_run_prints_reasons_and_runs_nothing(copy):
    before = copy.finished()
    answer = copy.a2("run", "--dry-run", *settings("evaluate.beam_size=3", "train.seed=4"), code=0)
    lines = answer.stdout.splitlines()
    assert lines[0].split(maxsplit=2) == ["extract", "done", str(copy.directory("extract"))]
    assert lines[2:] == [
        "train-xe       to run",
        "               train.seed 0 -> 4",
        "evaluate       waiting",
        "               waits for train-xe",
    ]
    assert copy.finished() == before


def test_status_prints_json(copy):
    rows = json.loads(copy.a2("status", "--json", *settings("evaluate.beam_size=3")).stdout)
    assert rows[-1] == {
        "stage": "evaluate",
        "state": "to run",
        "directory": None,
        "why": ["evaluate.beam_size 2 -> 3"],
    }
    assert rows[0] == {
        "stage": "extract",
        "state": "done",
        "directory": str(copy.directory("extract")),
        "why": [],
    }


REFINED = settings("scst.epochs=1", "scst.samples=2", "scst.max_length=5", "scst.batch_size=16")


@pytest.mark.slow
def test_training_runs_the_chosen_phases_and_force_covers_them(copy):
    printed = {
        phase: [
            line.split(": ")[:2] for line in copy.a2("train", *chosen, *REFINED).stdout.splitlines()
        ]
        for phase, chosen in (
            ("xe", ["--phase", "xe"]),
            ("all", []),
            ("scst", ["--phase", "scst", "--force"]),
        )
    }
    assert printed["xe"][0] == ["train-xe", "up to date"]
    assert [name for name, _ in printed["all"]] == ["train-xe", "train-scst"]
    assert [name for name, _ in printed["scst"]] == ["train-scst"]
    assert printed["all"][0][1] == "up to date"
    assert printed["all"][1][1].startswith("done in")
    assert printed["scst"][0][1].startswith("done in")
    dry = copy.a2("run", "--until", "train", "--dry-run", *REFINED).stdout.splitlines()
    assert dry[-1].split()[:2] == ["train-scst", "done"]


def test_a_phase_that_the_experiment_lacks_is_rejected(copy):
    assert copy.a2("train", "--phase", "scst", code=2).stderr == (
        "a2: self-critical training is disabled: scst.epochs is 0; set it to 1 or more\n"
    )


def test_the_wait_policy_is_set_before_any_command(monkeypatch):
    done = []
    monkeypatch.setattr(commands, "set_wait_policy", done.append)
    monkeypatch.setattr(commands, "cli", lambda: done.append("command"))
    commands.main()
    assert done == [os.environ, "command"]
