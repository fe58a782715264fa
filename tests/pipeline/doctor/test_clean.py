"""Cleaning: which artifacts are removable, and that nothing else is deleted."""

import json
import shutil

import pytest

from a2cap.data.errors import InputError, LockedError
from a2cap.pipeline.config import load_config, override
from a2cap.pipeline.doctor.clean import find_removable, remove_item, select_items, size_of
from a2cap.pipeline.doctor.verify import verify
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.manifest import read_manifest
from a2cap.pipeline.experiment import Experiment
from tests.pipeline.experiments import CopiedExperiment


class Copy(CopiedExperiment):
    """A copy of the experiment's results that a test may clean."""

    def found(self, *overrides, keep=()):
        """Map the removable paths below the artifacts folder to their kind and reason."""
        return {
            item.path.relative_to(self.artifacts).as_posix(): (item.kind, item.why)
            for item in self.items(*overrides, keep=keep)
        }

    def items(self, *overrides, keep=()):
        config = load_config(self.experiment.config_file, overrides)
        with Experiment(config, self.artifacts) as opened:
            return find_removable(opened, keep=keep)

    def left(self):
        """List every folder and lock of the stages."""
        return {path.relative_to(self.artifacts).as_posix() for path in self.artifacts.glob("*/*")}


@pytest.fixture
def copy(experiment, tmp_path):
    return Copy(experiment, tmp_path)


@pytest.fixture
def plain_weights(experiment):
    """Name the calibrated weights by their file, so that the keys of all stages are known."""
    weights = experiment.directory("calibrate") / "weights.safetensors"
    return override("extract.weights", weights)


# --- removable --------------------------------------------------------------------------------


def test_no_result_of_the_current_experiment_is_removable(copy):
    assert copy.found() == {}


def test_a_result_of_other_settings_is_stale_with_the_difference(copy):
    name = f"evaluate/{copy.directory('evaluate').name}"
    assert copy.found("evaluate.beam_size=3", "evaluate.split=val") == {
        name: ("stale", "evaluate.beam_size 2 -> 3; evaluate.split 'test' -> 'val'")
    }


def test_the_size_of_an_item_is_that_of_all_its_files(copy):
    [item] = copy.items("evaluate.beam_size=3")
    files = [path for path in copy.directory("evaluate").iterdir() if path.is_file()]
    assert item.size == sum(path.stat().st_size for path in files) == size_of(item.path) > 0


def test_a_result_that_depends_on_an_unfinished_stage_is_undecided(copy):
    trained, evaluated = (f"{s}/{copy.directory(s).name}" for s in ("train-xe", "evaluate"))
    waits = (
        "unknown if it is used: evaluate needs train-xe, which is not finished; "
        'run "a2 train" or "a2 run"'
    )
    assert copy.found("train.seed=1") == {
        trained: ("stale", "train.seed 0 -> 1"),
        evaluated: ("undecided", waits),
    }


def test_without_a_configuration_results_are_undecided(copy):
    with Experiment(load_config(None), copy.artifacts) as opened:
        kinds = {item.path.parent.name: item.kind for item in find_removable(opened)}
    assert kinds == {
        "calibrate": "stale",
        "extract": "undecided",
        "preprocess": "undecided",
        "train-xe": "undecided",
        "evaluate": "undecided",
    }


def test_a_trained_detector_is_undecided_without_its_configuration(experiment, copy):
    trained = copy.artifacts / "train-detector" / "0123456789ab"
    trained.mkdir(parents=True)
    (trained / "detector.safetensors").write_bytes(b"weights")
    unknown = (
        "unknown if it is used: detector.labels is not set; "
        "name the file with --set detector.labels=FILE"
    )
    assert copy.found() == {"train-detector/0123456789ab": ("undecided", unknown)}
    places = (
        override("detector.images", experiment.scenes / "images"),
        override("detector.labels", copy.experiment.config_file),
    )
    stale = {"train-detector/0123456789ab": ("stale", "its manifest is unreadable")}
    assert copy.found(*places) == stale
    start = override("detector.start", trained / "detector.safetensors")
    assert copy.found(*places, start) == {}


