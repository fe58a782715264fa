"""Verification: intact and damaged items, and the remedy of each damage."""

import json
import shlex
import shutil

import pytest

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.upkeep.verify import STAGES, verify
from tests.data.messages import message_of
from tests.experiments import a2

COPY_AGAIN = "copy it again, or recreate it with --force"


@pytest.fixture
def store(copy):
    return copy.directory("extract") / "features.lmdb"


@pytest.fixture
def captioner(copy, tmp_path):
    model = shutil.copytree(copy.directory("train-xe"), tmp_path / "my captioner")
    (model / "manifest.json").unlink()
    shutil.rmtree(model / "checkpoints")
    return model


def checkpoints_of(copy):
    """List the last two checkpoints, and that of the best epoch if it is another."""
    return sorted((copy.directory("train-xe") / "checkpoints").iterdir())


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


def forced(copy, stage):
    """Return the remedy of a stage's result."""
    command = {"train-xe": "train --phase xe"}.get(stage, stage)
    config = shlex.quote(str(copy.directory(stage) / "config.yaml"))
    return f'run "a2 {command} --force -c {config} --artifacts {shlex.quote(str(copy.artifacts))}"'


# --- intact --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [False, True])
def test_a_finished_experiment_is_intact(copy, data):
    items = list(verify(copy.artifacts, data=data))
    # the experiment has none of them
    stages = set(STAGES) - {"train-scst", "train-detector", "train-encoder"}
    checkpoints = ["checkpoint"] * len(checkpoints_of(copy))
    assert sorted(v.kind for v in items) == sorted([*stages, *checkpoints])
    assert not any(v.damages for v in items)


def test_verification_changes_nothing(copy):
    before = {path: path.stat().st_mtime_ns for path in copy.artifacts.rglob("*")}
    list(verify(copy.artifacts, data=True))
    assert {path: path.stat().st_mtime_ns for path in copy.artifacts.rglob("*")} == before


def test_a_store_is_verified_with_the_fingerprint_of_its_extractor(store):
    made = json.loads(store.with_name("extractor.json").read_text())
    [item] = verify(store, data=True)
    assert (item.kind, item.damages) == ("store", ())
    summary, weights, meta, code = item.notes
    assert summary == f"extractor: {made['summary']}"
    assert weights == f"extractor's weights: sha256 {made['weights_sha256']}"
    assert meta.startswith("extractor's meta: anchor_order ratio-major, anchors 12 rows, ")
    assert code == (
        f"extractor's code version: {made['code_version']}; libraries: "
        + ", ".join(f"{name} {version}" for name, version in made["libraries"].items())
    )
    [of_result] = verify(store.parent, data=False)
    assert of_result.notes == item.notes


def test_a_captioner_without_its_manifest_is_verified(captioner):
    [item] = verify(captioner, data=True)
    assert (item.kind, item.damages) == ("captioner", ())
    assert item.notes[-1] == (
        "no manifest to compare model.safetensors with; copy manifest.json too"
    )


def test_unfinished_work_is_skipped_but_its_checkpoints_are_verified_if_named(copy):
    count, partial = len(checkpoints_of(copy)), copy.unfinish("train-xe")
    assert "train-xe" not in {v.kind for v in verify(copy.artifacts, data=False)}
    assert [v.kind for v in verify(partial, data=True)] == ["checkpoint"] * count


def test_links_are_not_followed(copy, tmp_path):
    damaged = tmp_path / "elsewhere" / "extract" / "0123456789ab"
    damaged.mkdir(parents=True)
    (copy.artifacts / "linked").symlink_to(tmp_path / "elsewhere")
    assert damages(copy.artifacts) == []
    assert len(damages(tmp_path / "elsewhere")) == 1


def test_links_to_results_are_followed(copy, tmp_path):
    moved = (copy.artifacts / "extract").rename(tmp_path / "another disk")
    (copy.artifacts / "extract").symlink_to(moved)
    evaluated = copy.directory("evaluate")
    (copy.artifacts / "evaluate" / "train-xe").symlink_to(copy.artifacts)  # around itself
    evaluated.rename(tmp_path / evaluated.name)
    evaluated.symlink_to(tmp_path / evaluated.name)
    assert {v.kind for v in verify(copy.artifacts, data=False)} >= {"extract", "evaluate"}
    assert damages(copy.artifacts) == []


