"""A store in shards: sealed and read as one; shards that do not fit are named."""

import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.features.join import seal_shards
from a2cap.data.features.shard import Shard
from a2cap.data.features.store import FeatureStore
from tests.data.features.stores import change_seal, flip_byte, make_regions, refusal, write_store

IDS = [f"{number:012d}" for number in range(12)]


def write(path, ids, *, dtype="float32", **options):
    write_store(path, ids, dtype=dtype, **options)


def write_shards(path, ids, count):
    for number in range(count):
        shard = Shard(number, count)
        write(path / shard.folder, [image_id for image_id in ids if shard.owns(image_id)])
    return path


def replace_shard(path, number, ids, **options):
    """Write another shard of three at the path of one and return its folder."""
    folder = path / Shard(number, 3).folder
    shutil.rmtree(folder)
    write(folder, ids, **options)
    return folder


@pytest.fixture
def shards(tmp_path):
    """Twelve images in three shards, not yet sealed together."""
    return write_shards(tmp_path / "features.lmdb", IDS, 3)


@pytest.fixture
def store(shards):
    seal_shards(shards)
    return shards


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(
    ids=st.sets(st.text(min_size=1, max_size=20).filter(str.isprintable)), count=st.integers(1, 4)
)
def test_any_number_of_shards_is_read_as_one_store(tmp_path_factory, ids, count):
    folder = tmp_path_factory.mktemp("shards")
    write(folder / "whole", ids)
    whole = FeatureStore(folder / "whole")
    seal = seal_shards(write_shards(folder / "shards", ids, count))
    joined = FeatureStore(folder / "shards")
    assert list(joined) == list(whole) == sorted(ids)
    assert (joined.digest, len(joined)) == (whole.digest, len(whole))
    assert (joined.feature_width, joined.seal.dtype) == (whole.feature_width, whole.seal.dtype)
    assert len(seal.shards) == count
    assert joined.verify(data=True) == []
    for image_id in ids:
        np.testing.assert_array_equal(joined[image_id].features, whole[image_id].features)


def test_an_image_is_found_in_any_shard(tmp_path):
    path = tmp_path / "s"
    for number in range(3):
        write(path / Shard(number, 3).folder, IDS[number::3])  # not the shard of its id
    seal_shards(path)
    store = FeatureStore(path)
    assert all(image_id in store for image_id in IDS)
    assert [store[image_id].features.shape for image_id in IDS] == [
        make_regions(image_id).features.shape for image_id in IDS
    ]
    assert "7" not in store and "" not in store
    store.require(IDS)
    assert refusal(store.__getitem__, "7").startswith("no features for image '7' in ")
    assert f"no features for 1 images in {str(path)!r}: '7'" in refusal(store.require, [*IDS, "7"])


def test_a_store_can_contain_empty_shards(tmp_path):
    path = write_shards(tmp_path / "s", IDS[:1], 3)
    assert seal_shards(path).count == 1
    assert list(FeatureStore(path)) == IDS[:1]
    assert seal_shards(write_shards(tmp_path / "none", [], 2)).feature_width == 0


def test_a_store_in_shards_survives_pickling_and_a_fork(store):
    opened = FeatureStore(store)
    assert len(opened[IDS[0]]) == len(make_regions(IDS[0]))
    copy = pickle.loads(pickle.dumps(opened))
    assert len(copy[IDS[1]]) == len(make_regions(IDS[1]))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(opened) == IDS else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_shards_without_a_joint_seal_are_unfinished(shards):
    assert refusal(FeatureStore, shards) == (
        f'extraction into {str(shards)!r} is unfinished; run "a2 extract" again to resume it'
    )
    (shards / Shard(2, 3).folder / "seal.json").unlink()
    assert refusal(seal_shards, shards) == (
        f'shards 2/3 of {str(shards)!r} are unfinished; run "a2 extract --shard" for each'
    )


def test_a_missing_shard_is_named_before_and_after_sealing(shards):
    folder, kept = shards / Shard(1, 3).folder, shards.parent / "kept"
    message = (
        f"shards 1/3 of {str(shards)!r} are missing; "
        'copy them there, or run "a2 extract --shard" for each'
    )
    folder.rename(kept)
    assert refusal(seal_shards, shards) == message
    kept.rename(folder)
    seal_shards(shards)
    folder.rename(kept)
    assert refusal(FeatureStore, shards) == message


