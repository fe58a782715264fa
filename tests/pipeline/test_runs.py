"""Runs of an artifacts folder: the names by which users find them, and `a2 runs`."""

import csv
import json
import os
import re
from pathlib import Path

import pytest

from a2cap.data.files.sealed_folder import MadeFrom, read_manifest, seal, write_manifest
from a2cap.pipeline import runs
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.prepared_stage import StagePaths
from a2cap.pipeline.evaluation.metrics_file import write_scores
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.report.report import ScoreReport
from a2cap.pipeline.runs import find_result, find_trainings, read_runs, title_of
from a2cap.pipeline.training.summary import TrainingSummary
from a2cap.pipeline.weights.captioners import BUNDLED
from tests.data.messages import message_of
from tests.experiments import a2

DEFAULTS = Config().model_dump(mode="json")


class Artifacts:
    """An artifacts folder with results of few bytes."""

    def __init__(self, folder):
        self.folder, self.clock = folder, 1e9

    def result(self, stage, params, inputs=(), *, name=None, files=(), partial=False):
        """Write a result; return its folder and its digest."""
        params = {section: DEFAULTS[section] | fields for section, fields in params.items()}
        made = MadeFrom(stage=stage, version=1, fields=params, inputs=dict(inputs))
        folder = self.folder / stage / f"{made.key}{'.partial' if partial else ''}"
        folder.mkdir(parents=True)
        runtime = DEFAULTS["runtime"] | {"name": name}
        config = Config.model_validate({"runtime": runtime})
        (folder / "config.yaml").write_text(config.to_yaml())
        for file in files:
            (folder / file).write_text(made.key)
        if partial:
            (folder / "made_from.json").write_text(made.model_dump_json())
            return folder, None
        self.clock += 60
        manifest = seal(folder, files, made_from=made)
        manifest = manifest.model_copy(update={"finished": self.clock})
        write_manifest(folder, manifest)
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
        write_scores(folder, ScoreReport("x", {"1": "a"}, {"1": ["a"]}, scores))
        earlier = read_manifest(folder)
        manifest = seal(folder, (*files, "metrics.json"), made_from=earlier.made_from)
        write_manifest(folder, manifest.model_copy(update={"finished": earlier.finished}))
        return folder

    def run(self, cider, name=None, *, model=(), **fields):
        """Write a training and its evaluation."""
        folder, digest = self.training(name, model=model, **fields)
        return folder, self.evaluation(digest, cider, name)


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Artifacts(tmp_path / "artifacts")


def aligned(fusion):
    alignment = DEFAULTS["model"]["alignment"] | {"fusion": fusion}
    return {"alignment": alignment}


def test_a_run_has_the_settings_that_are_not_the_default(artifacts):
    artifacts.run(0.6, "small", seed=5, model=aligned("decay"), field_of_no_version=3)
    _, digest = artifacts.training("small", seed=3)
    _, refined = artifacts.training("small", phase="scst", inputs={"model": digest}, epochs=2)
    artifacts.evaluation(refined, 0.6, "small")
    refined_run, first = read_runs(artifacts.folder)[0], read_runs(artifacts.folder)[-1]
    assert list(first.settings.items()) == [("model.alignment.fusion", "decay"), ("train.seed", 5)]
    assert refined_run.settings == {"train.seed": 3, "scst.epochs": 2}  # of both phases


def test_unfinished_trainings_are_runs_and_no_candidates(artifacts):
    folder, _ = artifacts.training("small", partial=True, seed=1)
    [run] = read_runs(artifacts.folder)
    assert (run.name, run.state, run.training) == ("small", "unfinished", folder)
    with stage_lock(StagePaths(folder.with_suffix(""), shared=True).lock, what="a test"):
        assert [run.state for run in read_runs(artifacts.folder)] == ["running"]
    assert find_result(folder, "training") == folder


