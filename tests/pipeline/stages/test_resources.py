"""Disk space and memory: estimated and checked before any work."""

import shutil
import tempfile

import pytest
import torch

from a2cap.data.annotations.instances import read_instances
from a2cap.data.errors import A2Error
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages import plan
from a2cap.pipeline.stages.plan import Plan, require_runnable
from a2cap.pipeline.training.checkpoints import training_disk
from tests.experiments import TRANSIENT, check_of, free, problems

# --- disk ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_features_take_images_times_regions_times_width(new, monkeypatch):
    detection = ("extract.boxes=detect", "extract.min_regions=10", "extract.max_regions=20")
    wide = ("extract.dtype=float32",)
    least = 40 * 10 * 64 * 4
    free(monkeypatch, least)
    assert problems(new(*detection, *wide), "extract") == []
    free(monkeypatch, least - 1)
    [problem] = problems(new(*detection, *wide), "extract")
    assert problem == (
        "disk too small for features: at least 102 kB needed, 102 kB free after the earlier "
        "stages; free disk space"
    )
    with new(*detection, *wide) as opened, pytest.raises(A2Error):
        require_runnable(opened, ["extract"])


def test_an_existing_result_needs_no_disk_space(experiment, monkeypatch):
    free(monkeypatch, 0)
    assert problems(experiment.open()) == []
    assert check_of(experiment.open(), "extract", "disk").text == "the result exists"
    [problem] = problems(experiment.open(), "extract", force=True)
    assert problem.startswith("disk too small for features: ")


@pytest.mark.slow
def test_the_files_of_an_unfinished_training_count_as_free_space(experiment, tmp_path, monkeypatch):
    artifacts = shutil.copytree(experiment.artifacts, tmp_path / "copied", ignore=TRANSIENT)

    def opened():
        return experiment.open("train.seed=5", artifacts=artifacts)

    with opened() as experiment_opened:
        key = experiment_opened.stage("train-xe").made_from.key
        needed = training_disk(Plan(experiment_opened).parameters)
    free(monkeypatch, 0)
    assert len(problems(opened(), "train-xe")) == 1
    checkpoints = artifacts / "train-xe" / f"{key}.partial" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "tensors").write_bytes(bytes(needed))
    assert problems(opened(), "train-xe") == []


def given_boxes(opened):
    return [instances.boxes for instances in read_instances(opened.config.data.instances).values()]


MANY = ("extract.boxes=detect", "extract.min_regions=100", "extract.proposals=100")


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "phases"), [(MANY, 1), (("scst.epochs=1",), 2)])
def test_checkpoints_of_all_phases_come_after_the_features(new, monkeypatch, overrides, phases):
    with new(*overrides) as opened:
        regions = sum(len(boxes) for boxes in given_boxes(opened)) if phases == 2 else 40 * 100
        features = regions * 64 * 2
        checkpoints = phases * training_disk(Plan(opened).parameters)
    free(monkeypatch, checkpoints // phases)
    assert problems(new(*overrides), "train-xe") == []
    free(monkeypatch, features + checkpoints)
    assert problems(new(*overrides)) == []
    free(monkeypatch, features + checkpoints - 1)
    assert problems(new(*overrides)) == [
        "disk too small for checkpoints: at least 592 kB needed, 592 kB free after the earlier "
        "stages; free disk space"
    ]


# --- memory, device, place ----------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch):
    def available(count):
        monkeypatch.setattr(plan, "available_memory", lambda: count)

    return available


@pytest.mark.slow
def test_models_that_exceed_the_memory_are_rejected(new, memory):
    memory(10**5)
    assert problems(new("scst.epochs=1")) == [
        "memory too small for the detector: about 19.4 MB needed, 100 kB free; "
        "end other programs, or lower extract.roi_size or extract.max_side",
        "memory too small for training: about 11.9 MB needed, 100 kB free; "
        "end other programs, or raise train.accumulate",
        "memory too small for self-critical training: about 7.1 MB needed, 100 kB free; "
        "end other programs, or raise scst.accumulate",
    ]
    memory(10**9)
    assert problems(new()) == []
    assert check_of(new(), "train-xe", "memory").text == (
        "training takes about 11.9 MB, 1.0 GB free"
    )


@pytest.mark.slow
def test_unknown_memory_rejects_nothing(new, memory):
    memory(None)
    assert problems(new()) == []
    assert check_of(new(), "extract", "memory").text == (
        "the detector takes about 19.4 MB; the system hides its free memory"
    )


def test_the_paper_s_captioner_needs_more_than_a_gigabyte(experiment, tmp_path, memory):
    memory(10**9)
    captions = override("data.annotations", experiment.scenes / "dataset_coco.json")
    config = load_config(None, ["extract.weights=scenes", captions])
    assert problems(Experiment(config, tmp_path), "train-xe") == [
        "memory too small for training: about 1.4 GB needed, 1.0 GB free; "
        "end other programs, or raise train.accumulate"
    ]


def test_the_vocabulary_is_that_of_preprocessing(experiment, new):
    done = Plan(experiment.open()).vocabulary_size
    assert Plan(new()).vocabulary_size == done
    assert Plan(new("preprocess.min_count=100")).vocabulary_size < done


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_reported(new):
    assert problems(new("runtime.device=cuda")) == [
        "runtime.device is 'cuda' but torch finds no GPU; use auto or cpu"
    ]


@pytest.mark.slow
def test_the_folder_of_a_result_must_be_writable(new, monkeypatch):
    create = tempfile.TemporaryFile

    def refuse(dir=None):
        if dir is None:  # of the JVM that is started on trial
            return create()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(plan.tempfile, "TemporaryFile", refuse)
    opened = new()
    assert problems(opened) == [
        f"cannot write in {str(opened.artifacts)!r} (Permission denied); "
        "fix its permissions, or name another folder"
    ]


@pytest.mark.slow
def test_the_folder_of_a_named_output_is_checked(new, tmp_path):
    check = check_of(new(), "extract", "folder", output=tmp_path / "some" / "store")
    assert check.text == str(tmp_path)
