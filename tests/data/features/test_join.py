"""A store of several shards: sealed and read as one, refused by name where they do not fit."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.errors import StoreError
from a2cap.data.features.join import seal_shards
from a2cap.data.features.shard import Shard
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import Regions

IDS = [f"{number:012d}" for number in range(12)]


def make_regions(image_id, width=8):
    draw = np.random.default_rng([ord(letter) for letter in image_id])
    count = int(draw.integers(1, 6))
    return Regions(
        boxes=draw.uniform(0, 100, (count, 4)).astype(np.float32),
        features=draw.normal(size=(count, width)).astype(np.float32),
        scores=draw.uniform(size=count).astype(np.float32),
        class_ids=draw.integers(0, 1600, count).astype(np.int32),
        attribute_ids=None,
        width=640,
        height=480,
    )


def write(path, ids, *, width=8, dtype="float32", sealed=True):
    with FeatureWriter(path, dtype=dtype) as writer:
        for image_id in ids:
            writer.add(image_id, make_regions(image_id, width))
        if sealed:
            writer.seal()


def write_shards(path, ids, count):
    for number in range(count):
        shard = Shard(number, count)
        write(path / shard.folder, [image_id for image_id in ids if shard.owns(image_id)])
    return path


@pytest.fixture
def shards(tmp_path):
    """Twelve images in three shards, not yet sealed together."""
    return write_shards(tmp_path / "features.lmdb", IDS, 3)


@pytest.fixture
def store(shards):
    seal_shards(shards)
    return shards


@settings(deadline=None, max_examples=10)
@given(
    ids=st.sets(st.text(min_size=1, max_size=20).filter(str.isprintable)), count=st.integers(1, 4)
)
def test_any_images_in_any_number_of_shards_read_as_one_store(tmp_path_factory, ids, count):
    folder = tmp_path_factory.mktemp("shards")
    write(folder / "whole", ids)
    whole = FeatureStore(folder / "whole")
    seal = seal_shards(write_shards(folder / "shards", ids, count))
    joined = FeatureStore(folder / "shards")
    assert list(joined) == list(whole) == sorted(ids)
    assert (joined.digest, len(joined)) == (whole.digest, len(whole))
    assert (joined.feature_width, joined.dtype) == (whole.feature_width, whole.dtype)
    assert len(seal.shards) == count
    assert joined.verify(data=True) == []
    for image_id in ids:
        np.testing.assert_array_equal(joined[image_id].features, whole[image_id].features)


def test_an_image_is_found_in_whatever_shard_it_lies(tmp_path):
    path = tmp_path / "s"
    for number in range(3):
        write(path / Shard(number, 3).folder, IDS[number::3])  # not as the digest of ids says
    seal_shards(path)
    store = FeatureStore(path)
    assert all(image_id in store for image_id in IDS)
    assert [store[image_id].features.shape for image_id in IDS] == [
        make_regions(image_id).features.shape for image_id in IDS
    ]
    assert "7" not in store and "" not in store
    store.require(IDS)
    with pytest.raises(StoreError, match="no features for image '7' in "):
        store["7"]
    with pytest.raises(StoreError, match=r"no features for 1 images in .*: '7'"):
        store.require([*IDS, "7"])


def test_shards_without_images_are_part_of_a_store(tmp_path):
    path = write_shards(tmp_path / "s", IDS[:1], 3)
    assert seal_shards(path).count == 1
    assert list(FeatureStore(path)) == IDS[:1]
    assert seal_shards(write_shards(tmp_path / "none", [], 2)).feature_width == 0


def test_a_pickled_store_of_shards_reads_on_and_so_does_a_forked_one(store):
    opened = FeatureStore(store)
    assert len(opened[IDS[0]]) == len(make_regions(IDS[0]))
    copy = pickle.loads(pickle.dumps(opened))
    assert len(copy[IDS[1]]) == len(make_regions(IDS[1]))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(opened) == IDS else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_shards_that_are_not_sealed_together_are_unfinished(shards):
    with pytest.raises(StoreError) as raised:
        FeatureStore(shards)
    assert str(raised.value) == (
        f'extraction into {str(shards)!r} is unfinished; run "a2 extract" again to resume it'
    )


def test_a_missing_shard_is_named_before_and_after_sealing(shards):
    kept = shutil.copytree(shards / Shard(1, 3).folder, shards.parent / "kept")
    message = (
        f"shards 1/3 of {str(shards)!r} are missing; "
        'copy them there, or run "a2 extract --shard" for each'
    )
    shutil.rmtree(shards / Shard(1, 3).folder)
    with pytest.raises(StoreError) as raised:
        seal_shards(shards)
    assert str(raised.value) == message
    shutil.copytree(kept, shards / Shard(1, 3).folder)
    seal_shards(shards)
    shutil.rmtree(shards / Shard(1, 3).folder)
    with pytest.raises(StoreError) as raised:
        FeatureStore(shards)
    assert str(raised.value) == message


def test_an_unfinished_shard_is_named(shards):
    folder = shards / Shard(2, 3).folder
    (folder / "seal.json").unlink()
    with pytest.raises(StoreError) as raised:
        seal_shards(shards)
    assert str(raised.value) == (
        f'shards 2/3 of {str(shards)!r} are unfinished; run "a2 extract --shard" for each'
    )


def test_shards_that_hold_one_image_twice_are_named_with_it(shards):
    shutil.rmtree(shards / Shard(2, 3).folder)
    twice = next(image_id for image_id in IDS if Shard(0, 3).owns(image_id))
    write(shards / Shard(2, 3).folder, [twice])
    with pytest.raises(StoreError) as raised:
        seal_shards(shards)
    assert str(raised.value) == (
        f"shards 0/3 and 2/3 of {str(shards)!r} overlap: both hold image {twice!r}; "
        "remove the one that does not belong there"
    )


def test_shards_of_several_numbers_are_refused(store):
    write(store / Shard(0, 2).folder, ["x"])
    with pytest.raises(StoreError, match="holds shards of 2 and of 3, which overlap; keep those"):
        FeatureStore(store)


@pytest.mark.parametrize(
    ("other", "said"), [({"width": 16}, "16 float32"), ({"dtype": "float16"}, "8 float16")]
)
def test_shards_that_were_not_made_alike_are_named(shards, other, said):
    ids = list(FeatureStore(shards / Shard(1, 3).folder))
    shutil.rmtree(shards / Shard(1, 3).folder)
    write(shards / Shard(1, 3).folder, ids, **other)
    with pytest.raises(StoreError) as raised:
        seal_shards(shards)
    assert str(raised.value) == (
        f"shards 2/3 and 1/3 of {str(shards)!r} are not alike: features of 8 float32 and of "
        f"{said}; extract all with one extractor"
    )


def test_a_shard_of_another_size_is_refused_by_its_name(store):
    folder = store / Shard(1, 3).folder
    size = (folder / "data.mdb").stat().st_size
    os.truncate(folder / "data.mdb", size - 1)
    message = (
        f"{str(folder)!r} has {size - 1} bytes, its seal says {size}; "
        'copy it again, or run "a2 extract --force"'
    )
    image_id = next(image_id for image_id in IDS if Shard(1, 3).owns(image_id))
    with pytest.raises(StoreError) as raised:
        FeatureStore(store)[image_id]
    assert str(raised.value) == message
    assert FeatureStore(store).verify() == [message]


def test_a_shard_that_was_made_anew_by_itself_is_refused_by_its_name(store):
    folder = store / Shard(1, 3).folder
    shutil.rmtree(folder)
    write(folder, ["x"])
    with pytest.raises(StoreError) as raised:
        FeatureStore(store)
    assert str(raised.value) == (
        f"{str(folder)!r} is not the shard that was sealed with the others; "
        'copy it again, or run "a2 extract --force"'
    )


def test_shards_of_another_number_than_were_sealed_are_refused(store):
    for number in range(3):
        shutil.rmtree(store / Shard(number, 3).folder)
    write_shards(store, IDS, 2)
    with pytest.raises(StoreError) as raised:
        FeatureStore(store)
    assert str(raised.value) == (
        f"{str(store)!r} holds 2 shards, its seal says 3; "
        'copy it again, or run "a2 extract --force"'
    )


def flip_byte_of(file, content):
    data = bytearray(file.read_bytes())
    data[data.index(content) + 10] ^= 1
    file.write_bytes(data)


def test_a_flipped_byte_is_found_with_its_shard_and_image(shards):
    folder = shards / Shard(1, 3).folder
    image_id = next(image_id for image_id in IDS if Shard(1, 3).owns(image_id))
    seal_shards(shards)
    flip_byte_of(folder / "data.mdb", make_regions(image_id).features.tobytes())
    assert FeatureStore(shards).verify() == []
    file, record, records = FeatureStore(shards).verify(data=True)
    assert file == f'{str(folder)!r} is not the file that was sealed; run "a2 extract --force"'
    assert record.startswith(f"record of image {image_id!r} is damaged: checksum ")
    assert records.startswith(f"{str(folder)!r} holds other records than were sealed; ")
    (shards / "seal.json").unlink()
    with pytest.raises(StoreError, match=f"record of image {image_id!r} is damaged: checksum"):
        seal_shards(shards)
    assert not (shards / "seal.json").exists()


def test_a_digest_that_is_not_that_of_the_shards_is_found(store):
    seal = json.loads((store / "seal.json").read_text())
    (store / "seal.json").write_text(json.dumps({**seal, "digest": "0" * 64}))
    assert FeatureStore(store).verify() == []
    assert FeatureStore(store).verify(data=True) == [
        f'shards of {str(store)!r} hold other records than were sealed; run "a2 extract --force"'
    ]


def test_a_count_that_is_not_that_of_a_shard_is_found(store):
    folder = store / Shard(1, 3).folder
    seal = json.loads((folder / "seal.json").read_text())
    (folder / "seal.json").write_text(json.dumps({**seal, "count": 99}))
    assert FeatureStore(store).verify() == [
        f'{str(folder)!r} holds {seal["count"]} images, its seal says 99; run "a2 extract --force"'
    ]


def test_a_count_that_is_not_that_of_all_shards_is_found(store):
    seal = json.loads((store / "seal.json").read_text())
    (store / "seal.json").write_text(json.dumps({**seal, "count": 99}))
    assert FeatureStore(store).verify() == [
        f'shards of {str(store)!r} hold 12 images, their seal says 99; run "a2 extract --force"'
    ]