def test_a_result_is_found_by_folder_name_key_and_latest(artifacts):
    first, scored = artifacts.run(0.5, "small", seed=1)
    _, latest = artifacts.run(0.6, "large", seed=2)
    for name in ("small", first.name, first.name[:5], scored.name[:5]):
        assert find_result(artifacts.folder / name, "training") == first
        assert find_result(Path(name), "training") == Path("artifacts", "train-xe", first.name)
        assert find_result(artifacts.folder / name, "evaluation") == scored
    assert find_result(scored, "training") == first
    assert find_result(artifacts.folder / "latest", "evaluation") == latest
    assert [title_of(path) for path in (first, scored)] == [
        f"small {path.name[:6]}" for path in (first, scored)
    ]


def test_a_folder_above_names_its_only_result_and_lists_several(artifacts, monkeypatch):
    first, scored = artifacts.run(0.5, "small", seed=1)
    for folder in (artifacts.folder, first.parent, scored.parent):
        assert find_result(folder, "training") == first
        assert find_result(folder, "evaluation") == scored
    second, _ = artifacts.run(0.6, "small", seed=2)
    listed = (
        f"\n  {second.name}  small  CIDEr 0.600, train.seed 2"
        f"\n  {first.name}  small  CIDEr 0.500, train.seed 1"
    )
    assert message_of(find_result, artifacts.folder, "training") == (
        f"2 trainings fit {str(artifacts.folder)!r}; name the key of one:{listed}"
    )
    named = artifacts.folder / "small"
    assert message_of(find_result, named, "training") == (
        f"2 trainings fit {str(named)!r}; name the key of one:{listed}"
    )
    named = artifacts.folder / "large"
    assert message_of(find_result, named, "training") == (
        f"no training fits {str(named)!r}; name the key of one:{listed}"
    )
    monkeypatch.setattr(runs, "_LISTED", 1)
    assert message_of(find_result, artifacts.folder, "training").endswith(
        'train.seed 2\n  and 1 more; see "a2 runs"'
    )


def test_a_path_without_runs_stays_as_it_is(artifacts, tmp_path):
    assert find_result(tmp_path / "none", "training") == tmp_path / "none"
    assert title_of(tmp_path / "my scores") == "my scores"


def test_the_latest_of_no_runs_is_an_error(tmp_path):
    assert message_of(find_result, tmp_path / "latest", "training") == (
        f'no training in {str(tmp_path)!r}: none is the latest; make one with "a2 run", or name a '
        "folder"
    )


