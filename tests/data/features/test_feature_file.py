"""Forms of a data file: LMDB, a tar of safetensors, Parquet."""

import pickle
import sys
import tarfile

import numpy as np
import pytest
from safetensors.numpy import load

from a2cap.data.errors import InputError
from a2cap.data.features.feature_file import open_file
from a2cap.data.features.join import seal_shards
from a2cap.data.features.parquet_file import ParquetFile
from a2cap.data.features.seal import DATA_FILES
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from tests.data.features.stores import flip_byte, make_regions, refusal, write_store
from tests.data.messages import message_of

pytest.importorskip("pyarrow")

IDS = [f"{number:012}" for number in range(18)] + ["cats/é.b", "dog"]


def written(path, ids=IDS, **options):
    """Write images with and without attributes, in reverse order."""
    with FeatureWriter(path, **options) as writer:
        for number, image_id in enumerate(reversed(ids)):
            writer.add(image_id, make_regions(image_id, attributes=number % 2 == 0))
        writer.seal()
    return FeatureStore(path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    return {form: written(folder / form, form=form) for form in DATA_FILES}


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_every_form_has_the_records_of_lmdb(stores, form):
    lmdb, store = stores["lmdb"], stores[form]
    assert {path.name for path in store.path.iterdir()} == {DATA_FILES[form], "seal.json"}
    assert store.digest == lmdb.digest and len(store) == len(lmdb) == len(IDS)
    assert list(store) == sorted(IDS) and "nobody" not in store and "dog" in store
    reopened = pickle.loads(pickle.dumps(store))
    for image_id in reversed(IDS):
        expected, found = vars(lmdb[image_id]), vars(reopened[image_id])
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(value, found[name], name)
            assert getattr(value, "dtype", None) == getattr(found[name], "dtype", None)
    assert store.verify(data=True) == []
    missing = f"no features for image 'x' in {str(store.path)!r}; run \"a2 extract\" first"
    assert refusal(lambda: store["x"]) == missing


def test_a_seal_of_lmdb_is_as_before_and_others_state_their_form(stores):
    texts = {form: (store.path / "seal.json").read_text() for form, store in stores.items()}
    assert "form" not in texts["lmdb"]
    assert '"form": "tar"' in texts["tar"]


def test_members_of_a_tar_are_safetensors_of_any_reader(stores):
    with tarfile.open(stores["tar"].path / "data.tar") as tar:
        assert tar.getnames() == [f"{image_id}.safetensors" for image_id in sorted(IDS)]
        arrays = load(tar.extractfile("dog.safetensors").read())
    np.testing.assert_array_equal(arrays["features"], stores["lmdb"]["dog"].features)


def test_images_of_one_row_group_are_read_at_once(stores, monkeypatch):
    store, groups = FeatureStore(stores["parquet"].path), []
    read = ParquetFile._read
    monkeypatch.setattr(
        ParquetFile, "_read", lambda file, group: groups.append(group) or read(file, group)
    )
    assert [len(store[image_id]) > 0 for image_id in store] == [True] * len(IDS)
    assert groups == [0, 1]


def test_parquet_has_lists_of_fixed_size(stores):
    from pyarrow import parquet

    schema = parquet.read_schema(stores["parquet"].path / "data.parquet")
    feature = schema.field("features").type.value_type
    assert (feature.list_size, str(feature.value_type)) == (8, "halffloat")


def test_shards_of_different_forms_are_one_store(tmp_path, stores):
    half = len(IDS) // 2
    ids = sorted(IDS)
    for number, (form, some) in enumerate((("tar", ids[:half]), ("parquet", ids[half:]))):
        written(tmp_path / f"shard-{number:05}-of-00002", some, form=form)
    assert seal_shards(tmp_path).count == len(IDS)
    assert FeatureStore(tmp_path)["dog"].width == 640


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_damage_is_found_in_every_form(tmp_path, form):
    path = tmp_path / form
    store = written(path, ["a", "b"], form=form, dtype="float32")
    file = path / DATA_FILES[form]
    whole = file.read_bytes()
    flip_byte(file, store["b"].features[0].tobytes())
    reopened = FeatureStore(path)
    assert reopened.verify() == []
    found = " ".join(reopened.verify(data=True))
    message = refusal(lambda: reopened["b"])
    assert message in found
    damaged = "record of image 'b' is damaged" if form == "tar" else f"{str(path)!r} is damaged: "
    assert message.startswith(damaged)
    for content in (bytes(len(whole)), b"x" * len(whole)):
        file.write_bytes(content)
        assert refusal(lambda: FeatureStore(path)["b"]).startswith(f"{str(path)!r} is damaged: ")
    file.write_bytes(whole[:-1])
    assert refusal(lambda: FeatureStore(path)["b"]) == (
        f"{str(path)!r} has {len(whole) - 1} bytes, its seal {len(whole)}; "
        'copy it again, or run "a2 extract --force"'
    )


def test_parquet_without_pyarrow_names_the_extra(tmp_path, stores, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    message = 'features as Parquet need pyarrow; install it with pip install "a2cap[parquet]"'
    assert message_of(FeatureStore, stores["parquet"].path, error=InputError) == message
    assert message_of(write_store, tmp_path / "new", ["a"], form="parquet") == message
    store = written(tmp_path / "new", ["b"])  # the images are kept, and sealed in another form
    assert len(store) == 2


@pytest.mark.parametrize("form", DATA_FILES)
def test_a_closed_file_is_opened_again_by_the_next_read(stores, form):
    file = open_file(stores[form].path)
    found = file.get(b"dog")
    file.close()
    assert found is not None and file.get(b"dog") == found
