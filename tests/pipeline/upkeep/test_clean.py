"""Cleaning: which artifacts are removable, and that nothing else is deleted."""

import re
import shutil

import pytest

from a2cap.data.errors import InputError, LockedError
from a2cap.data.files.paths import size_of
from a2cap.data.files.sealed_folder import read_manifest, write_manifest
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.engine.lock import is_read, read_lock, stage_lock
from a2cap.pipeline.engine.prepared_stage import StagePaths
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.input_files import captioner_digest
from a2cap.pipeline.upkeep.clean import find_removable, remove_item, select_items
from a2cap.pipeline.upkeep.verify import verify
from tests.data.messages import message_of
from tests.experiments import CopiedExperiment, a2


class Copy(CopiedExperiment):
    """A copy of the experiment's results that a test may clean."""

    def kinds(self, *overrides, keep=()):
        """Map the removable paths below the artifacts folder to their kind and reason."""
        items = self.items(*overrides, keep=keep)
        return {self.name(item.path): (item.kind, item.why) for item in items}

    def name(self, path):
        """Return the path of a stage's only result, or of a folder, below the artifacts."""
        path = self.directory(path) if isinstance(path, str) else path
        return path.relative_to(self.artifacts).as_posix()

    def items(self, *overrides, keep=()):
        config = load_config(self.experiment.config_file, overrides)
        with Experiment(config, self.artifacts) as opened:
            return find_removable(opened, keep=keep)

    def left(self):
        """List every folder and lock of the stages."""
        return {self.name(path) for path in self.artifacts.glob("[!.]*/*")}


@pytest.fixture
def copy(experiment, tmp_path):
    return Copy(experiment, tmp_path)


# --- removable --------------------------------------------------------------------------------


def test_results_of_other_settings_are_listed_with_the_difference_and_their_readers(copy):
    why = "evaluate.beam_size 2 -> 3; evaluate.split 'test' -> 'val'"
    changes = ("evaluate.beam_size=3", "evaluate.split=val")
    assert copy.kinds(*changes) == {copy.name("evaluate"): ("result", why)}
    read = f"extract.dtype 'float16' -> 'float32'; read by {copy.name('evaluate')}"
    assert copy.kinds("extract.dtype=float32")[copy.name("extract")] == ("result", read)


def test_a_result_that_depends_on_an_unfinished_stage_may_be_used(copy):
    waits = (
        "unknown if it is used: evaluate needs train-xe, which is not finished; "
        'run "a2 train --phase xe" or "a2 run"'
    )
    assert copy.kinds("train.seed=1") == {
        copy.name("train-xe"): ("result", f"train.seed 0 -> 1; read by {copy.name('evaluate')}"),
        copy.name("evaluate"): ("result", waits),
    }


@pytest.mark.slow
def test_a_trained_detector_may_be_used_without_its_configuration(experiment, copy):
    trained = copy.artifacts / "train-detector" / "0123456789ab"
    trained.mkdir(parents=True)
    (trained / "detector.safetensors").write_bytes(b"weights")
    unknown = (
        "unknown if it is used: detector.labels is not set; "
        "name the file with --set detector.labels=FILE"
    )
    assert copy.kinds() == {"train-detector/0123456789ab": ("result", unknown)}
    places = (
        override("detector.images", experiment.scenes / "images"),
        override("detector.labels", copy.experiment.config_file),
    )
    unreadable = {"train-detector/0123456789ab": ("result", "its settings are unreadable")}
    assert copy.kinds(*places) == unreadable
    start = override("detector.start", trained / "detector.safetensors")
    assert copy.kinds(*places, start) == {}


