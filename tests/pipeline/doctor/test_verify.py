"""Verification: intact and damaged items, and the remedy of each damage."""

import json
import os
import shlex
import shutil

import pytest

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.files.sealed_folder import read_manifest, write_manifest
from a2cap.pipeline.doctor.verify import STAGES, verify
from tests.data.messages import message_of
from tests.experiments import a2

COPY_AGAIN = "copy it again, or recreate it with --force"


@pytest.fixture
def artifacts(copy):
    """Copy the experiment's results, which a test may damage."""
    return copy.artifacts


@pytest.fixture
def store(artifacts):
    return result(artifacts, "extract") / "features.lmdb"


@pytest.fixture
def captioner(artifacts, tmp_path):
    model = shutil.copytree(result(artifacts, "train-xe"), tmp_path / "my captioner")
    (model / "manifest.json").unlink()
    shutil.rmtree(model / "checkpoints")
    return model


def result(artifacts, stage):
    [found] = (path for path in (artifacts / stage).iterdir() if path.is_dir())
    return found


def checkpoints_of(artifacts):
    """List the last two checkpoints, and that of the best epoch if it is another."""
    return sorted((result(artifacts, "train-xe") / "checkpoints").iterdir())


def checkpoint(artifacts):
    return checkpoints_of(artifacts)[-1]


def unfinished(artifacts):
    """Make the training unfinished."""
    trained = result(artifacts, "train-xe")
    partial = trained.rename(f"{trained}.partial")
    (partial / "manifest.json").unlink()
    return partial


def damages(path, *, data=False):
    """List every damage with the path of its item."""
    return [(v.path, line) for v in verify(path, data=data) for line in v.damages]


def damage(path):
    """Return the only damage."""
    [(_, line)] = damages(path)
    return line


def flip(path, offset=-1):
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


def forced(artifacts, stage):
    """Return the remedy of a stage's result."""
    command = {"train-xe": "train --phase xe"}.get(stage, stage)
    config = shlex.quote(str(result(artifacts, stage) / "config.yaml"))
    return f'run "a2 {command} --force -c {config} --artifacts {shlex.quote(str(artifacts))}"'


# --- intact --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [False, True])
def test_a_finished_experiment_is_intact(artifacts, data):
    found = list(verify(artifacts, data=data))
    stages = set(STAGES) - {"train-scst", "train-detector"}  # the experiment has none of them
    checkpoints = ["checkpoint"] * len(checkpoints_of(artifacts))
    assert sorted(v.kind for v in found) == sorted([*stages, *checkpoints])
    assert not any(v.damages for v in found)


def test_verification_changes_nothing(artifacts):
    before = {path: path.stat().st_mtime_ns for path in artifacts.rglob("*")}
    list(verify(artifacts, data=True))
    assert {path: path.stat().st_mtime_ns for path in artifacts.rglob("*")} == before


def test_a_store_is_verified_with_the_fingerprint_of_its_extractor(store):
    made = json.loads(store.with_name("extractor.json").read_text())
    [found] = verify(store, data=True)
    assert (found.kind, found.damages) == ("store", ())
    summary, weights, meta, code = found.notes
    assert summary == f"extractor: {made['summary']}"
    assert weights == f"extractor's weights: sha256 {made['weights_sha256']}"
    assert meta.startswith("extractor's meta: anchor_order ratio-major, anchors 12 rows, ")
    assert code == (
        f"extractor's code version: {made['code_version']}; libraries: "
        + ", ".join(f"{name} {version}" for name, version in made["libraries"].items())
    )
    [of_result] = verify(store.parent, data=False)
    assert of_result.notes == found.notes


def test_a_captioner_without_its_manifest_is_verified(captioner):
    [found] = verify(captioner, data=True)
    assert (found.kind, found.damages) == ("captioner", ())
    assert found.notes[-1] == (
        "no manifest to compare model.safetensors with; copy manifest.json too"
    )


def test_unfinished_work_is_skipped_but_its_checkpoints_are_verified_if_named(artifacts):
    count, partial = len(checkpoints_of(artifacts)), unfinished(artifacts)
    assert "train-xe" not in {v.kind for v in verify(artifacts, data=False)}
    assert [v.kind for v in verify(partial, data=True)] == ["checkpoint"] * count


def test_links_are_not_followed(artifacts, tmp_path):
    damaged = tmp_path / "elsewhere" / "extract" / "0123456789ab"
    damaged.mkdir(parents=True)
    (artifacts / "linked").symlink_to(tmp_path / "elsewhere")
    assert damages(artifacts) == []
    assert len(damages(tmp_path / "elsewhere")) == 1