def test_the_table_has_the_settings_that_differ_whole_and_is_sorted(artifacts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    shared = dict.fromkeys(("epochs", "batch_size", "warmup", "decay_every"), 7)
    _, second = artifacts.run(0.5, "small", seed=1, **shared)
    _, best = artifacts.run(0.6, "small", lr=0.25, label_smoothing=0.125, **shared)
    lines = a2("runs", "--sort", "cider").stdout.splitlines()
    assert lines[0] == "CIDEr                   date                 size  run"
    assert lines[1].startswith("0.600 (0.500 to 0.700)  2001-09-09 ")
    assert lines[1].endswith(f" kB  small {best.name[:6]}")
    assert " ".join(line.strip() for line in lines[2:4]) == (
        f"evaluate/{best.name}, train.lr 0.25, train.label_smoothing 0.125, train.seed 0"
    )
    assert " ".join(line.strip() for line in lines[5:7]).startswith(
        f"evaluate/{second.name}, train.lr 1.0, train.label_smoothing 0.0, train.seed 1"
    )
    assert " ".join(line.strip() for line in lines[6:-1]).endswith(
        "in all of them: train.epochs 7, train.batch_size 7, train.warmup 7, train.decay_every 7"
    )
    assert lines[-1] == "2 runs"
    assert max(map(len, lines)) <= 80


def test_a_single_run_has_all_changed_settings_below_it(artifacts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, folder = artifacts.run(0.5, "small", seed=1, lr=0.25)
    lines = a2("runs").stdout.splitlines()
    assert lines[2:] == [f"  evaluate/{folder.name}", "  train.seed 1, train.lr 0.25", "1 run"]


def test_runs_of_other_data_or_phases_differ_in_that(artifacts):
    artifacts.training("small", inputs={"features": "ab"})
    _, digest = artifacts.training("small", inputs={"features": "cd"})
    artifacts.training("small", phase="scst", inputs={"model": digest})
    rows = a2("runs").stdout
    phases = re.findall("phase (train-[a-z]*)", rows)
    assert sorted(phases) == ["train-scst", "train-xe", "train-xe"]
    assert len(set(re.findall("data of train-xe ([0-9a-f]{12})", rows))) == 2


def test_truth_has_a_column_and_missing_scores_a_reason(artifacts, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    artifacts.run(0.6, "small")
    artifacts.training("new", seed=1)
    _, digest = artifacts.training("judged", epochs=1)
    artifacts.evaluation(digest, 0.7, truth=0.25)
    lines = [line for line in a2("runs", "--sort", "cider").stdout.splitlines() if line[:1] != " "]
    assert lines[0].startswith("CIDEr                   truth  date  ")
    assert lines[1].startswith("0.700 (0.600 to 0.800)  0.250  2001-09-09 ")
    assert lines[2].startswith("0.600 (0.500 to 0.700)         2001-09-09 ")
    assert lines[3].startswith("not evaluated ")
    assert a2("runs", "--artifacts", "none").stdout == 'no runs; "a2 train" makes one\n'


def titles(*arguments):
    """Return the titles of the listed runs."""
    rows = json.loads(a2("runs", "--json", *arguments).stdout)
    return [f"{row['name']} {row['settings'].get('train.seed', 0)}" for row in rows]


def test_runs_are_selected_by_name_setting_best_and_limit(artifacts):
    for name, seed, lr, cider in (
        ("gate", 0, 0.25, 0.5),
        ("gate", 1, 0.25, 0.7),
        ("gate", 2, 0.5, 0.6),
        ("plain", 3, 0.5, 0.1),
    ):
        training, _ = artifacts.run(cider, name, seed=seed, lr=lr)
    assert titles("ga*") == titles("gate") == ["gate 2", "gate 1", "gate 0"]
    assert titles(training.name[:5], "gate", "--limit", "2") == ["plain 3", "gate 2"]
    assert titles("--where", "train.lr=0.5", "--where", "train.seed=3") == ["plain 3"]
    assert titles("--where", "train.optimiser=adam", "--sort", "cider")[0] == "gate 1"
    assert titles("--best", "lr", "--sort", "name") == ["gate 2", "gate 1"]
    assert len(titles("--best", "lr", "--best", "train.seed")) == 4
    assert a2("runs", "none").stdout == "no run fits\n"
    assert titles("none", "--where", "train.lr=1") == []


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--where=train.lr", "--where is 'train.lr'; write SETTING=VALUE, such as train.seed=0"),
        (
            "--where=train.lrr=1",
            "no listed run has the setting 'train.lrr'; did you mean 'train.lr'?",
        ),
        (
            "--best=nothing",
            "no listed run has the setting 'nothing'; "
            '"a2 runs --json" lists those that are changed',
        ),
        (
            "--best=max_length",
            "'max_length' is in several settings; name one of train.max_length, ",
        ),
    ],
)
def test_an_unusable_selection_is_an_error(artifacts, option, expected):
    artifacts.run(0.5, "small")
    assert a2("runs", option).stderr.startswith(f"a2: {expected}")


EPOCHS = (
    {"epoch": 0, "step": 0, "CIDEr": 0.25},
    {"epoch": 1, "step": 5, "loss": 2.5, "CIDEr": 0.75, "lr": 0.001},
    {"epoch": 2, "step": 10, "loss": 2.25, "CIDEr": 0.5, "lr": 0.0005, "tokens_per_second": 9},
)


def test_the_best_epoch_is_in_the_table_and_curves_print_every_epoch(artifacts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    training, scored = artifacts.run(0.5, "small")
    (training / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in EPOCHS))
    lines = a2("runs", "--curves").stdout.splitlines()
    assert lines[2:7] == [
        f"  evaluate/{scored.name}, best at epoch 1 of 2, 0.750 from 0.250",
        "    epoch  loss  CIDEr      lr",
        "       0      –   0.25       –",
        "       1*   2.5   0.75   0.001",
        "       2   2.25    0.5  0.0005",
    ]
    [row] = json.loads(a2("runs", "--json").stdout)
    assert row["epochs"] == list(EPOCHS)
    (training / "metrics.jsonl").write_text("{")
    assert "epoch" not in a2("runs", "--curves").stdout


def test_json_and_csv_have_all_metrics_and_settings(artifacts):
    training, evaluation = artifacts.run(0.5, "small", seed=1)
    [row] = json.loads(a2("runs", "--json").stdout)
    assert row["metrics"] == {"CIDEr": 0.5}
    assert row["settings"] == {"train.seed": 1}
    assert [row[name] for name in ("name", "key", "state")] == ["small", evaluation.name, "done"]
    artifacts.training("small", partial=True, seed=2)
    first, second = csv.DictReader(a2("runs", "--csv", "--sort", "name").stdout.splitlines())
    assert (second["CIDEr"], second["train.seed"], first["state"]) == ("0.5", "1", "unfinished")
    assert [second["training"], second["evaluation"]] == [
        str(path.relative_to(artifacts.folder.parent)) for path in (training, evaluation)
    ]


def test_curves_are_linked_under_titles(artifacts, tmp_path):
    training, scored = artifacts.run(0.5, "a/b")
    (training / "tensorboard").mkdir()
    assert a2("runs", "--tensorboard", "curves").exit_code == 0
    assert os.path.realpath(f"curves/a-b {scored.name[:6]}") == str(training / "tensorboard")
    assert a2("runs", "--tensorboard", "curves").stderr == (
        "a2: 'curves' exists; name a new folder\n"
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"epochs": 2}', "\x00"])
def test_a_damaged_summary_of_a_training_hides_no_run(artifacts, text):
    training, _ = artifacts.run(0.5, "small")
    summary = TrainingSummary(2, 2, 10, None, 1, "CIDEr", 0.75, 1e-3, 5e-4, 5, {"images": 10})
    summary.write(training)
    [run] = read_runs(artifacts.folder)
    assert run.fields["trained on"] == "10 images"
    content = json.loads((training / "training.json").read_text())
    for damaged in (
        text,
        json.dumps({**content, "score": "x"}),
        json.dumps({**content, "data": 1}),
    ):
        (training / "training.json").write_text(damaged)
        [run] = read_runs(artifacts.folder)
        assert "trained on" not in run.fields


def test_damaged_results_are_listed_without_their_scores(artifacts, caplog):
    training, evaluation = artifacts.run(0.5, "small")
    metrics = evaluation / "metrics.json"
    metrics.write_text(metrics.read_text().replace("0.5", "9.5"))
    (evaluation / "config.yaml").write_bytes(b"a: [\nruntime:\n[\xff")
    [run] = read_runs(artifacts.folder)
    assert (run.name, run.state, run.scores) == ("small", "damaged", {})
    assert caplog.messages == [
        f"{str(metrics)!r} differs from its sha256 in the manifest; "
        f'run "a2 verify --data {evaluation}", which names the command that restores it'
    ]
    (evaluation / "manifest.json").write_text("{")
    states = {run.folder: run.state for run in read_runs(artifacts.folder)}
    assert states == {training: "done", evaluation: "unreadable"}
    assert f"manifest is unreadable: {str(evaluation / 'manifest.json')!r}" in caplog.messages[-1]
    assert find_result(artifacts.folder / "latest", "training") == training
    assert "unreadable" in a2("runs").stdout


def test_results_of_another_version_are_listed(artifacts):
    training, _ = artifacts.training("new", model={"kind": "of_tomorrow"}, lr=0.5)
    [run] = read_runs(artifacts.folder)
    assert run.training == training
    assert run.settings == {"model.kind": "of_tomorrow", "train.lr": 0.5}


def test_a_folder_of_a_bundled_name_counts_only_if_it_is_a_captioner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "photos"
    own.mkdir()
    assert find_trainings([Path("photos")]) == (BUNDLED["photos"].folder,)
    (own / "model.safetensors").touch()
    assert find_trainings([Path("photos")]) == (Path("photos"),)