@pytest.mark.slow
def test_unfinished_work_is_listed_with_what_would_resume_it(copy):
    partial = copy.unfinish("evaluate")
    name = copy.name(partial)
    assert copy.kinds() == {name: ("unfinished", "the next run resumes it")}
    assert copy.kinds("evaluate.beam_size=3") == {name: ("unfinished", "evaluate.beam_size 2 -> 3")}
    (partial / "made_from.json").write_text("{")
    unreadable = ("unfinished", "its settings are unreadable")
    assert copy.kinds("evaluate.beam_size=3") == {name: unreadable}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "why"),
    [("replaced", "replaced by --force"), ("removed", "left by an interrupted deletion")],
)
def test_leftovers_beside_a_result_are_removable(copy, ending, why):
    name = copy.name("evaluate")
    shutil.copytree(copy.artifacts / name, copy.artifacts / f"{name}.{ending}")
    assert copy.kinds() == {f"{name}.{ending}": ("leftover", why)}


def test_a_replaced_result_stays_until_its_replacement_exists(copy):
    name = copy.name("evaluate")
    shutil.copytree(copy.artifacts / name, copy.artifacts / f"{name}.replaced")
    (copy.artifacts / name).rename(copy.artifacts / f"{name}.partial")
    why = "its replacement is not finished; run the stage again first"
    assert copy.kinds() == {
        f"{name}.partial": ("unfinished", "the next run resumes it"),
        f"{name}.replaced": ("unfinished", why),
    }


# --- results and unfinished work are deleted only if named ---------------------------------------


def test_with_yes_only_leftovers_are_deleted(copy):
    partial = copy.unfinish("train-xe")
    trained = shutil.copytree(partial, partial.with_name("0123456789ab"))
    left_over = shutil.copytree(trained, trained.with_name("0123456789ab.removed"))
    kept = copy.left() - {copy.name(left_over)}
    for settings in ([], ["--set", "train.seed=1"], ["--set", "extract.dtype=float32"]):
        copy.a2("clean", "--yes", *settings, code=0)
        assert copy.left() == kept
    copy.a2("clean", "--set", "train.seed=1", partial, trained, code=0)
    assert not partial.exists() and not trained.exists()


# --- not removable -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("configured", [True, False])
def test_captioners_of_an_ensemble_are_not_removable(copy, configured):
    further = copy.directory("train-xe")
    other = ("train.seed=1", override("evaluate.ensemble", (further,)) if configured else "")
    if not configured:  # an evaluation of other settings has it
        outputs = read_manifest(further).outputs
        digests = {name: output.sha256 for name, output in outputs.items()}
        add_input(copy.directory("evaluate"), "model.2", captioner_digest(digests))
    removable = copy.kinds(*filter(None, other))
    assert "train-xe" not in {name.split("/")[0] for name in removable}


def add_input(result, name, digest, **changes):
    manifest = read_manifest(result)
    made = manifest.origin.model_copy(update={"inputs": {**manifest.origin.inputs, name: digest}})
    write_manifest(result, manifest.model_copy(update={"made_from": made, **changes}))


def test_the_baseline_of_another_evaluation_is_not_removable(copy):
    baseline = copy.directory("evaluate")
    other = shutil.copytree(baseline, baseline.with_name("0123456789ab"))
    add_input(other, "baseline", read_manifest(baseline).outputs["metrics.json"].sha256, outputs={})
    assert set(copy.kinds("evaluate.beam_size=3")) == {copy.name(other)}


@pytest.mark.parametrize("inner", [".", "features.lmdb"])
def test_a_result_that_a_command_reads_is_not_removable(copy, inner):
    extracted = copy.directory("extract")
    name = copy.name(extracted)
    assert name in copy.kinds("extract.dtype=float32")
    with read_lock(extracted / inner, copy.artifacts / "none"):
        assert name not in copy.kinds("extract.dtype=float32")
        answer = copy.a2("clean", "--set", "extract.dtype=float32", name)
    assert answer.exit_code == 1
    assert answer.stderr == f'a2: {name!r} is not removable; name a path that "a2 clean" lists\n'
    assert name in copy.kinds("extract.dtype=float32")


def test_a_result_that_a_command_reads_since_the_listing_is_not_removed_or_replaced(copy):
    extracted = copy.directory("extract")
    item = copy.items("extract.dtype=float32")[0]
    assert item.path == extracted
    message = f"{str(extracted)!r} is read by another process; wait for it, or stop it"
    with read_lock(extracted):
        assert message_of(remove_item, item, error=LockedError) == message
        answer = copy.a2("extract", "--force")
    assert (answer.exit_code, answer.stderr) == (75, f"a2: {message}\n")
    assert extracted.is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["{}.lock", "{}.shard-00001-of-00004.lock"])