def test_calibrated_weights_are_stale_if_the_experiment_names_others(copy, plain_weights):
    assert copy.found(plain_weights) == {
        f"calibrate/{copy.directory('calibrate').name}": (
            "stale",
            "this experiment has no such stage",
        )
    }


def test_a_result_with_an_unreadable_manifest_is_stale_under_other_settings(copy):
    evaluated = copy.directory("evaluate")
    (evaluated / "manifest.json").write_text("{")
    assert copy.found() == {}
    assert copy.found("evaluate.beam_size=3") == {
        f"evaluate/{evaluated.name}": ("stale", "its manifest is unreadable")
    }


def unfinished(copy, stage):
    """Make a result unfinished, as a stopped run leaves it."""
    final = copy.directory(stage)
    partial = final.rename(f"{final}.partial")
    pre_image = read_manifest(partial).pre_image
    (partial / "manifest.json").unlink()
    (partial / "key.json").write_text(json.dumps(pre_image.as_dict()))
    return partial


def test_unfinished_work_is_removable_and_resumable_work_is_a_kind_of_its_own(copy):
    partial = unfinished(copy, "evaluate")
    name = f"evaluate/{partial.name}"
    assert copy.found() == {name: ("resumable", "the next run resumes it")}
    assert copy.found("evaluate.beam_size=3") == {name: ("unfinished", "evaluate.beam_size 2 -> 3")}
    (partial / "key.json").write_text("{")
    assert copy.found("evaluate.beam_size=3") == {name: ("unfinished", "has other settings")}


def test_unfinished_work_of_a_waiting_stage_is_undecided(copy):
    partial = unfinished(copy, "evaluate")
    kind, why = copy.found("train.seed=1")[f"evaluate/{partial.name}"]
    assert kind == "undecided"
    assert why.startswith("unknown if it is used: evaluate needs train-xe")


def test_a_replaced_result_is_removable_once_its_replacement_exists(copy):
    final = copy.directory("evaluate")
    shutil.copytree(final, f"{final}.replaced")
    assert copy.found() == {f"evaluate/{final.name}.replaced": ("leftover", "replaced by --force")}
    final.rename(f"{final}.partial")
    assert copy.found() == {
        f"evaluate/{final.name}.partial": ("resumable", "the next run resumes it"),
        f"evaluate/{final.name}.replaced": (
            "undecided",
            "its replacement is not finished; run the stage again first",
        ),
    }


def test_an_interrupted_deletion_is_removable(copy):
    final = copy.directory("evaluate")
    shutil.copytree(final, f"{final}.removed")
    assert copy.found() == {
        f"evaluate/{final.name}.removed": ("leftover", "left by an interrupted deletion")
    }


def test_locks_without_a_result_are_removable(copy):
    folder = copy.artifacts / "extract"
    for name in ("0123456789ab.lock", "0123456789ab.shard-00000-of-00002.lock", "shards.lock"):
        (folder / name).touch()
    final = copy.directory("extract")
    final.with_name(f"{final.name}.lock").touch()
    assert copy.found() == {"extract/0123456789ab.lock": ("lock", "no result has this key")}


# --- not removable -------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["{}.lock", "{}.shard-00001-of-00004.lock"])
def test_work_of_a_running_process_is_not_removable(copy, lock):
    partial = unfinished(copy, "evaluate")
    held = partial.with_name(lock.format(partial.stem))
    with stage_lock(held, what="a test"):
        assert copy.found("evaluate.beam_size=3") == {}


def test_inputs_of_a_running_stage_of_any_experiment_are_not_removable(copy):
    other = ("extract.dtype=float32", "preprocess.min_count=2")
    partial = unfinished(copy, "train-xe")
    assert {"extract", "preprocess"} <= {name.split("/")[0] for name in copy.found(*other)}
    with stage_lock(partial.with_suffix(".lock"), what="a test"):
        found = copy.found(*other)
        assert {name.split("/")[0] for name in found} == {"evaluate"}


