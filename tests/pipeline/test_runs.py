"""Runs of an artifacts folder: their labels, the names by which users find them, `a2 runs`."""

import csv
import json
import os
from pathlib import Path

import pytest

from a2cap.pipeline import runs
from a2cap.pipeline.config import Config
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.manifest import Manifest
from a2cap.pipeline.engine.stage import StagePaths
from a2cap.pipeline.evaluation.scores import write_scores
from a2cap.pipeline.metrics.score import Scores
from a2cap.pipeline.report.report import Evaluation
from a2cap.pipeline.runs import find_result, label_of, read_runs
from tests.data.messages import message_of
from tests.experiments import a2

DEFAULTS = Config().model_dump(mode="json", by_alias=True)


class Artifacts:
    """An artifacts folder with results of few bytes."""

    def __init__(self, folder):
        self.folder, self.clock = folder, 1e9

    def result(self, stage, params, inputs=(), *, name=None, files=(), partial=False):
        """Write a result; return its folder and its digest."""
        params = {section: DEFAULTS[section] | fields for section, fields in params.items()}
        made = PreImage(stage, 1, params, dict(inputs))
        folder = self.folder / stage / f"{made.key}{'.partial' if partial else ''}"
        folder.mkdir(parents=True)
        runtime = DEFAULTS["runtime"] | {"name": name}
        config = Config.model_validate({"runtime": runtime})
        (folder / "config.yaml").write_text(config.to_yaml())
        for file in files:
            (folder / file).write_text(made.key)
        if partial:
            (folder / "key.json").write_text(json.dumps(made.as_dict()))
            return folder, None
        self.clock += 60
        manifest = Manifest(made, dict.fromkeys(files, made.key), 0, self.clock, 1.0, {})
        manifest.write(folder)
        return folder, manifest.digest

    def training(self, name=None, *, model=(), inputs=(), partial=False, phase="xe", **fields):
        """Write a training; fields: of its section."""
        stage, section = f"train-{phase}", {"xe": "train"}.get(phase, phase)
        params = {section: fields} | ({"model": dict(model)} if section == "train" else {})
        files = () if partial else ("model.safetensors",)
        return self.result(stage, params, inputs, name=name, files=files, partial=partial)

    def evaluation(self, digest, cider, name=None, *, truth=None, **fields):
        """Write an evaluation of the training with this digest."""
        files, inputs = ("captions.json",), {"model": digest}
        folder, _ = self.result("evaluate", {"evaluate": fields}, inputs, name=name, files=files)
        scores = Scores(
            {"CIDEr": cider} | ({"truth": truth} if truth else {}),
            {"1": {"CIDEr": cider}},
            {},
            {"CIDEr": (cider - 0.1, cider + 0.1)},
        )
        write_scores(folder, Evaluation("x", {"1": "a"}, {"1": ["a"]}, scores))
        return folder

    def run(self, cider, name=None, *, model=(), **fields):
        """Write a training and its evaluation."""
        folder, digest = self.training(name, model=model, **fields)
        return folder, self.evaluation(digest, cider, name)


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Artifacts(tmp_path / "artifacts")


def labels(artifacts):
    """List the labels, oldest first."""
    return [run.label for run in reversed(read_runs(artifacts.folder))]


def aligned(fusion):
    alignment = DEFAULTS["model"]["alignment"] | {"fusion": fusion}
    return {"alignment": alignment}


def test_labels_have_the_name_and_the_settings_that_differ_under_that_name(artifacts):
    artifacts.run(0.5, "small", width_of_old_version=3)
    artifacts.run(0.6, "small", seed=5, model=aligned("decay"))
    artifacts.run(0.7, "large", seed=7)
    assert labels(artifacts) == [
        "small, fusion gate, seed 0",
        "small, fusion decay, seed 5",
        "large",
    ]


def test_runs_without_a_name_are_labelled_by_their_settings(artifacts):
    artifacts.run(0.5, lr=0.5, seed=1)
    assert labels(artifacts) == ["seed 1, lr 0.5"]
    artifacts.run(0.5, lr=0.5, seed=2)
    assert labels(artifacts) == ["seed 1", "seed 2"]


def test_runs_that_no_setting_distinguishes_have_the_start_of_their_keys(artifacts):
    artifacts.run(0.5, inputs={"features": "one"})
    artifacts.run(0.5, inputs={"features": "other"})
    found = {run.evaluation.name[:6]: run.label for run in read_runs(artifacts.folder)}
    assert found == {key: f"default ({key})" for key in found}


def test_self_critical_training_is_another_phase_and_has_the_settings_of_both(artifacts):
    _, digest = artifacts.training("small", seed=3)
    artifacts.evaluation(digest, 0.5, "small")
    _, refined = artifacts.training("small", phase="scst", inputs={"model": digest}, epochs=2)
    artifacts.evaluation(refined, 0.6, "small")
    assert labels(artifacts) == ["small, phase xe", "small, phase scst"]
    refined = read_runs(artifacts.folder)[0]
    assert refined.settings == {"train.seed": 3, "scst.epochs": 2}


def test_unfinished_trainings_are_runs_and_no_candidates(artifacts):
    folder, _ = artifacts.training("small", partial=True, seed=1)
    [run] = read_runs(artifacts.folder)
    assert (run.label, run.state, run.training) == ("small", "unfinished", folder)
    with stage_lock(StagePaths(folder.with_suffix("")).lock, what="a test"):
        assert [run.state for run in read_runs(artifacts.folder)] == ["running"]
    assert find_result(folder, "training") == folder


