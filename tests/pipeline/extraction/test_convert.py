"""Conversion of features to every format and back."""

import base64
import io
import json
import os
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import h5py
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load

from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.formats import writers
from a2cap.data.features.formats.feature_source import FeatureSource, ImageFeatures, ReadHints
from a2cap.data.features.formats.writers import FORMATS, write_tsv
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter, StoreWriteError
from a2cap.data.files import expansion
from a2cap.pipeline.extraction import open_features as opening
from a2cap.pipeline.extraction.convert import convert
from a2cap.pipeline.extraction.open_features import open_features
from tests.data.features import stores
from tests.data.messages import message_of, written
from tests.data.sources.samples import write_parquet
from tests.experiments import a2

THIRD_PARTY = [form for form in FORMATS if form != "a2"]
CAFFE_CHECKSUM = "717436cd669afb6c327f021ad265a88c168df36abbe1294d06d441a7157d232e"
"""Of the ten published images, as the reader of TSV made it before the table of layouts."""
IDS = ("000000000009", "000000000025", "000000132417")


def make_regions(seed):
    regions = stores.make_regions(str(seed), count=3 + seed, attributes=True)
    return replace(regions, width=120, height=100)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "features"
    with FeatureWriter(path, dtype="float32") as writer:
        for seed, image_id in enumerate(IDS):
            writer.add(image_id, make_regions(seed))
        writer.seal()
    return path


