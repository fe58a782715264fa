"""The programs of the guide in Python, and its notebook, run as shipped, on photographs."""

import json
import re
import shutil
from importlib.resources import files

import pytest

import a2cap
from a2cap.pipeline.cli.main import cli
from tests.test_structure import ROOT

GUIDE = ROOT / "docs" / "guide"
NOTEBOOK = GUIDE / "python.ipynb"
CAT = str(files("a2cap.pipeline") / "chelsea.jpg")


def programs():
    """Return the programs of the guide by a name that they alone contain."""
    text = "".join(
        (GUIDE / name).read_text("utf-8") for name in ("python.md", "python-reference.md")
    )
    codes = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    keys = ("print(captioner(", "holidays", "trained", "check_stages", "read_runs", "convert")
    return {key: next(code for code in codes if key in code) for key in keys}


@pytest.mark.slow
def test_the_first_programs_caption_a_photograph_and_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holidays").mkdir()
    for path in ("dog.jpg", "holidays/1.jpg", "holidays/2.jpg"):
        shutil.copyfile(CAT, tmp_path / path)
    (tmp_path / "holidays" / "empty.jpg").touch()
    exec(programs()["print(captioner("], {})
    caption = capsys.readouterr().out.strip()
    assert " cat " in caption
    exec(programs()["holidays"], {})
    rows = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert [(row["image"], row["caption"]) for row in rows] == [
        ("holidays/1.jpg", caption),
        ("holidays/2.jpg", caption),
    ]


@pytest.mark.slow
def test_the_programs_of_experiments_and_commands_run(experiment, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").symlink_to(experiment.scenes)
    shutil.copyfile(CAT, tmp_path / "dog.jpg")
    detected = {"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
    settings = {f"extract.{name}": value for name, value in detected.items()}
    config = a2cap.configure(experiment.config_file, {**settings, "data.instances": None})
    (tmp_path / "my.yaml").write_text(config.to_yaml())
    names = {}
    for key in ("check_stages", "trained", "read_runs", "convert"):
        code = programs()[key]
        assert len(code.strip().splitlines()) - code.count("import") <= 10
        exec(code, names)
    assert (tmp_path / "features.tar").is_file() and (tmp_path / "drawings").is_dir()
    assert capsys.readouterr().out.splitlines()[0] == "waiting"


def test_every_command_has_its_python():
    table = (GUIDE / "python-reference.md").read_text("utf-8").partition("## Commands")[2]
    assert [name for name in cli.list_commands(None) if f"`a2 {name}" not in table] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's packages
def test_the_notebook_runs_as_shipped():
    nbclient = pytest.importorskip("nbclient", reason="no nbclient")
    nbformat = pytest.importorskip("nbformat", reason="no nbformat")
    pytest.importorskip("ipykernel", reason="no ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(ROOT)}}  # whose folders could shadow packages
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output["data"] for output in outputs if "data" in output]
    assert "<figcaption>" in shown[0]["text/html"]
    assert sum("image/png" in data for data in shown) == 2  # attention of all words, and of one
    texts = "".join(output.get("text", "") for output in outputs)
    assert " cat " in texts and "Bleu_1   " in texts


def test_the_notebook_is_kept_without_output():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
