"""The reader of a feature store: a mapping in key order for forked processes and threads."""

import hashlib
import multiprocessing
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.errors import StoreError
from a2cap.data.features import lmdb_file
from a2cap.data.features.store import FeatureStore, seal_shards
from a2cap.data.features.store_manifest import joint_digest, records_digest
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.sealed_folder import MANIFEST, read_manifest, seal
from a2cap.data.identities import shared_images
from tests.data.features.stores import flip_byte, make_regions, refusal, write_store, zero_tree
from tests.data.messages import message_of

IDS = ["000000000139", "000000391895", "000000391896", "own/straße"]
DAMAGED = (
    "'features.lmdb/data.mdb' differs from its sha256 in the manifest; run \"a2 extract --force\""
)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(Path("features.lmdb"))


def write(path, ids=IDS):
    write_store(path, ids, dtype="float32")
    return path


def has_features(store, *ids):
    return all(
        np.array_equal(store[image_id].features, make_regions(image_id).features)
        for image_id in ids
    )


def test_a_digest_is_the_sum_of_those_of_the_records():
    def of(key, value):
        return hashlib.sha256(len(key).to_bytes(8, "little") + key + value).digest()

    records = [(b"k", b"vw"), (b"kv", b"w"), (b"l", b"")]
    total = sum(int.from_bytes(of(*record), "big") for record in records)
    assert records_digest(records) == f"{total % 2**256:064x}"
    assert records_digest(reversed(records)) == records_digest(records)
    parts = records_digest(records[:1]), records_digest(records[1:])
    assert joint_digest(parts) == records_digest(records)


def test_a_store_is_a_mapping_in_key_order(path):
    store = FeatureStore(path)
    assert list(store) == IDS
    assert len(store) == 4
    assert all(image_id in store for image_id in IDS)
    assert has_features(store, *IDS)
    assert store["own/straße"].width == 640


def test_equal_records_in_two_splits_are_named(tmp_path):
    with FeatureWriter(tmp_path / "store") as writer:
        for image_id, content in zip("abcdef", "112131", strict=True):
            writer.add(image_id, make_regions(content))
        writer.seal()
    store = FeatureStore(tmp_path / "store")
    splits = {"train": ["a", "b"], "val": ["c", "d"], "test": ["e", "f", "absent"]}
    assert shared_images(splits, store.checksum, "features") == (
        "2 images have the features of an image of another split: 'd' (val) is 'a' (train), 'f' "
        "(test) is 'a' (train); scores on them are too high, keep each photograph in one split"
    )
    assert store.checksum("absent") is None
    assert store.checksum("a") == store.checksum("b") != store.checksum("c")


def test_regions_of_another_width_than_the_model_s_are_rejected(path):
    store = FeatureStore(path)
    store.require_width(store.feature_width)
    assert message_of(store.require_width, 7, error=StoreError) == (
        f"region width of 'features.lmdb' is {store.feature_width}, the model expects 7; "
        "retrain, or extract with the checkpoint that it was trained on"
    )


