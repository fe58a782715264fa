"""The parts of a plan are read where they are, as one store."""

import json

import pytest

from a2cap.data.features import store as store_module
from a2cap.data.features.parts import DoneRecord, failed_images, parts_folder, point_to, shard_name
from a2cap.data.features.store import FeatureStore
from tests.data.features.stores import make_regions, refusal, write_store

IDS = [f"{number:012}" for number in range(9)]
SIZE = 4
AGAIN = 'run the same "a2 extract --plan" again'


def add_part(folder, part, ids, *, fingerprint="a" * 64):
    """Write a finished part of a plan."""
    seal = write_store(folder / part, ids, dtype="float32")
    record = DoneRecord(
        count=len(ids),
        failed=0,
        digest=seal.digest,
        fingerprint=fingerprint,
        host="here",
        seconds=1.0,
        ended=0.0,
    )
    (folder / f"{part}.done.json").write_text(record.model_dump_json())


@pytest.fixture
def plan(tmp_path):
    """Return the folder of a plan of three finished shards, the last with one image."""
    offsets = list(range(0, len(IDS), SIZE))
    (tmp_path / "plan.json").write_text(json.dumps({"offsets": offsets}))
    for number, start in enumerate(offsets):
        add_part(tmp_path, shard_name(number), IDS[start : start + SIZE])
    return tmp_path


@pytest.mark.parametrize("is_pointer", [False, True])
def test_parts_are_read_as_one_store(plan, is_pointer, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(store_module, "_OPEN_PARTS", 1)  # the others are closed and opened again
    path = plan
    if is_pointer:
        path = tmp_path_factory.mktemp("store")
        point_to(plan, path)
    store = FeatureStore(path)
    assert list(store) == IDS and len(store) == len(IDS) and store.verify(data=True) == []
    for name in (*reversed(IDS), *IDS):
        assert (store[name].features == make_regions(name).features).all()
    assert [store.part_of(name) for name in IDS] == [n // SIZE for n in range(len(IDS))]
    assert "dog" not in store and store.part_of("dog") == 0
    assert refusal(lambda: store["dog"]) == (
        f"no features for image 'dog' in {str(path)!r}; run \"a2 extract\" first"
    )


def test_a_part_without_images_does_not_give_the_width(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({"offsets": [0, 0]}))
    for number, ids in enumerate(([], IDS[:2])):
        add_part(tmp_path, shard_name(number), ids)
    store = FeatureStore(tmp_path)
    assert store.feature_width == store[IDS[0]].features.shape[1]


def test_a_store_without_parts_has_one(tmp_path):
    write_store(tmp_path / "store", IDS[:2])
    store = FeatureStore(tmp_path / "store")
    assert store.part_of(IDS[0]) == store.part_of("dog") == 0


def test_a_pointer_of_another_form_points_nowhere(tmp_path):
    (tmp_path / "parts.json").write_text("[]")
    assert parts_folder(tmp_path) is None


def test_unfinished_changed_and_damaged_parts_are_named(plan):
    done = plan / "00001.done.json"
    content = done.read_text()
    done.write_text(content.replace('"count":4', '"count":"four"'))
    assert refusal(FeatureStore, plan) == f"record {str(done)!r} is damaged; remove it, and {AGAIN}"
    done.unlink()
    assert refusal(FeatureStore, plan) == (
        f"1 of 3 shards of {str(plan)!r} are not done: 00001; {AGAIN}"
    )
    digest = json.loads(content)["digest"]
    done.write_text(content.replace(digest, "0" * 64))
    assert refusal(FeatureStore, plan) == (
        f"part {str(plan / '00001')!r} was changed after it was done: digest {digest[:12]}, "
        f"recorded {'0' * 12}; remove {str(plan / '00001')!r} and 00001.done.json, and {AGAIN}"
    )
    done.write_text(content.replace("a" * 64, "b" * 64))
    assert refusal(FeatureStore, plan) == (
        f"parts 00002 and 00001 of {str(plan)!r} come from different weights or settings: "
        f"{'a' * 12} and {'b' * 12}; remove the wrong ones, and {AGAIN}"
    )


def test_the_last_attempt_at_an_image_counts(plan):
    for part, failed in {"00000": ["x", "y"], "00000.r1": ["y"], "00002.r9": ["z"]}.items():
        (plan / f"{part}.done.json").write_text((plan / "00000.done.json").read_text())
        lines = [json.dumps({"id": name, "reason": f"bad in {part}"}) for name in failed]
        (plan / f"{part}.failed.jsonl").write_text("\n".join(lines))
    (plan / "00002.r10.done.json").write_text((plan / "00000.done.json").read_text())
    assert failed_images(plan) == {"y": "bad in 00000.r1"}
