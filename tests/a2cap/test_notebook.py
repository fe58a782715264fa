"""The notebook of the guide runs from its first to its last cell after a small demo."""

import json

import pytest

from a2cap.pipeline.demo import run_demo
from tests.test_structure import ROOT

NOTEBOOK = ROOT / "docs" / "guide" / "python.ipynb"
SMALL = ("train.epochs=1", "model.width=16", "model.heads=2", "evaluate.beam_size=2")
EXAMPLE = "artifacts/demo/train-xe/0123456789ab"


def code_cells():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def last_value(source, names):
    """Run a cell and return the value of its last line, as a notebook shows it."""
    *_, last = source.splitlines()
    exec(compile(source, "cell", "exec"), names)
    return None if last.startswith((" ", ")", "}", "assert")) else eval(last, names)


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path, monkeypatch, capsys):
    demo = tmp_path / "artifacts" / "demo"
    run_demo(demo, SMALL, report=lambda name, outcome: None, scenes=40)
    model = min((demo / "train-xe").glob("*/model.json")).parent
    monkeypatch.chdir(tmp_path)
    first, *others = code_cells()
    assert EXAMPLE in first
    names = {}
    assert last_value(first.replace(EXAMPLE, str(model)), names) == names["found"].caption
    shown = [last_value(source, names) for source in others]
    assert shown[1].axes  # the figure of attention
    assert shown[3][0][0] == shown[3][1][0] > 0  # one row of features per box
    assert shown[4][0] == 40
    assert f"Bleu_1   {names['scores'].metrics['Bleu_1']:.3f} [" in capsys.readouterr().out


def test_the_notebook_is_kept_without_output():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
