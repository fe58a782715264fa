"""a2 analyze: measurements of a run, comparison of several, and rejected inputs."""

import csv
import shutil
from dataclasses import replace
from math import nan

import pytest
import torch

from a2cap.model.alignment_config import FUSIONS, AlignmentConfig
from a2cap.pipeline.analysis.faithfulness import (
    analyse,
    fusion_rows,
    layer_rows,
    penalty_curves,
    weight_rows,
    write_analysis,
)
from a2cap.pipeline.analysis.trainings import read_run, trainings_in
from a2cap.pipeline.captioning.saved_captioner import load_model, new_captioner, save_model
from a2cap.pipeline.cli.judging.analyze import _number
from a2cap.pipeline.report.erasure import erasure_rows
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from tests.data.messages import message_of
from tests.experiments import a2, copied_captioner

CPU = RuntimeConfig(device="cpu", threads=1)


@pytest.fixture(scope="module")
def run(experiment):
    return read_run("tiny", experiment.directory("train-xe"), experiment.artifacts, split="test")


@pytest.fixture(scope="module")
def analysed(run):
    return analyse(run, split="val", images=None, runtime=CPU, erased=1)


@pytest.fixture(scope="module")
def plain(run, tmp_path_factory):
    """Analyse an untrained captioner without alignment under the manifest of the run."""
    model = copied_captioner(run.model, tmp_path_factory.mktemp("plain") / "model")
    saved = load_model(model, device=torch.device("cpu"))
    config = saved.description.model.model_copy(
        update={"alignment": AlignmentConfig(fusion="none")}
    )
    description = saved.description.model_copy(update={"model": config})
    tensors = new_captioner(description).state_dict()
    save_model(model, tensors=tensors, description=description, vocabulary=saved.vocabulary)
    return analyse(replace(run, name="plain", model=model), split="val", images=3, runtime=CPU)


def with_alignment(analysed, name, score=0.5, **fields):
    changed = analysed.alignment.model_copy(update=fields)
    return replace(
        analysed, run=replace(analysed.run, name=name, validation=score), alignment=changed
    )


def test_every_token_of_the_split_is_measured(analysed):
    [layer] = analysed.layers
    assert analysed.images == analysed.total == 4
    assert layer.words > 2 * analysed.images
    assert -1 <= layer.attention <= 1
    assert -1 <= layer.evidence <= 1
    assert 0 < layer.divergence < 0.7
    assert 0 < layer.keep < 1
    [row] = layer_rows(analysed)
    assert (row["run"], row["layer"], row["note"]) == ("tiny", 1, "")


def test_erasure_has_a_row_for_each_order_of_the_regions(analysed, plain):
    rows = erasure_rows(analysed.erasure)
    orders = ["attention", "aligned", "evidence", "gradient", "random"]
    assert [(row["images"], row["order"]) for row in rows] == [(1, order) for order in orders]
    assert len({row["words"] for row in rows}) == 1
    for row in rows:  # of one image, each resample is the same
        for name in ("comprehensiveness", "sufficiency"):
            assert row[f"{name}_low"] == pytest.approx(row[name]) == row[f"{name}_high"]
    assert erasure_rows(plain.erasure) == []


def test_a_run_without_masks_has_empty_columns_and_the_reason(plain):
    [row] = layer_rows(plain)
    assert row["note"] == "no masks: fusion is none"
    assert [row[name] for name in ("tau_aligned", "tau_mask", "jsd", "mean_mask")] == [None] * 4
    assert row["tau_attention"] is not None
    assert plain.images == 3


def test_a_sweep_contains_runs_that_differ_only_in_the_penalty_weight(analysed):
    runs = [
        with_alignment(analysed, "strong", 0.3, penalty_weight=0.3),
        with_alignment(analysed, "weak", 0.4, penalty_weight=0.01),
        with_alignment(analysed, "other", 0.5, penalty_weight=0.1, average="heads"),
    ]
    rows = weight_rows(runs)
    assert [(row["run"], row["penalty_weight"]) for row in rows] == [
        ("weak", 0.01),
        ("strong", 0.3),
    ]
    assert weight_rows(runs[1:]) == []


def test_the_penalty_s_figure_has_means_over_seeds_of_cider_and_masks():
    scores = [(0.3, 0.5, 0.7), (0.01, 1.0, 0.2), (0.01, 2.0, 0.4)]
    rows = [
        {"group": 1, "fusion": "gate", "penalty_weight": w, "validation_CIDEr": s, "mean_mask": m}
        for w, s, m in scores
    ]
    other = {**rows[0], "group": 2, "fusion": "max", "validation_CIDEr": None}
    panels = penalty_curves([*rows, other])
    assert {title: [c.name for c in curves] for title, curves in panels.items()} == {
        "gate (1)": ["validation CIDEr", "mean mask"],
        "max (2)": ["mean mask"],
    }
    score, mask = panels["gate (1)"]
    assert [c.is_share for c in (score, mask)] == [False, True]
    assert score.points == [(0.01, 1.5), (0.3, 0.5)]
    assert mask.points == [(0.01, pytest.approx(0.3)), (0.3, 0.7)]
    # the quantile of one degree of freedom, 12.706, times the error 0.5
    assert score.half_widths == [pytest.approx(6.353, abs=1e-3), pytest.approx(nan, nan_ok=True)]