def test_weights_that_a_running_extraction_reads_are_not_removable(copy, plain_weights):
    partial = unfinished(copy, "extract")
    with stage_lock(partial.with_suffix(".lock"), what="a test"):
        assert "calibrate" not in {name.split("/")[0] for name in copy.found(plain_weights)}


def test_an_input_inside_a_result_is_not_removable(copy):
    evaluated, calibrated = copy.directory("evaluate"), copy.directory("calibrate")
    inputs = (
        override("evaluate.baseline", evaluated / "metrics.json"),
        override("extract.weights", calibrated / "weights.safetensors"),
    )
    assert copy.found(*inputs) == {}


def test_a_result_whose_configuration_is_in_use_is_not_removable(copy):
    evaluated = copy.directory("evaluate")
    assert copy.found("evaluate.beam_size=3", keep=[evaluated / "config.yaml"]) == {}


def test_other_files_are_ignored(copy):
    for name in ("evaluate/notes", "evaluate/0123456789AB", "evaluate/0123456789ab.old", "mine/x"):
        (copy.artifacts / name).mkdir(parents=True)
    (copy.artifacts / "0123456789ab").mkdir()
    assert copy.found() == {}


def test_links_out_of_the_artifacts_folder_are_not_followed(copy, tmp_path):
    final = copy.directory("evaluate")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(final, elsewhere / "evaluate" / final.name)
    (final.parent / "0123456789ab").symlink_to(elsewhere / "evaluate" / final.name)
    shutil.rmtree(copy.artifacts / "preprocess")
    (copy.artifacts / "preprocess").symlink_to(elsewhere / "evaluate")
    names = copy.found("evaluate.beam_size=3", "train.seed=1").keys()
    assert names == {f"evaluate/{final.name}", f"train-xe/{copy.directory('train-xe').name}"}


# --- deletion -----------------------------------------------------------------------------------


def test_a_removed_result_is_gone_with_its_locks_and_the_rest_is_intact(copy):
    final = copy.directory("evaluate")
    for lock in ("lock", "holder.json", "shards.lock"):
        final.with_name(f"{final.name}.{lock}").touch()
    before = copy.left()
    [item] = copy.items("evaluate.beam_size=3")
    remove_item(item)
    assert before - copy.left() == {
        f"evaluate/{final.name}{ending}" for ending in ("", ".lock", ".holder.json", ".shards.lock")
    }
    assert not any(verified.damages for verified in verify(copy.artifacts, data=True))


def test_the_lock_of_a_kept_result_is_kept(copy):
    final = copy.directory("evaluate")
    shutil.copytree(final, f"{final}.replaced")
    [item] = copy.items()
    remove_item(item)
    assert copy.left() >= {f"evaluate/{final.name}", f"evaluate/{final.name}.lock"}
    assert not final.with_name(f"{final.name}.replaced").exists()


def test_old_locks_are_removed_together(copy):
    for name in ("0123456789ab.lock", "0123456789ab.shards.lock"):
        (copy.artifacts / "extract" / name).touch()
    [item] = copy.items()
    remove_item(item)
    assert not list((copy.artifacts / "extract").glob("0123456789ab*"))


def test_a_stopped_deletion_leaves_no_half_deleted_result(copy, monkeypatch):
    final = copy.directory("evaluate")
    [item] = copy.items("evaluate.beam_size=3")

    def stop(path, **options):
        if path.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        remove_item(item)
    monkeypatch.undo()
    assert not final.exists()
    [item] = copy.items("evaluate.beam_size=3")
    assert (item.path.name, item.kind) == (f"{final.name}.removed", "leftover")
    remove_item(item)
    assert not list(final.parent.glob(f"{final.name}*"))


@pytest.mark.parametrize("lock", ["{}.lock", "{}.shard-00001-of-00004.lock"])
def test_work_resumed_since_the_listing_is_not_removed(copy, lock):
    partial = unfinished(copy, "evaluate")
    [item] = copy.items("evaluate.beam_size=3")
    held = stage_lock(partial.with_name(lock.format(partial.stem)), what="a test")
    with held, pytest.raises(LockedError) as raised:
        remove_item(item)
    assert str(raised.value).endswith("; wait for it, or stop it")
    assert partial.is_dir()