@pytest.mark.parametrize("name", ["empty", "none", "file"])
def test_a_path_with_nothing_to_verify_is_reported(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert message_of(list, verify(tmp_path / name, data=False)) == (
        f"nothing to verify in {str(tmp_path / name)!r}; name a stage's result, "
        "a feature store, a checkpoint, a captioner, or a folder that contains some"
    )


# --- results ------------------------------------------------------------------------------------

OUTPUTS = [
    ("extract", "weights.safetensors"),
    ("preprocess", "captions.h5"),
    ("train-xe", "model.safetensors"),
    ("evaluate", "report.html"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "name"), OUTPUTS)
def test_a_missing_output_is_reported_with_the_command_that_restores_it(artifacts, stage, name):
    path = result(artifacts, stage) / name
    path.unlink()
    line = f"{str(path)!r} is missing; {forced(artifacts, stage)}"
    assert damages(artifacts) == [(path.parent, line)]


@pytest.mark.parametrize(("stage", "name"), OUTPUTS)
@pytest.mark.parametrize("left", [0, 10, -1])
def test_a_truncated_output_is_detected_by_its_size(artifacts, stage, name, left):
    path = result(artifacts, stage) / name
    size = path.stat().st_size
    os.truncate(path, left % size)
    what = f"{str(path)!r} has {left % size} bytes, {size} in the manifest"
    assert damages(artifacts) == [(path.parent, f"{what}; {forced(artifacts, stage)}")]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "name"), OUTPUTS)
def test_a_flipped_bit_is_detected_if_every_byte_is_read(artifacts, stage, name):
    path = result(artifacts, stage) / name
    flip(path)
    assert damages(artifacts) == []
    line = f"{str(path)!r} differs from its sha256 in the manifest; {forced(artifacts, stage)}"
    assert damages(artifacts, data=True) == [(path.parent, line)]


def test_a_damaged_copied_result_has_to_be_copied_again(artifacts, tmp_path):
    place = shutil.copytree(result(artifacts, "extract"), tmp_path / "my features")
    (place / "extractor.json").unlink()
    line = f"{str(place / 'extractor.json')!r} is missing; {COPY_AGAIN}"
    assert damages(place) == [(place, line)]


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"made_from": {}}'])
def test_an_unreadable_manifest_is_damage(artifacts, content):
    path = result(artifacts, "evaluate") / "manifest.json"
    path.unlink() if content is None else path.write_text(content)
    [(found, line)] = damages(artifacts)
    assert found == path.parent
    assert line.startswith(f"manifest is unreadable: {str(path)!r} (")
    assert line.endswith("); delete that folder, then run the command that made it again")


def test_a_result_under_another_key_is_damage(artifacts):
    path = result(artifacts, "evaluate")
    other = path.rename(path.with_name("0123456789ab"))
    assert damage(artifacts) == (
        f"{str(other)!r} has the manifest of key {path.name!r}; {forced(artifacts, 'evaluate')}"
    )


def test_every_damage_is_reported(artifacts):
    for stage, name in OUTPUTS:
        (result(artifacts, stage) / name).unlink()
    assert [path.parent.name for path, _ in damages(artifacts)] == sorted(dict(OUTPUTS))


# --- stores -------------------------------------------------------------------------------------


def test_a_truncated_store_is_detected_by_its_size(artifacts, store):
    path = store / "data.mdb"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    what = f"{str(path)!r} has {size - 1} bytes, {size} in the manifest"
    assert damages(store) == [(store, f"{what}; {COPY_AGAIN}")]
    assert damages(artifacts) == [(store.parent, f"{what}; {forced(artifacts, 'extract')}")]


@pytest.mark.slow
@pytest.mark.parametrize("offset", [-1, 4096 * 3, 4096 * 8 + 17])
def test_a_flipped_bit_anywhere_in_a_store_is_detected(artifacts, store, offset):
    path = store / "data.mdb"
    flip(path, offset)
    what = f"{str(path)!r} differs from its sha256 in the manifest"
    assert damages(store, data=True) == [(store, f"{what}; {COPY_AGAIN}")]
    line = f"{what}; {forced(artifacts, 'extract')}"
    assert damages(artifacts, data=True) == [(store.parent, line)]


def test_an_exchanged_store_differs_from_the_manifest(artifacts, store):
    before = read_manifest(store)
    other = {**before.facts, "digest": "0" * 64}
    write_manifest(store, before.model_copy(update={"facts": other}))
    what = f"{str(store)!r} differs from its digest in the manifest"
    line = f"{what}; {forced(artifacts, 'extract')}"
    assert damages(artifacts, data=True) == [(store.parent, line)]


# --- checkpoints --------------------------------------------------------------------------------

NOT_NEEDED = "delete it: only more epochs would need it"


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_a_truncated_checkpoint_is_detected_without_reading_it(artifacts, name):
    path = checkpoint(artifacts) / name
    size = path.stat().st_size
    os.truncate(path, 10)
    line = f"{str(path)!r} has 10 bytes, {size} in the manifest; {NOT_NEEDED}"
    for data in (False, True):
        assert damages(artifacts, data=data) == [(path.parent, line)]