def test_overlapping_shards_are_named_with_the_duplicate_image(shards):
    duplicate = next(image_id for image_id in IDS if Shard(0, 3).owns(image_id))
    replace_shard(shards, 2, [duplicate])
    assert refusal(seal_shards, shards) == (
        f"shards 0/3 and 2/3 of {str(shards)!r} overlap: both contain image {duplicate!r}; "
        "remove the wrong shard"
    )


def test_another_number_of_shards_than_were_sealed_is_refused(store):
    write_shards(store, IDS, 2)
    assert "contains shards of 2 and of 3, which overlap; keep the" in refusal(FeatureStore, store)
    for number in range(3):
        shutil.rmtree(store / Shard(number, 3).folder)
    assert refusal(FeatureStore, store) == (
        f'{str(store)!r} has 2 shards, its seal 3; copy it again, or run "a2 extract --force"'
    )


@pytest.mark.parametrize(
    ("other", "shape"), [({"width": 16}, "16 float32"), ({"dtype": "float16"}, "8 float16")]
)
def test_shards_of_different_extractors_are_named(shards, other, shape):
    replace_shard(shards, 1, list(FeatureStore(shards / Shard(1, 3).folder)), **other)
    assert refusal(seal_shards, shards) == (
        f"shards 2/3 and 1/3 of {str(shards)!r} differ: features of 8 float32 and of "
        f"{shape}; extract all with one extractor"
    )


def test_a_shard_of_another_size_is_named(store):
    folder = store / Shard(1, 3).folder
    size = (folder / "data.mdb").stat().st_size
    os.truncate(folder / "data.mdb", size - 1)
    (message,) = FeatureStore(store).verify()
    assert message.startswith(f"{str(folder)!r} has {size - 1} bytes, its seal {size}; ")
    image_id = next(image_id for image_id in IDS if Shard(1, 3).owns(image_id))
    assert refusal(FeatureStore(store).__getitem__, image_id) == message


def test_a_shard_replaced_after_sealing_is_named(store):
    folder = replace_shard(store, 1, ["x"])
    assert refusal(FeatureStore, store) == (
        f"{str(folder)!r} is not the shard that was sealed with the others; "
        'copy it again, or run "a2 extract --force"'
    )


def test_a_flipped_byte_is_found_and_its_shard_and_image_named(shards):
    folder = shards / Shard(1, 3).folder
    image_id = next(image_id for image_id in IDS if Shard(1, 3).owns(image_id))
    seal_shards(shards)
    flip_byte(folder / "data.mdb", make_regions(image_id).features.tobytes())
    assert FeatureStore(shards).verify() == []
    file, record, records = FeatureStore(shards).verify(data=True)
    assert file == f'{str(folder)!r} is not the file that was sealed; run "a2 extract --force"'
    assert record.startswith(f"record of image {image_id!r} is damaged: checksum ")
    assert records.startswith(f"{str(folder)!r} contains other records than were sealed; ")
    (shards / "seal.json").unlink()
    assert f"record of image {image_id!r} is damaged: checksum" in refusal(seal_shards, shards)
    assert not (shards / "seal.json").exists()


def test_a_wrong_digest_or_count_in_a_seal_is_found(store):
    remedy = 'run "a2 extract --force"'
    digest = change_seal(store, digest="0" * 64)["digest"]
    assert FeatureStore(store).verify() == []
    assert FeatureStore(store).verify(data=True) == [
        f"shards of {str(store)!r} contain other records than were sealed; {remedy}"
    ]
    change_seal(store, digest=digest, count=99)
    assert FeatureStore(store).verify() == [
        f"shards of {str(store)!r} have 12 images, their seal 99; {remedy}"
    ]
    shard = store / Shard(1, 3).folder
    count = change_seal(shard, count=99)["count"]
    assert FeatureStore(store).verify() == [
        f"{str(shard)!r} has {count} images, its seal 99; {remedy}"
    ]
