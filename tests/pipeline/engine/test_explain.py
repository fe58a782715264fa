"""Differences between what two results are made from."""

from a2cap.data.files.sealed_folder import MadeFrom, Manifest, write_manifest
from a2cap.pipeline.engine.explain import difference, finished_results, nearest_difference

BEFORE = MadeFrom(
    stage="train-xe",
    version=1,
    fields={"train": {"lr": 5e-4, "seed": 0}, "old": 1},
    inputs={"features": "a", "captions": "b"},
)


def test_every_difference_has_its_dotted_path():
    after = MadeFrom(
        stage="train-xe",
        version=2,
        fields={"train": {"lr": 1e-4, "seed": 0}, "new": "x"},
        inputs={"features": "c", "captions": "b", "baseline": "d"},
    )
    assert difference(BEFORE, BEFORE) == []
    assert difference(BEFORE, after) == [
        "version of the stage 1 -> 2",
        "new absent -> 'x'",
        "old 1 -> absent",
        "train.lr 0.0005 -> 0.0001",
        "inputs.baseline changed",
        "inputs.features changed",
    ]


def finish(folder, name, made_from, finished):
    (folder / name).mkdir()
    manifest = Manifest(made_from=made_from, outputs={}, finished=finished)
    write_manifest(folder / name, manifest)


def test_results_are_listed_newest_first_and_never_partial_or_damaged(tmp_path):
    for name, finished in (("aaa", 3.0), ("bbb", 7.0), ("ccc.partial", 9.0), ("ddd", 8.0)):
        finish(tmp_path, name, BEFORE, finished)
    (tmp_path / "ddd" / "manifest.json").write_text("{}")
    assert [path.name for path in finished_results(tmp_path)] == ["bbb", "aaa"]


def test_a_rerun_is_explained_by_the_nearest_result_and_not_by_the_newest(tmp_path):
    assert nearest_difference(tmp_path, BEFORE) is None
    near = BEFORE.model_copy(update={"fields": {"train": {"lr": 1e-4, "seed": 0}, "old": 1}})
    other = BEFORE.model_copy(update={"fields": {}, "inputs": {"features": "other images"}})
    finish(tmp_path, "near", near, 3.0)
    finish(tmp_path, "newest", other, 9.0)
    assert nearest_difference(tmp_path, BEFORE) == ["train.lr 0.0001 -> 0.0005"]