def test_fusions_are_in_the_papers_order_after_the_plain_baseline(analysed, plain):
    runs = [
        analysed,
        with_alignment(analysed, "decay", fusion="decay", decay_steps=50.0),
        with_alignment(analysed, "other", fusion="max", penalty_weight=1.0),
        plain,
    ]
    rows = [(row["group"], row["fusion"]) for row in fusion_rows(runs)]
    assert rows == [(1, "none"), (1, "decay"), (1, "gate"), (2, "none"), (2, "max")]
    assert fusion_rows([analysed]) == []


def test_every_fusion_has_a_place_in_the_table(analysed, plain):
    aligned = [name for name in FUSIONS if name != "none"]
    runs = [with_alignment(analysed, name, fusion=name) for name in reversed(aligned)]
    assert [row["fusion"] for row in fusion_rows([*runs, plain])] == ["none", *aligned]


@pytest.mark.slow
def test_tables_and_figures_are_written_if_there_are_enough_runs(analysed, plain, tmp_path):
    names = [path.name for path in write_analysis(tmp_path / "one", [plain])]
    assert names == ["layers.csv", "runs.csv", "faithfulness.png"]
    weak = with_alignment(analysed, "weak", penalty_weight=0.0)
    written = write_analysis(tmp_path / "all", [analysed, weak, plain])
    assert {path.name for path in written} == {
        "layers.csv",
        "erasure.csv",
        "erasure_curves.csv",
        "erasure.png",
        "runs.csv",
        "penalty_weights.csv",
        "fusions.csv",
        "faithfulness.png",
        "divergence.png",
        "penalty_weights.png",
    }
    with (tmp_path / "all" / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["tiny", "weak", "plain"]
    assert float(rows[0]["tau_mask"]) == pytest.approx(analysed.layers[0].evidence, rel=1e-5)
    assert rows[2]["tau_mask"] == ""
    for path in written:
        assert path.suffix == ".csv" or path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_command_analyses_an_experiment_and_a_folder_of_trainings(experiment, tmp_path):
    options = ("--artifacts", experiment.artifacts, "--set", "runtime.device=cpu", "--images", "2")
    answer = a2(
        "analyze", "-c", experiment.config_file, *options, "--output", tmp_path / "a", code=0
    )
    assert answer.stdout.startswith("config: 2 of 4 images\nlayer  tau(attention)")
    head = "\nerasure, 2 images, nats per word [95 % over images]\norder "
    assert head in answer.stdout
    assert (tmp_path / "a" / "layers.csv").is_file()
    again = a2(
        "analyze", "-c", experiment.config_file, *options, "--output", tmp_path / "a", code=1
    )
    assert again.stderr == (
        f"a2: {str(tmp_path / 'a')!r} already contains an analysis; name another folder, or use "
        "--force\n"
    )
    folder = experiment.artifacts / "train-xe"
    answer = a2("analyze", folder, *options, "--output", tmp_path / "b", code=0)
    [training] = folder.glob("*[0-9a-f]")
    assert answer.stdout.startswith(f"{training.name}: 2 of 4 images\nlayer  tau(attention)")
    assert trainings_in(experiment.artifacts) == trainings_in(folder)


def test_a_path_without_a_training_is_rejected(tmp_path):
    remedy = 'name a result of "a2 train", a folder of them, or the YAML file of an experiment'
    for path, problem in (
        (tmp_path, "no finished training in"),
        (tmp_path / "none", "no such folder or file:"),
    ):
        answer = a2("analyze", path, "--output", tmp_path / "out", code=1)
        assert answer.stderr == f"a2: {problem} {str(path)!r}; {remedy}\n"


def test_a_training_without_its_features_is_rejected(run, tmp_path):
    moved = tmp_path / "far" / "away" / "model"
    shutil.copytree(run.model, moved)
    digest = run.manifest.made_from.inputs["features"][:12]
    answer = a2("analyze", moved, "--artifacts", tmp_path, "--output", tmp_path / "out", code=1)
    assert answer.stderr == (
        f"a2: result of extract that {str(moved)!r} was trained on not found: {digest!r}; "
        "name the folder that contains it with --artifacts\n"
    )


def test_captions_of_another_vocabulary_are_rejected(run, monkeypatch):
    monkeypatch.setattr(
        "a2cap.pipeline.analysis.trainings.CaptionFile",
        lambda path: type("Other", (), {"vocabulary_digest": "other"})(),
    )
    assert message_of(analyse, run, split="val", images=None, runtime=CPU) == (
        f"captions and captioner have different vocabularies: {str(run.captions)!r} and "
        f"{str(run.model)!r}; name the captions that it was trained on with --artifacts"
    )


def test_small_figures_are_printed_with_significant_digits():
    numbers = (None, 0.0, 2.2e-05, -0.0004, 0.00123, 0.5)
    assert list(map(_number, numbers)) == ["-", "0.0000", "2.2e-05", "-4.0e-04", "0.0012", "0.5000"]