def test_a_result_is_found_by_folder_label_key_and_latest(artifacts):
    first, scored = artifacts.run(0.5, "small", seed=1)
    _, latest = artifacts.run(0.6, "small", seed=2)
    for name in ("small, seed 1", "seed 1", first.name, first.name[:5], scored.name[:5]):
        assert find_result(artifacts.folder / name, "training") == first
        assert find_result(Path(name), "training") == Path("artifacts", "train-xe", first.name)
        assert find_result(artifacts.folder / name, "evaluation") == scored
    assert find_result(scored, "training") == first
    assert find_result(artifacts.folder / "latest", "evaluation") == latest
    assert label_of(first) == label_of(scored) == "small, seed 1"


def test_a_folder_above_names_its_only_result_and_lists_several(artifacts, monkeypatch):
    first, scored = artifacts.run(0.5, "small", seed=1)
    for folder in (artifacts.folder, first.parent, scored.parent):
        assert find_result(folder, "training") == first
        assert find_result(folder, "evaluation") == scored
    second, _ = artifacts.run(0.6, "small", seed=2)
    listed = f"\n  {second.name}  small, seed 2\n  {first.name}  small, seed 1"
    assert message_of(find_result, artifacts.folder, "training") == (
        f"2 trainings fit {str(artifacts.folder)!r}; name the label or the key of one:{listed}"
    )
    named = artifacts.folder / "small, seed 3"
    assert message_of(find_result, named, "training") == (
        f"no training fits {str(named)!r}; name the label or the key of one:{listed}"
    )
    monkeypatch.setattr(runs, "_LISTED", 1)
    assert message_of(find_result, artifacts.folder, "training").endswith(
        'seed 2\n  and 1 more; see "a2 runs"'
    )


def test_a_path_without_runs_stays_as_it_is(artifacts, tmp_path):
    assert find_result(tmp_path / "none", "training") == tmp_path / "none"
    assert label_of(tmp_path / "my scores") == "my scores"


def test_the_table_fits_the_terminal_and_is_sorted(artifacts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    artifacts.run(0.5, "small", seed=1, **dict.fromkeys(("epochs", "batch_size", "warmup"), 7))
    _, best = artifacts.run(0.6, "small", seed=2)
    artifacts.training("new")
    lines = a2("runs", "--sort", "cider").stdout.splitlines()
    assert lines[0] == "CIDEr                   date                 size  label"
    assert lines[1].startswith("0.600 (0.500 to 0.700)  2001-09-09 ")
    assert lines[1].endswith(" kB  small, seed 2, epochs 30, batch_size 10, warmup 10000")
    assert lines[2] == f"  evaluate/{best.name}: train.seed 2"
    assert lines[5].startswith("not evaluated ")
    assert lines[6].endswith(": all settings at their default")
    assert lines[7:] == ["3 runs"]
    assert max(map(len, lines[::2])) <= 80
    _, digest = artifacts.training("judged", epochs=1)
    artifacts.evaluation(digest, 0.7, truth=0.25)
    lines = a2("runs", "--sort", "cider").stdout.splitlines()
    assert lines[0].startswith("CIDEr                   truth  date  ")
    assert lines[1].startswith("0.700 (0.600 to 0.800)  0.250  2001-09-09 ")
    assert lines[3].startswith("0.600 (0.500 to 0.700)         2001-09-09 ")
    assert a2("runs", "--artifacts", "none").stdout == 'no runs; "a2 train" makes one\n'


def test_json_and_csv_have_all_metrics_and_settings(artifacts):
    training, evaluation = artifacts.run(0.5, "small", seed=1)
    [row] = json.loads(a2("runs", "--json").stdout)
    assert row["metrics"] == {"CIDEr": 0.5}
    assert row["settings"] == {"train.seed": 1}
    assert (row["label"], row["state"]) == ("small", "done")
    artifacts.training("small", partial=True, seed=2)
    first, second = csv.DictReader(a2("runs", "--csv", "--sort", "label").stdout.splitlines())
    assert (first["CIDEr"], first["train.seed"], second["state"]) == ("0.5", "1", "unfinished")
    assert [first["training"], first["evaluation"]] == [
        str(path.relative_to(artifacts.folder.parent)) for path in (training, evaluation)
    ]


def test_curves_are_linked_under_their_labels(artifacts, tmp_path):
    training, _ = artifacts.run(0.5, "a/b")
    (training / "tensorboard").mkdir()
    assert a2("runs", "--tensorboard", "curves").exit_code == 0
    assert os.path.realpath("curves/a-b") == str(training / "tensorboard")
    assert a2("runs", "--tensorboard", "curves").stderr == (
        "a2: 'curves' exists; name a new folder\n"
    )


def test_damaged_results_are_left_out(artifacts):
    training, evaluation = artifacts.run(0.5, "small")
    (evaluation / "metrics.json").write_text("{")
    (evaluation / "config.yaml").write_text("a: [\nruntime:\n[")
    assert [(run.label, dict(run.scores)) for run in read_runs(artifacts.folder)] == [("small", {})]
    (evaluation / "manifest.json").write_text("{")
    assert [run.folder for run in read_runs(artifacts.folder)] == [training]
