"""Differences between two pre-images, named by their config fields."""

from a2cap.pipeline.engine.explain import difference, latest
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.manifest import Manifest

BEFORE = PreImage(
    "train-xe", 1, {"train": {"lr": 5e-4, "seed": 0}, "old": 1}, {"features": "a", "captions": "b"}
)


def test_equal_pre_images_have_no_difference():
    assert difference(BEFORE, BEFORE) == []


def test_every_difference_has_its_dotted_path():
    after = PreImage(
        "train-xe",
        2,
        {"train": {"lr": 1e-4, "seed": 0}, "new": "x"},
        {"features": "c", "captions": "b", "baseline": "d"},
    )
    assert difference(BEFORE, after) == [
        "code version 1 -> 2",
        "new absent -> 'x'",
        "old 1 -> absent",
        "train.lr 0.0005 -> 0.0001",
        "inputs.baseline changed",
        "inputs.features changed",
    ]


def test_the_latest_result_is_the_last_finished_one_and_never_partial(tmp_path):
    for name, finished in (("aaa", 3.0), ("bbb", 7.0), ("ccc.partial", 9.0)):
        (tmp_path / name).mkdir()
        Manifest(BEFORE, {}, 0, finished, 1.0, {}).write(tmp_path / name)
    found = latest(tmp_path)
    assert found is not None
    assert found.finished == 7.0
    assert latest(tmp_path / "nothing") is None