# --- names --------------------------------------------------------------------------------------


def test_an_item_is_selected_by_its_path_or_its_path_below_the_artifacts(copy):
    items = copy.items("evaluate.beam_size=3")
    name = f"evaluate/{copy.directory('evaluate').name}"
    for names in ([name], [str(copy.artifacts / name)], [name, name]):
        assert select_items(items, names, copy.artifacts) == items


def test_a_path_that_is_not_removable_is_rejected_and_nothing_is_deleted(copy):
    trained = copy.directory("train-xe")
    for name in (str(trained), "/", str(copy.artifacts), "none", f"{trained}/config.yaml"):
        with pytest.raises(InputError) as raised:
            select_items(copy.items("evaluate.beam_size=3"), [name], copy.artifacts)
        assert str(raised.value) == (
            f'{name!r} is not removable; name a path that "a2 clean" lists'
        )


def test_a_path_in_use_is_rejected_with_its_holder(copy):
    partial = unfinished(copy, "evaluate")
    held = stage_lock(partial.with_suffix(".lock"), what="a test")
    with held, pytest.raises(LockedError) as raised:
        select_items(copy.items("evaluate.beam_size=3"), [str(partial)], copy.artifacts)
    assert str(raised.value).startswith(f"{str(partial)!r} is in use: process ")
    assert str(raised.value).endswith("; wait for it, or stop it")


# --- the command --------------------------------------------------------------------------------


def test_the_command_lists_with_sizes_and_deletes_nothing(copy):
    before = copy.left()
    final = copy.directory("evaluate")
    answer = copy.a2("clean", "--set", "evaluate.beam_size=3")
    assert answer.exit_code == 0
    size = f"{size_of(final) / 1000:.3g} kB"
    assert answer.stdout.splitlines() == [
        f"stale       {size:>9}  {final}",
        "                       evaluate.beam_size 2 -> 3",
        f"1 removable, {size}; name paths to delete, or use --yes",
    ]
    assert copy.left() == before


def test_the_command_reports_if_nothing_is_removable(copy):
    for yes, printed in ([], "nothing is removable\n"), (["--yes"], ""):
        answer = copy.a2("clean", *yes)
        assert (answer.exit_code, answer.stdout) == (0, printed)


def test_the_command_deletes_only_the_named_item(copy):
    folder = copy.artifacts / "extract"
    (folder / "0123456789ab.lock").touch()
    final = copy.directory("evaluate")
    size = f"{size_of(final) / 1000:.3g} kB"
    answer = copy.a2("clean", "--set", "evaluate.beam_size=3", final)
    assert answer.exit_code == 0
    assert answer.stdout == f"deleted {final}: {size}\n"
    assert not final.exists()
    assert (folder / "0123456789ab.lock").exists()


def test_with_yes_the_command_keeps_everything_that_a_run_may_need(copy):
    trained, evaluated = copy.directory("train-xe"), copy.directory("evaluate")
    partial = unfinished(copy, "preprocess")
    answer = copy.a2("clean", "--set", "train.seed=1", "--yes")
    assert answer.exit_code == 0
    assert answer.stdout == ""
    answer = copy.a2("clean", "--set", "extract.dtype=float32", "--yes")
    assert answer.exit_code == 0
    assert answer.stdout.startswith(f"deleted {copy.artifacts / 'extract'}/")
    assert all(path.is_dir() for path in (trained, evaluated, partial))


def test_the_command_rejects_names_with_exit_codes(copy):
    partial = unfinished(copy, "evaluate")
    answer = copy.a2("clean", "nothing")
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: 'nothing' is not removable; name a path that \"a2 clean\" lists\n"
    )
    with stage_lock(partial.with_suffix(".lock"), what="a test"):
        assert copy.a2("clean", partial).exit_code == 75
    assert copy.a2("clean", partial).exit_code == 0
    assert not partial.exists()