@pytest.mark.parametrize("image_id", ["", "1", "a" * 600, "\udcff", "000000139"])
def test_other_ids_are_not_in_the_store(path, image_id):
    assert image_id not in FeatureStore(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(ids=st.sets(st.text(min_size=1, max_size=100).filter(lambda name: name.isprintable())))
def test_any_set_of_ids_is_read_in_sorted_order(tmp_path_factory, ids):
    store = FeatureStore(write(tmp_path_factory.mktemp("ids") / "s", ids))
    assert list(store) == sorted(ids)
    assert has_features(store, *ids)


def test_a_store_has_the_facts_of_its_manifest(path):
    store = FeatureStore(path)
    manifest = read_manifest(path)
    assert store.facts.model_dump(mode="json") == manifest.facts
    assert (store.feature_width, store.facts.dtype) == (8, "float32")
    assert store.digest == store.facts.digest == manifest.digest


def test_up_to_five_missing_images_are_named_with_their_count(path):
    store = FeatureStore(path)
    store.require(IDS)
    store.require([])
    remedy = 'run "a2 extract" first'
    assert refusal(store.__getitem__, "391895") == (
        f"no features for image '391895' in 'features.lmdb'; {remedy}"
    )
    assert refusal(store.require, [*IDS, "1", "2"]) == (
        f"no features for 2 images in 'features.lmdb': '1', '2'; {remedy}"
    )
    assert refusal(store.require, list("12345")) == (
        f"no features for 5 images in 'features.lmdb': '1', '2', '3', '4', '5'; {remedy}"
    )
    assert refusal(store.require, ["1", "2", *IDS, "3", "4", "5", "6"]) == (
        f"no features for 6 images in 'features.lmdb': '1', '2', '3', '4', '5' and 1 more; {remedy}"
    )


def test_a_missing_or_unfinished_store_is_refused(path):
    assert refusal(FeatureStore, Path("none")) == (
        "no feature store at 'none'; run \"a2 extract\" first"
    )
    (path / MANIFEST).unlink()
    assert refusal(FeatureStore, path) == (
        "extraction into 'features.lmdb' is unfinished; run \"a2 extract\" again to resume it"
    )


def test_a_damaged_manifest_is_rejected(path):
    (path / MANIFEST).write_text((path / MANIFEST).read_text().replace('"count": 4', '"count": 5'))
    assert refusal(FeatureStore, path) == (
        "manifest is unreadable: 'features.lmdb/manifest.json' (it differs from its checksum); "
        'copy the store again, or run "a2 extract --force"'
    )


def test_a_manifest_of_something_else_or_damaged_later_is_named(path, tmp_path):
    store = FeatureStore(path)
    (path / MANIFEST).write_text("{")
    [problem] = store.verify()
    assert problem.startswith(f"manifest is unreadable: {str(path / MANIFEST)!r}")
    other = tmp_path / "other"
    other.mkdir()
    (other / "model").write_text("x")
    seal(other, ["model"])
    assert message_of(FeatureStore, other, error=StoreError) == (
        f'{str(other)!r} is not a feature store; run "a2 extract --force"'
    )


def test_a_file_of_another_size_is_refused_before_it_is_mapped(path):
    store = FeatureStore(path)
    size = (path / "data.mdb").stat().st_size
    for truncated in (size + 1, size - 1, size // 2, 10, 0):
        os.truncate(path / "data.mdb", truncated)
        message = (
            f"'features.lmdb' has {truncated} bytes, its manifest {size}; "
            'copy it again, or run "a2 extract --force"'
        )
        assert len(store) == 4
        assert refusal(store.__getitem__, IDS[0]) == message
        assert FeatureStore(path).verify() == [
            f"'features.lmdb/data.mdb' has {truncated} bytes, {size} in the manifest; "
            'run "a2 extract --force"'
        ]


def test_a_file_that_is_not_lmdb_is_refused(path):
    (path / "data.mdb").write_bytes(b"x" * (path / "data.mdb").stat().st_size)
    message = "'features.lmdb' is damaged: features.lmdb: MDB_INVALID: File is not an LMDB file"
    assert refusal(FeatureStore(path).__getitem__, IDS[0]) == (
        f'{message}; run "a2 extract --force"'
    )


def test_a_damaged_tree_is_refused(path, monkeypatch):
    def damage():
        return re.fullmatch(
            "'features.lmdb' is damaged: (.*); run \"a2 extract --force\"",
            refusal(FeatureStore(path).__getitem__, IDS[0]),
        )[1]

    zero_tree(path / "data.mdb")
    assert re.fullmatch(r"page \d+ of its tree is corrupt", damage())
    monkeypatch.setattr(lmdb_file, "find_damage", lambda file: None)
    assert damage().startswith("mdb_get: MDB_")  # LMDB's own check


def test_a_flipped_byte_is_found_and_its_image_named(path):
    flip_byte(path / "data.mdb", make_regions(IDS[1]).features.tobytes())
    store = FeatureStore(path)
    assert store.verify() == []  # sizes and counts are unchanged
    assert store.verify(data=True) == [DAMAGED]
    assert f"record of image '{IDS[1]}' is damaged" in refusal(store.__getitem__, IDS[1])
    assert has_features(store, IDS[0])


def test_a_byte_flipped_outside_of_the_records_is_found(path):
    data = bytearray((path / "data.mdb").read_bytes())
    data[4096 - 1] ^= 1  # the unused end of LMDB's first page
    (path / "data.mdb").write_bytes(data)
    assert FeatureStore(path).verify(data=True) == [DAMAGED]


def test_two_stores_read_one_file_in_one_process(path):
    first, second = FeatureStore(path), FeatureStore(path.absolute())
    assert has_features(first, IDS[0]) and has_features(second, IDS[1])
    del first
    assert has_features(second, IDS[0])


def test_a_rewritten_store_at_the_same_path_is_another_store(path):
    before = FeatureStore(path)
    assert len(list(before)) == 4
    shutil.rmtree(path)
    write(path, IDS[:1])
    assert list(FeatureStore(path)) == IDS[:1]
    assert list(before) == IDS


def read_all(store, ids, answers):
    answers.put(has_features(store, *ids))


@pytest.mark.slow
@pytest.mark.parametrize("opened", [False, True], ids=["not yet opened", "opened"])
def test_two_forked_processes_and_their_parent_read_concurrently(path, opened):
    store, other = FeatureStore(path), FeatureStore(path)
    assert not opened or (has_features(store, IDS[0]) and has_features(other, IDS[0]))
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    readers = [
        fork.Process(target=read_all, args=(reader, IDS, answers)) for reader in (store, other)
    ]
    for reader in readers:
        reader.start()
    assert has_features(store, *IDS)
    assert [answers.get(timeout=600) for _ in readers] == [True] * 2
    for reader in readers:
        reader.join()
        assert reader.exitcode == 0
    assert has_features(other, IDS[0])


def test_the_environment_of_a_parent_process_is_closed_and_opened_again(path, monkeypatch):
    store = FeatureStore(path)
    assert has_features(store, IDS[0])
    inherited = store._files[0]._environment
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)  # as in a forked process
        assert has_features(store, IDS[1])
        with pytest.raises(lmdb.Error):
            inherited.begin()
    assert has_features(FeatureStore(path), IDS[2])  # not by the closed one


def test_threads_read_the_same_as_one_also_where_few_shards_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr("a2cap.data.features.store._OPEN_SHARDS", 2)
    in_shards(tmp_path, *([name] for name in IDS))
    asked = [IDS[number % 7 % 4] for number in range(400)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            store = FeatureStore(tmp_path)  # not opened, and without its index
            assert all(threads.map(partial(has_features, store), asked))


def test_threads_that_drop_their_stores_read_the_same_shards(tmp_path):
    in_shards(tmp_path, *([name] for name in IDS))

    def read(_):
        store = FeatureStore(tmp_path)  # ends, with its files, while others open the same
        return all(has_features(store, name) for name in IDS)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(read, range(300)))


def test_reading_neither_changes_the_files_nor_adds_one(path):
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
    assert FeatureStore(path).verify() == FeatureStore(path).verify(data=True) == []
    after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
    assert after == before


# --- shards --------------------------------------------------------------------------------------


def in_shards(path, *parts, **options):
    """Write one shard per list of ids and seal their list."""
    for number, ids in enumerate(parts):
        write_store(path / f"{number:05}", ids, **{"dtype": "float32", **options})
    return seal_shards(path, len(parts))


@pytest.mark.parametrize(
    "parts", [[IDS], [IDS[:2], IDS[2:]], [IDS[1::2], [], IDS[::2]]], ids=["1", "2", "unordered"]
)
def test_a_store_in_shards_reads_as_one_of_equal_digest(path, parts):
    facts = in_shards(Path("shards"), *parts)
    store, whole = FeatureStore(Path("shards")), FeatureStore(path)
    assert (facts.count, facts.shards, store.digest) == (4, len(parts), whole.digest)
    assert list(store) == IDS
    assert has_features(store, *IDS)
    assert "nobody" not in store and IDS[2] in store
    assert all(image_id in parts[store.shard_of(image_id)] for image_id in IDS)
    assert whole.shard_of(IDS[3]) == 0
    assert store.verify(data=True) == []


def test_few_shards_are_open_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("a2cap.data.features.store._OPEN_SHARDS", 1)
    in_shards(tmp_path, IDS[:2], IDS[2:])
    store = FeatureStore(tmp_path)
    assert has_features(store, *IDS, *IDS)
    assert [file._environment is None for file in store._files] == [True, False]
    assert list(store) == IDS
    assert [file._environment is None for file in store._files] == [True, False]


def test_shards_that_are_missing_or_differ_are_named(tmp_path):
    with_width = tmp_path / "a"
    for name, ids, width in (("00000", IDS[:2], 8), ("00001", IDS[2:], 9)):
        write_store(with_width / name, ids, dtype="float32", width=width)
    assert refusal(seal_shards, with_width, 2) == (
        f"shards 00000 and 00001 of {str(with_width)!r} differ: features of 8 float32 and of "
        "9 float32; extract all with one extractor"
    )
    assert refusal(seal_shards, with_width, 4) == (
        f'2 of 4 shards of {str(with_width)!r} are missing: 00002, 00003; run "a2 extract" again'
    )


def test_another_shard_than_was_sealed_is_rejected(tmp_path):
    in_shards(tmp_path, IDS[:2], IDS[2:])
    shutil.rmtree(tmp_path / "00001")
    write_store(tmp_path / "00001", IDS[2:3], dtype="float32")
    assert refusal(FeatureStore(tmp_path).__getitem__, IDS[3]) == (
        f"{str(tmp_path / '00001')!r} is not the shard that was sealed with the others; "
        'copy it again, or run "a2 extract --force"'
    )
    assert FeatureStore(tmp_path).verify(data=True)[0] == (
        f"{str(tmp_path / '00001')!r} differs from its digest in the manifest; "
        'run "a2 extract --force"'
    )