def test_work_of_a_running_process_is_not_removable(copy, lock):
    partial = copy.unfinish("evaluate")
    held = StagePaths(partial, shared=True).lock.parent / lock.format(partial.stem)
    with stage_lock(held, what="a test"):
        assert copy.kinds("evaluate.beam_size=3") == {}


@pytest.mark.slow
def test_inputs_of_a_running_stage_of_any_experiment_are_not_removable(copy):
    other = ("extract.dtype=float32", "preprocess.min_count=2")
    partial = copy.unfinish("train-xe")
    assert {"extract", "preprocess"} <= {name.split("/")[0] for name in copy.kinds(*other)}
    with stage_lock(StagePaths(partial.with_suffix(""), shared=True).lock, what="a test"):
        removable = copy.kinds(*other)
        assert {name.split("/")[0] for name in removable} == {"evaluate"}


def test_a_captioner_is_read_while_it_captions(copy, monkeypatch):
    def caption(images, *, models, **how):
        assert is_read(models[0])
        yield from ()

    monkeypatch.setattr("a2cap.pipeline.cli.images.caption.caption_files", caption)
    model = copy.directory("train-xe")
    a2("caption", "x.jpg", "--model", model, code=0)
    assert not is_read(model)


def test_an_input_inside_a_result_is_not_removable(copy):
    # with the results of another experiment, in which it is the only use
    baseline = override("evaluate.baseline", copy.directory("evaluate") / "metrics.json")
    assert copy.kinds(baseline) == {}


def test_a_result_whose_configuration_is_in_use_is_not_removable(copy):
    evaluated = copy.directory("evaluate")
    assert copy.kinds("evaluate.beam_size=3", keep=[evaluated / "config.yaml"]) == {}


def test_other_files_are_ignored(copy):
    for name in ("evaluate/notes", "evaluate/0123456789AB", "evaluate/0123456789ab.old", "mine/x"):
        (copy.artifacts / name).mkdir(parents=True)
    (copy.artifacts / "0123456789ab").mkdir()
    assert copy.kinds() == {}


def test_links_out_of_the_artifacts_folder_are_not_followed(copy, tmp_path):
    final = copy.directory("evaluate")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(final, elsewhere / "evaluate" / final.name)
    (final.parent / "0123456789ab").symlink_to(elsewhere / "evaluate" / final.name)
    shutil.rmtree(copy.artifacts / "preprocess")
    (copy.artifacts / "preprocess").symlink_to(elsewhere / "evaluate")
    names = copy.kinds("evaluate.beam_size=3", "train.seed=1").keys()
    assert names == {copy.name(final), copy.name("train-xe")}


# --- deletion -----------------------------------------------------------------------------------


def test_the_lock_of_a_kept_result_is_kept(copy):
    final = copy.directory("evaluate")
    shutil.copytree(final, f"{final}.replaced")
    [item] = copy.items()
    remove_item(item)
    assert copy.left() >= {f"evaluate/{final.name}"}
    assert (copy.artifacts / ".locks" / "evaluate" / f"{final.name}.lock").exists()
    assert not final.with_name(f"{final.name}.replaced").exists()


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["{}.lock", "{}.shard-00001-of-00004.lock"])
def test_work_resumed_since_the_listing_is_not_removed(copy, lock):
    partial = copy.unfinish("evaluate")
    [item] = copy.items("evaluate.beam_size=3")
    held = stage_lock(
        StagePaths(partial, shared=True).lock.parent / lock.format(partial.stem), what="a test"
    )
    with held, pytest.raises(LockedError) as raised:
        remove_item(item)
    assert str(raised.value).endswith("; wait for it, or stop it")
    assert partial.is_dir()


# --- names --------------------------------------------------------------------------------------