@pytest.fixture
def sizes(tmp_path):
    path = tmp_path / "captions.json"
    images = [{"file_name": f"COCO_x_{name}.jpg", "width": 120, "height": 100} for name in IDS]
    path.write_text(json.dumps({"images": images}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("form", THIRD_PARTY)
def test_boxes_and_features_survive_a_round_trip_through_every_format(store, sizes, form, tmp_path):
    there = convert(store, tmp_path / "target", form=form, dtype="float32")
    back = convert(tmp_path / "target", tmp_path / "back", form="a2", dtype="float32", sizes=sizes)
    assert there.checksum == back.checksum
    assert (there.count, there.regions, there.skipped) == (3, (3, 5), [])
    original, result = FeatureStore(store), FeatureStore(tmp_path / "back")
    assert list(result) == list(IDS)
    for image_id in IDS:
        assert np.array_equal(original[image_id].boxes, result[image_id].boxes)
        assert np.array_equal(original[image_id].features, result[image_id].features)
        assert (result[image_id].width, result[image_id].height) == (120, 100)
    assert not list(tmp_path.glob("*.partial"))


def test_the_columns_of_lxmert_preserve_classes_scores_and_attributes(store, tmp_path):
    convert(store, tmp_path / "a.tsv", form="lxmert", prefix="COCO_val2014_")
    assert (tmp_path / "a.tsv").read_bytes().startswith(b"COCO_val2014_000000000009\t100\t120\t")
    convert(tmp_path / "a.tsv", tmp_path / "back", form="a2", dtype="float32")
    assert FeatureStore(tmp_path / "back").digest == FeatureStore(store).digest


def test_values_that_a_format_lacks_are_marked_as_unknown(store, tmp_path):
    convert(store, tmp_path / "a.tsv", form="caffe")
    item = next(iter(open_features(tmp_path / "a.tsv")))
    assert isinstance(item, ImageFeatures)
    assert set(item.regions.class_ids) == {-1}
    assert set(item.regions.scores) == {0}
    assert item.regions.attribute_ids is None


def test_the_probabilities_of_m2_preserve_classes_and_scores(store, sizes, tmp_path):
    convert(store, tmp_path / "a.hdf5", form="m2")
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert "9_cls_prob" in file
    convert(tmp_path / "a.hdf5", tmp_path / "back", form="a2", dtype="float32", sizes=sizes)
    for image_id in IDS:
        original, result = FeatureStore(store)[image_id], FeatureStore(tmp_path / "back")[image_id]
        assert np.array_equal(original.class_ids, result.class_ids)
        np.testing.assert_allclose(original.scores, result.scores)


def test_the_checksum_of_half_precision_is_that_of_the_rounded_features(store, tmp_path):
    made = convert(store, tmp_path / "half", form="a2")
    assert FeatureStore(tmp_path / "half").facts.dtype == "float16"
    assert made.checksum != convert(store, tmp_path / "whole", form="a2", dtype="float32").checksum


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_an_interrupted_conversion_is_resumed(store, form, tmp_path, monkeypatch):
    expected = convert(store, tmp_path / "at once", form=form, dtype="float32")
    whole = FeatureSource.__iter__

    def interrupted(self):
        for number, item in enumerate(whole(self)):
            if number == 2:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(FeatureSource, "__iter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(store, tmp_path / "target", form=form, dtype="float32")
    monkeypatch.setattr(FeatureSource, "__iter__", whole)
    assert convert(store, tmp_path / "target", form=form, dtype="float32") == expected


@pytest.mark.parametrize("form", ["caffe", "tar"])
def test_what_an_interrupted_conversion_of_another_source_left_is_not_written(
    store, form, tmp_path
):
    with FeatureWriter(tmp_path / "target.partial", dtype="float32") as left:
        left.add("holiday/beach", make_regions(0))
    assert convert(store, tmp_path / "target", form=form, dtype="float32").count == len(IDS)
    image_ids = [item.image_id for item in open_features(tmp_path / "target")]
    assert image_ids == list(IDS)
    assert not (tmp_path / "target.partial").exists()


@pytest.mark.usefixtures("tolerant")
def test_corrupt_lines_are_listed_and_the_others_converted(store, tmp_path):
    convert(store, tmp_path / "a.tsv", form="caffe")
    first, second, third = (tmp_path / "a.tsv").read_bytes().splitlines(keepends=True)
    columns = second.split(b"\t")
    short = b"\t".join([*columns[:5], base64.b64encode(b"1234") + b"\n"])
    broken = b"\t".join([*columns[:4], b"A", columns[5]])
    few = b"1\t2\n"
    narrow = b"\t".join([*third.split(b"\t")[:5], base64.b64encode(b"\0" * 60) + b"\n"])
    (tmp_path / "a.tsv").write_bytes(first + short + broken + few + first + narrow + third[:-9])
    made = convert(tmp_path / "a.tsv", tmp_path / "store", form="a2")
    assert made.count == 1
    assert [(item.image_id, item.reason) for item in made.skipped] == [
        (IDS[1], "line 2: features has 4 bytes, which do not fit 4 boxes"),
        (
            IDS[1],
            "line 3: Invalid base64-encoded string: number of data characters (1) cannot be 1 more "
            "than a multiple of 4",
        ),
        ("line 4", "2 of 6 columns"),
        (IDS[0], "duplicate of image '000000000009'; keep one"),
        (IDS[2], "3 features per region, not 8"),
        (IDS[2], "line 7: features has 156 bytes, which do not fit 5 boxes"),
    ]
    listed = (tmp_path / "store.skipped.jsonl").read_text().splitlines()
    assert json.loads(listed[0]) == {"id": IDS[1], "reason": made.skipped[0].reason}


def test_a_tsv_is_read_once_for_its_count_and_once_for_its_images(store, tmp_path, monkeypatch):
    convert(store, tmp_path / "a.tsv", form="caffe")
    openings, opened = [], Path.open

    def counted(path, *mode, **options):
        if path == tmp_path / "a.tsv":
            openings.append(mode)
        return opened(path, *mode, **options)

    monkeypatch.setattr(Path, "open", counted)
    assert convert(tmp_path / "a.tsv", tmp_path / "store", form="a2").count == len(IDS)
    assert len(openings) == 4  # and for its kind and its columns


@pytest.mark.usefixtures("tolerant")
def test_broken_npz_files_are_listed(store, tmp_path):
    convert(store, tmp_path / "npz", form="milvlg")
    (tmp_path / "npz" / "000000000009.npz").write_bytes(b"PK no zip")
    np.savez(
        tmp_path / "npz" / "000000000025.npz",
        x=np.zeros((2, 8)),
        bbox=np.zeros((3, 4)),
        image_w=1,
        image_h=1,
    )
    np.savez(tmp_path / "npz" / "7.npz", x=np.zeros((2, 8)))
    made = convert(tmp_path / "npz", tmp_path / "store", form="a2")
    assert made.count == 1
    reasons = {item.image_id: item.reason for item in made.skipped}
    assert reasons.keys() == {"000000000007", *IDS[:2]}
    assert reasons["000000000025"] == (
        "boxes of shape (3, 4) do not fit features of shape (2, 8); create the file again"
    )


@pytest.mark.usefixtures("tolerant")
def test_one_image_that_the_target_cannot_contain_is_listed(store, tmp_path):
    convert(store, tmp_path / "npz", form="milvlg")
    good = dict(np.load(tmp_path / "npz" / f"{IDS[0]}.npz"))
    changes = {
        "nan.npz": {"x": np.full((3, 8), np.nan)},
        "large.npz": {"x": np.full((3, 8), 70_000.0)},
        "narrow.npz": {"x": np.zeros((3, 7))},
        "outside.npz": {"bbox": np.array([[0, 0, 5, 5], [0, 0, 122, 9], [0, 0, 5, 5]])},
        "9.npz": {},
    }
    for name, change in changes.items():
        np.savez(tmp_path / "npz" / name, **{**good, **change})
    made = convert(tmp_path / "npz", tmp_path / "store", form="a2")
    assert made.count == 3
    assert {item.image_id: item.reason for item in made.skipped} == {
        "nan": "feature of image 'nan' is not finite: nan; check the extractor's weights and the "
        "image",
        "large": "feature of image 'large' exceeds float16: 70000.0 > 65504; "
        "store features as float32",
        "narrow": "7 features per region, not 8",
        "outside": "box 1 is outside the image of 120 x 100 pixels: [0.0, 0.0, 122.0, 9.0]; "
        "check the sizes of the images",
        IDS[0]: f"duplicate of image {IDS[0]!r}; keep one",
    }


def test_more_unusable_images_than_the_limit_are_refused(store, tmp_path):
    convert(store, tmp_path / "a.tsv", form="caffe")
    with (tmp_path / "a.tsv").open("ab") as file:
        file.write(b"1\t2\n" * 11)
    message = message_of(convert, tmp_path / "a.tsv", tmp_path / "store", form="a2")
    assert message.startswith(
        "2 of 14 images cannot be used, at most 1 may be left out: 'line 4' (2 of 6 columns), "
    )


def test_a_full_disk_is_not_an_unusable_image(store, tmp_path, monkeypatch):
    def refuse(writer):
        raise StoreWriteError("cannot write: the disk is full")

    monkeypatch.setattr(FeatureWriter, "flush", refuse)
    monkeypatch.setattr(FeatureWriter, "add", lambda self, *given: refuse(self))
    with pytest.raises(StoreWriteError, match="the disk is full"):
        convert(store, tmp_path / "target", form="a2")


INSIDE = "9_features is not a dataset inside the file; copy its values into the file"
CLAIMS = "9_features claims 32,000,000,000 bytes, few of them are stored"


def virtual_dataset(file, name, other):
    layout = h5py.VirtualLayout((3, 8), "f4")
    layout[:] = h5py.VirtualSource(other, "25_features", (3, 8))
    file.create_virtual_dataset(name, layout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replace_by", "reason"),
    [
        (lambda h5, name, other: h5.update({name: h5py.ExternalLink(other, "25_boxes")}), INSIDE),
        (lambda h5, name, other: h5.update({name: h5py.SoftLink("/25_features")}), INSIDE),
        (virtual_dataset, INSIDE),
        (
            lambda h5, name, other: h5.create_dataset(name, 24, "f4", external=[(other, 0, 96)]),
            INSIDE,
        ),
        (lambda h5, name, other: h5.create_group(name), INSIDE),
        (lambda h5, name, other: h5.create_dataset(name, (10**9, 8), "f4", chunks=(1, 8)), CLAIMS),
    ],
    ids=["external link", "soft link", "virtual", "external storage", "group", "huge"],
)
def test_data_outside_of_the_file_is_not_read(store, sizes, tmp_path, replace_by, reason):
    convert(store, tmp_path / "m2", form="m2")
    shutil.copyfile(tmp_path / "m2", tmp_path / "other")
    with h5py.File(tmp_path / "m2", "r+") as file:
        del file["9_features"]
        replace_by(file, "9_features", str(tmp_path / "other"))
    [skipped] = convert(tmp_path / "m2", tmp_path / "back", form="a2", sizes=sizes).skipped
    assert (skipped.image_id, skipped.reason) == (IDS[0], reason)


@pytest.mark.usefixtures("tolerant")
def test_npz_that_expands_or_claims_too_much_is_listed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(expansion, "expansion_limit", lambda stored: 100_000)
    convert(store, tmp_path / "npz", form="milvlg")
    bomb = tmp_path / "npz" / f"{IDS[0]}.npz"
    with ZipFile(bomb, "w", ZIP_DEFLATED) as archive:
        archive.writestr("bbox.npy", bytes(100_001))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**13, 4)}
    )
    with ZipFile(tmp_path / "npz" / f"{IDS[1]}.npz", "w") as archive:
        archive.writestr("bbox.npy", header.getvalue())
    made = convert(tmp_path / "npz", tmp_path / "store", form="a2")
    assert [item.reason for item in made.skipped] == [
        "bbox.npy expands to 100,001 bytes",
        "cannot reshape array of size 0 into shape (10000000000000,4)",
    ]


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_damaged_tars_and_parquet_files_lose_no_image_silently(store, tmp_path, form):
    pytest.importorskip("pyarrow")
    convert(store, tmp_path / "x", form=form, dtype="float32")
    whole = (tmp_path / "x").read_bytes()
    features = FeatureStore(store)[IDS[1]].features.tobytes()
    position = whole.index(features[:64])
    (tmp_path / "x").write_bytes(whole[:position] + b"\0" + whole[position + 1 :])
    if form == "tar":
        [skipped] = convert(tmp_path / "x", tmp_path / "back", form="a2").skipped
        assert skipped.image_id == IDS[1]
        assert skipped.reason.startswith(f"record of image {IDS[1]!r} is damaged: checksum ")
    else:
        message = message_of(convert, tmp_path / "x", tmp_path / "back", form="a2")
        assert message.startswith(f"cannot read {str(tmp_path / 'x')!r}: ")
    for cut in (len(whole) // 2, len(whole) // 3):
        (tmp_path / "x").write_bytes(whole[:cut])
        message = message_of(convert, tmp_path / "x", tmp_path / "again", form="a2")
        assert repr(str(tmp_path / "x")) in message and message.endswith("; copy it again")


def test_members_of_a_tar_are_safetensors_of_any_reader(store, tmp_path):
    convert(store, tmp_path / "x.tar", form="tar", dtype="float32")
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert tar.getnames() == [f"{image_id}.safetensors" for image_id in IDS]
        arrays = load(tar.extractfile(f"{IDS[0]}.safetensors").read())
    np.testing.assert_array_equal(arrays["features"], FeatureStore(store)[IDS[0]].features)


def test_parquet_has_lists_of_fixed_size(store, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    convert(store, tmp_path / "x.parquet", form="parquet")
    feature = parquet.read_schema(tmp_path / "x.parquet").field("features").type.value_type
    assert (feature.list_size, str(feature.value_type)) == (8, "halffloat")


def test_parquet_without_pyarrow_names_the_extra(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert message_of(convert, store, tmp_path / "x", form="parquet") == (
        "'x' needs pyarrow; install it with pip install \"a2cap[parquet]\""
    )


def test_a_pickle_in_npz_is_not_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path / "ran").touch, ()

    (tmp_path / "npz").mkdir()
    info = np.array(Evil(), dtype=object)
    np.savez(tmp_path / "npz" / "1.npz", bbox=info, x=np.zeros((1, 8)), image_w=9, image_h=9)
    with pytest.raises(InputError, match=r"no image of .* can be read, first '000000000001': "):
        convert(tmp_path / "npz", tmp_path / "store", form="a2")
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("tolerant")
def test_unknown_image_sizes_are_requested(store, tmp_path):
    convert(store, tmp_path / "npz", form="att-box")
    assert message_of(convert, tmp_path / "npz", tmp_path / "store", form="a2") == (
        f"no image of {str(tmp_path / 'npz')!r} can be read, first '000000132417': size of image "
        "'000000132417' is unknown; name the folder of the images, or a COCO file that lists "
        "it, with --sizes or data.sizes"
    )


def test_sizes_that_are_no_numbers_are_refused(tmp_path):
    path = written(tmp_path, {"images": [{"file_name": "1.jpg", "width": "wide", "height": 3}]})
    assert message_of(opening.hints_with_sizes, path, path, ReadHints()) == (
        "'x.json' lacks file_name, width or height of an image; "
        "name a COCO captions, instances or image-info file"
    )


def test_sizes_of_a_folder_are_those_of_upright_images(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(tmp_path / "1.jpg", exif=exif)
    assert opening.hints_with_sizes(tmp_path, tmp_path, ReadHints()).sizes("000000000001") == (6, 8)


def test_a_table_without_features_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    write_parquet(tmp_path / "a.parquet", image_id=["1"], caption=["a dog"])
    assert message_of(open_features, tmp_path / "a.parquet") == (
        f"{str(tmp_path / 'a.parquet')!r} has no region features: its columns are image_id, "
        "caption; name a file that a2 convert wrote"
    )


def test_ids_that_a_format_cannot_store_are_refused(tmp_path):
    with FeatureWriter(tmp_path / "store") as writer:
        writer.add("holiday/beach", make_regions(0))
        writer.seal()
    not_a_number = "image id 'holiday/beach' is not a number, which '{}' needs; convert to another"
    in_a_folder = "image 'holiday/beach' is in a subfolder, which '{}' cannot contain; convert to "
    refused = dict.fromkeys(("caffe", "m2", "att-box"), not_a_number) | {"milvlg": in_a_folder}
    for form, message in refused.items():
        with pytest.raises(InputError, match=message.format(form)):
            convert(tmp_path / "store", tmp_path / form, form=form)
    convert(tmp_path / "store", tmp_path / "e", form="lxmert")
    convert(tmp_path / "e", tmp_path / "back", form="a2")
    assert list(FeatureStore(tmp_path / "back")) == ["holiday/beach"]


def test_an_existing_target_is_never_overwritten(store, tmp_path):
    (tmp_path / "a.tsv").write_text("precious")
    for target in (tmp_path / "a.tsv", store):
        assert message_of(convert, store, target, form="caffe") == (
            f"{str(target)!r} already exists; name another path, or remove it"
        )
    assert (tmp_path / "a.tsv").read_text() == "precious"


@pytest.mark.parametrize("form", ["a2", "caffe", "milvlg"])
def test_a_finished_conversion_is_up_to_date_until_anything_changes(store, tmp_path, form):
    target = tmp_path / "out"
    first, again = (a2("convert", store, target, "--to", form) for _ in range(2))
    assert (again.exit_code, again.stdout) == (0, f"up to date: {first.stdout}")
    exists = f"{str(target)!r} already exists; name another path, or remove it"
    assert message_of(convert, store, target, form=form, prefix="x") == exists
    file = max(path for path in (target, *target.rglob("*")) if path.is_file())
    for changed in (store / "data.mdb", file):
        assert not convert(store, target, form=form).ran
        before = changed.stat().st_mtime_ns
        os.utime(changed, ns=(before, before + 1))
        assert message_of(convert, store, target, form=form) == exists
        os.utime(changed, ns=(before, before))
    (tmp_path / "out.conversion.json").write_text("{")
    assert message_of(convert, store, target, form=form) == exists


def test_a_source_of_an_unknown_format_is_refused(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    assert message_of(convert, path, tmp_path / "store", form="a2") == (
        f"no region features at {str(path)!r}; name a store, a TSV or HDF5 file, a folder of "
        "npz, or another layout of docs/guide/features.md"
    )
    path = written(tmp_path, "a\tb\n", name="b")
    assert message_of(convert, path, tmp_path / "store", form="a2") == (
        "first line of 'b' has 2 columns, not 6 (caffe), 7 (vilbert), 8 (vl-bert), 10 (lxmert); "
        "name a file of one of them, or add a first line with the names of the columns"
    )
    for content, kind in (("", "empty"), ("{", "a file of an unknown kind")):
        path = written(tmp_path, content, name="c")
        assert message_of(convert, path, tmp_path / "store", form="a2").startswith(
            f"'c' is {kind}, or a TSV of 1 column, not 6 (caffe), 7 (vilbert), "
        )


def test_the_result_is_compared_with_the_source(store, tmp_path, monkeypatch):
    def write_moved(path, images, **options):
        moved = (replace(image.regions, boxes=image.regions.boxes + 1) for image in images)
        write_tsv(path, map(ImageFeatures, IDS, moved), **options)

    monkeypatch.setattr(writers, "write_tsv", write_moved)
    assert message_of(convert, store, tmp_path / "a.tsv", form="caffe", error=StoreError) == (
        f"{str(tmp_path / 'a.tsv')!r} differs from the source: 3 images of 3; "
        "remove it and convert again"
    )


def test_the_command_prints_the_counts_and_the_checksum(store, tmp_path):
    target = tmp_path / "half"
    answer = a2("convert", store, target)
    assert answer.stdout.splitlines()[2] == (
        f"next: a2 run -c configs/a2-from-features.yaml --set data.features={target} "
        "--set data.annotations=dataset_coco.json"
    )
    target = tmp_path / "a.tsv"
    answer = a2("convert", store, target, "--to", "caffe", code=0)
    first, second = answer.stdout.splitlines()
    assert first == f"3 images with 3 to 5 regions of 8 numbers in {target}"
    assert second == f"content: {convert(store, tmp_path / 'b.tsv', form='caffe').checksum}"


def test_the_command_names_the_list_of_skipped_images(store, tmp_path):
    convert(store, tmp_path / "a.tsv", form="caffe")
    with (tmp_path / "a.tsv").open("ab") as file:
        file.write(b"1\t2\n")
    target = tmp_path / "store"
    answer = a2("convert", tmp_path / "a.tsv", target, code=3)
    assert answer.stderr.endswith(f"a2: 1 skipped, listed in {target}.skipped.jsonl\n")


@pytest.fixture
def published():
    """Return the folder of the ten images of caffe."""
    folder = Path(__file__).parents[3].parent / "shared" / "reference" / "caffe_features"
    if not folder.is_dir():
        pytest.skip("the reference features are not beside the checkout")
    return folder


@pytest.mark.slow
@pytest.mark.shared
def test_published_features_are_preserved_bit_for_bit(published, tmp_path):
    tsv = published / "train2014_obj36.tsv"
    made = convert(tsv, tmp_path / "store", form="a2", dtype="float32")
    assert (made.count, made.regions, made.skipped) == (10, (36, 36), [])
    back = convert(tmp_path / "store", tmp_path / "a.tsv", form="lxmert", prefix="COCO_train2014_")
    assert back.checksum == made.checksum
    columns = [line.split(b"\t") for line in sorted(tsv.read_bytes().splitlines())]
    written = [line.split(b"\t") for line in sorted((tmp_path / "a.tsv").read_bytes().splitlines())]
    for theirs, original in zip(columns, written, strict=True):
        kept = [*range(5), 5, 7, 8, 9]  # the confidence of attributes is not stored
        assert [theirs[i] for i in kept] == [original[i] for i in kept]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("form", FORMATS)
def test_published_features_are_equal_after_every_format(published, form, tmp_path):
    tsv, sizes = published / "train2014_obj36.tsv", published / "images"
    there = convert(tsv, tmp_path / "there", form=form, dtype="float32", sizes=sizes)
    back = convert(tmp_path / "there", tmp_path / "back", form="a2", dtype="float32", sizes=sizes)
    assert (there.count, there.regions, there.width, there.skipped) == (10, (36, 36), 2048, [])
    assert back.checksum == there.checksum == CAFFE_CHECKSUM


@pytest.fixture
def relations(tmp_path):
    """Write relations of two of the three images."""
    path = tmp_path / "relations.json"
    images = {
        name: {"regions": 3 + seed, "relations": [[0, 1, 2], [2, 0, 1]][:seed]}
        for seed, name in enumerate(IDS[:2])
    }
    path.write_text(json.dumps({"labels": 2, "images": images}))
    return path


def test_relations_are_added_and_an_image_without_them_is_skipped(store, relations, tmp_path):
    target = tmp_path / "related"
    # of 3 images, one may be skipped
    answer = a2("convert", store, target, "--relations", relations, code=3)
    assert answer.stdout.splitlines()[1] == "relations: 1"
    assert json.loads((tmp_path / "related.skipped.jsonl").read_text()) == {
        "id": IDS[2],
        "reason": f"no relations of the image in {str(relations)!r}",
    }
    assert FeatureStore(target)[IDS[1]].relations.tolist() == [[0, 1, 2]]
    assert FeatureStore(target)[IDS[0]].relations.shape == (0, 3)
    for form in ("tar", "parquet"):
        there = convert(target, tmp_path / form, form=form)
        back = convert(tmp_path / form, tmp_path / f"{form}-back", form="a2")
        assert there.checksum == back.checksum
        assert FeatureStore(tmp_path / f"{form}-back").digest == FeatureStore(target).digest
    again = tmp_path / "again.json"
    for _ in range(2):
        answer = a2("convert", target, again, "--to", "relations")
    assert answer.stderr == f"a2: {str(again)!r} already exists; name another path, or remove it\n"
    assert json.loads(again.read_text()) == json.loads(relations.read_text())


def test_relations_of_other_regions_end_the_conversion(store, relations, tmp_path):
    content = json.loads(relations.read_text())
    content["images"][IDS[0]]["regions"] = 9
    relations.write_text(json.dumps(content))
    assert message_of(convert, store, tmp_path / "related", form="a2", relations=relations) == (
        f"relations of image {IDS[0]!r} in {str(relations)!r} are of 9 regions, the features have "
        "3; predict them for the stored regions"
    )
    assert message_of(convert, store, tmp_path / "x", form="m2", relations=relations) == (
        "m2 cannot contain relations; convert to a2, tar or parquet, or leave out --relations"
    )