def test_a_flipped_bit_of_a_checkpoint_is_detected(artifacts):
    path = checkpoint(artifacts) / "model.safetensors"
    flip(path)
    assert damages(path.parent) == []
    line = f"{str(path)!r} differs from its sha256 in the manifest; {NOT_NEEDED}"
    assert damages(path.parents[1], data=True) == [(path.parent, line)]


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
def test_a_checkpoint_without_a_file_is_incomplete(artifacts, name):
    path = checkpoint(artifacts)
    (path / name).unlink()
    [(found, line)] = damages(path)
    assert found == path
    is_sealed = name != "manifest.json"
    assert line.startswith(f"{str(path / name)!r} is missing; " if is_sealed else "manifest is unr")


@pytest.mark.parametrize(
    ("stage", "command"), [("train-xe", "train"), ("train-detector", "detector train")]
)
def test_a_damaged_checkpoint_of_an_unfinished_training_has_its_remedy(artifacts, stage, command):
    partial = unfinished(artifacts)
    if stage == "train-detector":
        partial = partial.parent.rename(artifacts / stage) / partial.name
    path = max((partial / "checkpoints").iterdir()) / "state.pt"
    path.unlink()
    remedy = f'run "a2 {command}", which resumes from the checkpoint before it, or restarts'
    assert damages(partial) == [(path.parent, f"{str(path)!r} is missing; {remedy}")]


# --- captioners ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["model.json", "vocabulary.json", "extractor.json", "weights.safetensors"]
)
def test_a_captioner_needs_all_its_files(captioner, name):
    (captioner / name).unlink()
    line = f"{str(captioner / name)!r} is missing; {COPY_AGAIN}"
    assert damages(captioner) == [(captioner, line)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors"])
def test_truncated_tensors_of_a_captioner_are_detected(captioner, name):
    os.truncate(captioner / name, 100)
    line = damage(captioner)
    assert line.startswith(f"{str(captioner / name)!r} is truncated or not a safetensors file (")
    assert line.endswith(f"); {COPY_AGAIN}")


def test_a_captioner_with_another_vocabulary_is_damaged(captioner):
    other = Vocabulary.from_counts({"cat": 9, "dog": 9}, "karpathy", min_count=1)
    other.save(captioner / "vocabulary.json")
    assert damage(captioner).startswith("vocabulary does not match the model: ")
    (captioner / "vocabulary.json").write_text("{")
    line = damage(captioner)
    assert line.startswith("not JSON: ") and line.endswith(f"; {COPY_AGAIN}")


def test_extractor_weights_beside_a_captioner_are_compared(artifacts, captioner):
    trained = result(artifacts, "train-xe")
    for model, where, remedy in (
        (captioner, "extractor.json", COPY_AGAIN),
        (trained, "the manifest", forced(artifacts, "train-xe")),
    ):
        flip(model / "weights.safetensors")
        assert damages(model) == []
        line = f"{str(model / 'weights.safetensors')!r} differs from its sha256 in {where}"
        assert damages(model, data=True) == [(model, f"{line}; {remedy}")]


# --- the command --------------------------------------------------------------------------------


def test_the_command_reports_intact_items_and_how_it_checked(artifacts):
    answer = a2("verify", "--artifacts", artifacts)
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert lines[0] == f"intact   evaluate    {result(artifacts, 'evaluate')}"
    count = 4 + len(checkpoints_of(artifacts))
    assert lines[-1] == f"{count} verified, 0 damaged: structure only, --data reads every byte"
    answer = a2("verify", result(artifacts, "preprocess"), "--data")
    assert answer.exit_code == 0
    assert answer.stdout.splitlines() == [
        f"intact   preprocess  {result(artifacts, 'preprocess')}",
        "1 verified, 0 damaged: every byte was read",
    ]


def test_the_command_fails_if_anything_is_damaged(artifacts):
    path = result(artifacts, "evaluate") / "metrics.json"
    path.unlink()
    count = 4 + len(checkpoints_of(artifacts))
    answer = a2("verify", "--artifacts", artifacts)
    assert answer.exit_code == 1
    first = answer.stdout.index("damaged ")
    assert answer.stdout[first:].splitlines()[:2] == [
        f"damaged  evaluate    {path.parent}",
        f"         {str(path)!r} is missing; {forced(artifacts, 'evaluate')}",
    ]
    assert answer.stdout.splitlines()[-1].startswith(f"{count} verified, 1 damaged: ")


@pytest.mark.slow
def test_the_remedy_of_a_damaged_result_restores_it(artifacts, experiment):
    path = result(artifacts, "preprocess") / "vocabulary.json"
    before = read_manifest(path.parent).digest
    flip(path)
    [(_, line)] = damages(artifacts, data=True)
    program, *words = shlex.split(line.partition('run "')[2].removesuffix('"'))
    assert program == "a2"
    assert a2(*words).exit_code == 0
    assert damages(artifacts, data=True) == []
    assert read_manifest(path.parent).digest == before
