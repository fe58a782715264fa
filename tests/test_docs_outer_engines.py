"""Examples for DVC and Snakemake: their commands and options exist."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from a2cap.pipeline.cli.main import cli

DOCS = Path(__file__).parents[1] / "docs"
STAGES = {"extract", "preprocess", "train", "evaluate"}


def dvc():
    return yaml.safe_load((DOCS / "dvc.yaml").read_text())["stages"]


def rules():
    """Return name -> lines of Snakemake's rules."""
    text = (DOCS / "Snakefile").read_text()
    [options] = re.findall(r'^RUN = "(.*)"$', text, re.MULTILINE)
    parts = re.split(r"^rule (\w+):\n", text, flags=re.MULTILINE)[1:]
    return {
        name: body.replace("{RUN}", options)
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def commands():
    yield from ((name, stage["cmd"]) for name, stage in dvc().items())
    for name, body in rules().items():
        yield name, re.findall(r'shell: "(.*)"', body)[0]


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_of_the_examples_parses(name, command):
    program, *words = shlex.split(command)
    assert (program, words[0]) == ("a2", name)
    above = click.Context(cli, **cli.context_settings)
    name_of_command, parser, rest = cli.resolve_command(above, words)
    parser.make_context(name_of_command, rest, parent=above, resilient_parsing=False)


def test_both_examples_have_all_stages_in_order():
    assert set(dvc()) == set(rules()) == STAGES
    made = set()
    for stage in dvc().values():
        needed = {dep for dep in stage["deps"] if dep.startswith("artifacts/")}
        assert needed <= made
        made |= {path for output in stage["outs"] for path in output}
    for name, body in rules().items():
        [marks] = re.findall(r"input: (.*)", body)
        assert set(re.findall(r"done/(\w+)", marks)) <= set(rules()) - {name}
        assert f'output: touch("done/{name}")' in body


def test_dvc_keeps_the_partial_work_of_a_killed_run():
    for stage in dvc().values():
        [options] = [options for output in stage["outs"] for options in output.values()]
        assert options == {"persist": True, "cache": False}


@pytest.mark.parametrize("name", ["dvc.yaml", "Snakefile"])
def test_an_example_has_about_twenty_lines(name):
    assert len((DOCS / name).read_text().splitlines()) <= 25