@pytest.mark.parametrize("name", ["empty", "none", "file"])
def test_a_path_with_nothing_to_verify_is_reported(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert message_of(list, verify(tmp_path / name, data=False)) == (
        f"nothing to verify in {str(tmp_path / name)!r}; name a stage's result, "
        "a feature store, a checkpoint, a captioner, or a folder that contains some"
    )


# --- damaged folders ----------------------------------------------------------------------------

NAMES = {
    "extract": "weights.safetensors",
    "preprocess": "captions.h5",
    "train-xe": "model.safetensors",
    "evaluate": "report.html",
    "store": "00000/data.mdb",
    "checkpoint": "state.pt",
    "copied": "extractor.json",
}
"""Stage or other sealed folder -> the file of it that is damaged."""


def folder_and_remedy(copy, kind, tmp_path):
    if kind in STAGES:
        return copy.directory(kind), forced(copy, kind)
    if kind == "checkpoint":
        return checkpoints_of(copy)[-1], "delete it: only more epochs would need it"
    extracted = copy.directory("extract")
    if kind == "store":
        return extracted / "features.lmdb", COPY_AGAIN
    return shutil.copytree(extracted, tmp_path / "my features"), COPY_AGAIN


@pytest.mark.parametrize("kind", NAMES)
def test_every_damage_is_named_with_the_remedy_of_its_folder(copy, kind, tmp_path):
    folder, remedy = folder_and_remedy(copy, kind, tmp_path)
    path = folder / NAMES[kind]
    whole = path.read_bytes()
    flipped = bytes([whole[0] ^ 4]) + whole[1:]
    for content, what, is_seen_by_size in (
        (None, "is missing", True),
        (whole[:10], f"has 10 bytes, {len(whole)} in the manifest", True),
        (flipped, "differs from its sha256 in the manifest", False),
    ):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        expected = [(folder, f"{str(path)!r} {what}; {remedy}")]
        assert damages(folder, data=True) == expected
        assert damages(folder) == (expected if is_seen_by_size else [])
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [None, "{"])
def test_an_unreadable_manifest_is_damage(copy, content):
    path = copy.directory("evaluate") / "manifest.json"
    path.unlink() if content is None else path.write_text(content)
    [(damaged, line)] = damages(copy.artifacts)
    assert damaged == path.parent
    assert line.startswith(f"manifest is unreadable: {str(path)!r} (")


def test_a_result_under_another_key_is_damage(copy):
    path = copy.directory("evaluate")
    other = path.rename(path.with_name("0123456789ab"))
    assert damage(copy.artifacts) == (
        f"{str(other)!r} has the manifest of key {path.name!r}; {forced(copy, 'evaluate')}"
    )


@pytest.mark.parametrize(
    ("stage", "command"), [("train-xe", "train --phase xe"), ("train-detector", "detector train")]
)
def test_a_damaged_checkpoint_of_an_unfinished_training_has_its_remedy(copy, stage, command):
    partial = copy.unfinish("train-xe")
    if stage == "train-detector":
        partial = partial.parent.rename(copy.artifacts / stage) / partial.name
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


def test_a_captioner_with_another_vocabulary_is_damaged(captioner):
    other = Vocabulary.from_counts({"cat": 9, "dog": 9}, "karpathy", min_count=1)
    other.save(captioner / "vocabulary.json")
    assert damage(captioner).startswith("vocabulary does not match the model: ")
    (captioner / "vocabulary.json").write_text("{")
    line = damage(captioner)
    assert line.startswith("not JSON: ") and line.endswith(f"; {COPY_AGAIN}")


def test_extractor_weights_beside_a_captioner_are_compared(copy, captioner):
    trained = copy.directory("train-xe")
    for model, where, remedy in (
        (captioner, "extractor.json", COPY_AGAIN),
        (trained, "the manifest", forced(copy, "train-xe")),
    ):
        flip(model / "weights.safetensors")
        assert damages(model) == []
        line = f"{str(model / 'weights.safetensors')!r} differs from its sha256 in {where}"
        assert damages(model, data=True) == [(model, f"{line}; {remedy}")]


# --- the command --------------------------------------------------------------------------------


def test_the_command_reports_how_it_checked_and_fails_if_anything_is_damaged(copy):
    answer = a2("verify", "--artifacts", copy.artifacts, code=0)
    lines = answer.stdout.splitlines()
    assert lines[0] == f"intact   evaluate       {copy.directory('evaluate')}"
    count = 4 + len(checkpoints_of(copy))
    assert lines[-1] == f"{count} verified, 0 damaged: structure only, --data reads every byte"
    assert a2("verify", copy.directory("preprocess"), "--data", code=0).stdout.splitlines() == [
        f"intact   preprocess     {copy.directory('preprocess')}",
        "1 verified, 0 damaged: every byte was read",
    ]
    path = copy.directory("evaluate") / "metrics.json"
    path.unlink()
    answer = a2("verify", "--artifacts", copy.artifacts, code=1)
    first = answer.stdout.index("damaged ")
    assert answer.stdout[first:].splitlines()[:2] == [
        f"damaged  evaluate       {path.parent}",
        f"         {str(path)!r} is missing; {forced(copy, 'evaluate')}",
    ]
    assert answer.stdout.splitlines()[-1].startswith(f"{count} verified, 1 damaged: ")


@pytest.mark.slow
def test_the_remedy_of_a_damaged_result_restores_it(copy, experiment):
    path = copy.directory("preprocess") / "vocabulary.json"
    before = read_manifest(path.parent).digest
    flip(path)
    [(_, line)] = damages(copy.artifacts, data=True)
    program, *words = shlex.split(line.partition('run "')[2].removesuffix('"'))
    assert program == "a2"
    a2(*words, code=0)
    assert damages(copy.artifacts, data=True) == []
    assert read_manifest(path.parent).digest == before