def test_an_item_is_selected_by_its_path_or_its_path_below_the_artifacts(copy):
    items = copy.items("evaluate.beam_size=3")
    name = copy.name("evaluate")
    for names in ([name], [str(copy.artifacts / name)], [name, name]):
        assert select_items(items, names, copy.artifacts) == items


@pytest.mark.slow
def test_a_path_that_is_not_removable_is_rejected_and_nothing_is_deleted(copy):
    trained = copy.directory("train-xe")
    for name in (str(trained), "/", str(copy.artifacts), "none", f"{trained}/config.yaml"):
        with pytest.raises(InputError) as raised:
            select_items(copy.items("evaluate.beam_size=3"), [name], copy.artifacts)
        assert str(raised.value) == (
            f'{name!r} is not removable; name a path that "a2 clean" lists'
        )


# --- the command --------------------------------------------------------------------------------


def test_the_command_lists_with_sizes_and_deletes_nothing(copy):
    before = copy.left()
    final = copy.directory("evaluate")
    answer = copy.a2("clean", "--set", "evaluate.beam_size=3", code=0)
    size = f"{size_of(final) / 1000:.3g} kB"
    assert answer.stdout.splitlines() == [
        f"result     {size:>9}  {final}",
        "                      evaluate.beam_size 2 -> 3",
        f"1 removable, {size}; name paths to delete",
    ]
    assert copy.left() == before
    shutil.copytree(final, left_over := final.with_name(f"{final.name}.removed"))
    last = copy.a2("clean", "--set", "evaluate.beam_size=3").stdout.splitlines()[-1]
    assert last.endswith(f"; name paths to delete, or use --yes for 1, {size}")
    assert left_over.is_dir()


def test_what_keeps_many_results_unknown_is_printed_once(copy):
    final = copy.directory("evaluate")
    shutil.copytree(final, final.with_name("0123456789ab"))
    lines = a2("clean", "--artifacts", copy.artifacts).stdout.splitlines()
    unknown = [line for line in lines if "unknown if it is used: " in line]
    assert len(set(unknown)) == len(unknown)
    [repeated] = [line for line in unknown if not line.startswith(" ")]
    assert re.fullmatch(
        r"\d results: unknown if it is used: .*; or name the experiment with -c FILE", repeated
    )


def test_the_command_reports_if_nothing_is_removable(copy):
    for yes, printed in ([], "nothing is removable\n"), (["--yes"], ""):
        assert copy.a2("clean", *yes, code=0).stdout == printed


def test_the_command_makes_no_folder_of_a_mistyped_name(tmp_path):
    assert a2("clean", "--artifacts", mistyped := tmp_path / "artefacts", code=1).stderr == (
        f"a2: folder of artifacts not found: {str(mistyped)!r}; "
        "check --artifacts, or the folder that you are in\n"
    )
    assert not mistyped.exists()


def test_the_command_deletes_only_the_named_item_with_its_locks(copy):
    kept = copy.left() - {copy.name(final := copy.directory("evaluate"))}
    size = f"{size_of(final) / 1000:.3g} kB"
    for lock in ("lock", "holder.json", "shards.lock"):
        (StagePaths(final, shared=True).lock.parent / f"{final.name}.{lock}").touch()
    answer = copy.a2("clean", "--set", "evaluate.beam_size=3", final, code=0)
    assert answer.stdout == f"deleted {final}: {size}\n"
    assert copy.left() == kept
    assert not list((copy.artifacts / ".locks").rglob(f"{final.name}*"))
    assert not any(verified.damages for verified in verify(copy.artifacts, data=True))


def test_the_command_rejects_names_in_use_with_their_holder_and_an_exit_code(copy):
    partial = copy.unfinish("evaluate")
    with stage_lock(StagePaths(partial.with_suffix(""), shared=True).lock, what="a test"):
        answer = copy.a2("clean", partial)
    assert answer.exit_code == 75
    assert answer.stderr.startswith(f"a2: {str(partial)!r} is in use: process ")
    assert answer.stderr.endswith("; wait for it, or stop it\n")
    copy.a2("clean", partial, code=0)
    assert not partial.exists()
