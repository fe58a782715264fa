"""Every published layout of region features is recognised by content and read alike."""

import base64
import codecs
import gzip
import io
import pickle
import sys
import tarfile
import zlib
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import h5py
import lmdb
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from a2cap.data.errors import A2Error
from a2cap.data.features.formats import lmdb_records
from a2cap.data.features.formats.feature_source import ReadHints
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.extraction.convert import content_digest, convert
from a2cap.pipeline.extraction.open_features import open_features
from tests.data.messages import message_of

pytestmark = pytest.mark.usefixtures("tolerant")

IDS = ("000000000009", "000000000025", "000000132417")
SIZE = (120, 90)
SIZES = ReadHints(dict.fromkeys(IDS, SIZE).get)


def features_of(image_id):
    return np.random.default_rng(int(image_id)).random((6, 32), np.float32)


def boxes_of(image_id):
    corners = np.random.default_rng(int(image_id)).uniform(0, 89, (6, 2, 2)).astype(np.float32)
    return np.sort(corners, axis=1).reshape(6, 4)


def read(path, hints=SIZES):
    """Return the regions of each image; fail for a skipped one."""
    items = list(open_features(path, hints))
    skipped = [item for item in items if isinstance(item, SkippedItem)]
    assert not skipped, skipped
    return {item.image_id: item.regions for item in items}


def assert_read(path, hints=SIZES, *, atol=0.0, ids=IDS):
    images = read(path, hints)
    assert sorted(images) == sorted(ids)
    for image_id, regions in images.items():
        np.testing.assert_array_equal(regions.features, features_of(image_id))
        np.testing.assert_allclose(regions.boxes, boxes_of(image_id), atol=atol)
        assert (regions.width, regions.height) == SIZE


def text(values, kind="<f4"):
    return base64.b64encode(np.asarray(values, kind).tobytes()).decode()


def record(image_id):
    """Return an image as ViLBERT has it in LMDB."""
    return {
        "image_id": str(int(image_id)),
        "image_w": SIZE[0],
        "image_h": SIZE[1],
        "num_boxes": 6,
        "boxes": boxes_of(image_id),
        "features": features_of(image_id),
    }


def mmf(image_id):
    sides = {"image_width": SIZE[0], "image_height": SIZE[1]}
    return {"bbox": boxes_of(image_id), "num_boxes": np.int64(6), "objects": np.arange(6), **sides}


def write_tsv(path, rows, columns, *, header=False, quoted=False):
    lines = ["\t".join(columns)] if header else []
    for row in rows:
        fields = [text(v) if isinstance(v, np.ndarray) else str(v) for v in map(row.get, columns)]
        lines.append(
            "\t".join(f"b'{cell}'" if quoted and len(cell) > 99 else cell for cell in fields)
        )
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


CAFFE = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
VL_BERT = (CAFFE[0], CAFFE[2], CAFFE[1], *CAFFE[3:], "cls_prob", "classes")


def tsv(folder, name="a.tsv", ids=IDS, columns=CAFFE, **options):
    rows = [{**record(i), "cls_prob": np.ones((6, 2)), "classes": np.ones(6)} for i in ids]
    return write_tsv(folder / name, rows, columns, **options)


def npz(path, image_id, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {key: value for key, value in record(image_id).items() if key != "image_id"}
    np.savez(path, **{**fields, **arrays})


def padded(image_id, rows=10):
    arrays = {"features": features_of(image_id), "boxes": boxes_of(image_id)}
    return {key: np.pad(value, ((0, rows - 6), (0, 0))) for key, value in arrays.items()}


def write_lmdb(path, values):
    with lmdb.open(str(path), map_size=1 << 24) as environment, environment.begin(write=True) as to:
        for key, value in values.items():
            to.put(key.encode(), value)
    return path


def packed(image_id):
    msgpack = pytest.importorskip("msgpack")
    relative = boxes_of(image_id) / np.array([*SIZE, *SIZE], np.float32)
    norm_bb = np.concatenate([relative, relative[:, 2:] - relative[:, :2]], axis=1)

    def encode(array):
        kind = {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape}
        return {**kind, b"data": array.tobytes()}

    return msgpack.packb(
        {"features": encode(features_of(image_id)), "norm_bb": encode(norm_bb.astype("f4"))}
    )


def npz_bytes(image_id):
    file = io.BytesIO()
    np.savez(file, **record(image_id))
    return file.getvalue()


def save_columns(path, *, ranges, index=False, **more):
    features, boxes = (np.stack([make(i) for i in IDS]) for make in (features_of, boxes_of))
    with h5py.File(path, "w") as file:
        if ranges:
            features, boxes = features.reshape(-1, 32), boxes.reshape(-1, 4)
            file["pos_boxes"] = np.array([[0, 6], [6, 12], [12, 18]])
        file["image_features"], file["image_bb"] = features, boxes
        for name, value in more.items():
            file[name] = value
    if index:
        rows = {int(image_id): row for row, image_id in enumerate(IDS)}
        path.with_name("train_imgid2idx.pkl").write_bytes(pickle.dumps(rows))
    return path


def save_groups(path):
    with h5py.File(path, "w") as file:
        for image_id in IDS:
            group = file.create_group(image_id)
            group["features"], group["boxes"] = features_of(image_id), boxes_of(image_id)
            group.attrs["width"], group.attrs["height"] = SIZE
    return path


def save_flat(path, sizes=True):
    with h5py.File(path, "w") as file:
        for image_id in IDS:
            file[f"{int(image_id)}_features"] = features_of(image_id)
            file[f"{int(image_id)}_boxes"] = boxes_of(image_id)
            file[f"{int(image_id)}_mask"] = np.zeros((6, 49))
            if sizes:
                file[f"{int(image_id)}_size"] = np.array([SIZE])
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quoted": True},  # b'...', as Python prints bytes
        {"columns": (*CAFFE, "cls_prob")},
        {"columns": VL_BERT},
        {"header": True},
        {"header": True, "columns": (CAFFE[5], CAFFE[2], CAFFE[4], *CAFFE[:2], CAFFE[3])},
    ],
    ids=["caffe", "quoted", "vilbert", "vl-bert", "header", "header of another order"],
)
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["", "byte-order mark"])
def test_a_tsv_is_read(tmp_path, options, mark):
    path = tsv(tmp_path, **options)
    path.write_bytes(mark + path.read_bytes())
    assert len(open_features(path)) == 3
    assert_read(path)


def test_a_header_line_without_ids_is_refused(tmp_path):
    path = tsv(tmp_path, columns=CAFFE[1:], header=True)
    assert message_of(open_features, path) == (
        "'a.tsv' has no column of ids: its first line is image_w, image_h, num_boxes, boxes, "
        "features; call the column image_id"
    )


def test_packed_tsv_is_read_from_gzip_and_zip(tmp_path):
    content = tsv(tmp_path).read_bytes()
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(content))
    assert_read(tmp_path / "b.tsv.gz")
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(content)[:-900])
    message = message_of(convert, tmp_path / "b.tsv.gz", tmp_path / "store", form="a2")
    assert message == (
        "'b.tsv.gz' (TSV) is damaged: Compressed file ended before the end-of-stream marker was "
        "reached; download it again"
    )
    packed = gzip.compress(content)
    (tmp_path / "b.tsv.gz").write_bytes(packed[:10] + b"\xff" * 99 + packed[109:])
    assert message_of(open_features, tmp_path / "b.tsv.gz") == (
        "'b.tsv.gz' (TSV) is damaged: Error -3 while decompressing data: invalid block type; "
        "download it again"
    )
    with ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("trainval_36/trainval.tsv", content)
    assert_read(tmp_path / "c.zip")


def test_a_zip_whose_member_has_no_name_is_rejected(tmp_path):
    with ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr(ZipInfo("\0x"), b"x")
    message = message_of(lambda: list(open_features(tmp_path / "c.zip", ReadHints())))
    assert "has no TSV, npz or npy" in message


def test_several_tsvs_are_one_set_in_a_folder_a_pattern_and_a_zip(tmp_path):
    (tmp_path / "x").mkdir()
    first = tsv(tmp_path / "x", "trainval.tsv.0", IDS[:2])
    second = tsv(tmp_path / "x", "trainval.tsv.1", IDS[2:], columns=VL_BERT)
    (tmp_path / "x" / "README.md").write_text("features")
    assert_read(tmp_path / "x")
    assert_read(tmp_path / "x" / "trainval.tsv.*")
    assert len(open_features(tmp_path / "x" / "*.tsv.?")) == 3
    with ZipFile(tmp_path / "c.zip", "w") as archive:
        for path in (first, second):
            archive.write(path, path.name)
    assert_read(tmp_path / "c.zip")
    second.write_text(first.read_text())
    made = convert(tmp_path / "x", tmp_path / "store", form="a2")
    assert [(item.image_id, item.reason) for item in made.skipped] == [
        (i, f"duplicate of image {i!r}; keep one") for i in IDS[:2]
    ]


def test_npz_in_sub_folders_and_zips_are_read(tmp_path):
    for image_id, split in zip(IDS, ("train2014", "train2014", "val2014"), strict=True):
        npz(tmp_path / "x" / split / f"COCO_{split}_{image_id}.npz", image_id)
    assert_read(tmp_path / "x")
    assert_read(tmp_path / "x" / "*2014")
    with ZipFile(tmp_path / "x.zip", "w") as archive:
        for path in (tmp_path / "x").rglob("*.npz"):
            archive.write(path, path.relative_to(tmp_path))
    assert_read(tmp_path / "x.zip")
    assert_read(next((tmp_path / "x").rglob(f"*{IDS[0]}.npz")), ids=IDS[:1])


def test_files_beside_npz_that_are_not_read_are_named(tmp_path, caplog):
    for image_id in IDS:
        npz(tmp_path / f"{image_id}.npz", image_id)
    tsv(tmp_path)
    (tmp_path / "README.md").write_text("features")
    assert_read(tmp_path)
    assert caplog.messages == [f"{str(tmp_path)!r}: only npz and npy are read, not a.tsv"]


def test_padding_is_no_region(tmp_path):
    for image_id in IDS:
        npz(tmp_path / "x" / f"{image_id}.npz", image_id, **padded(image_id))
        npz(tmp_path / "y" / f"{image_id}.npz", image_id, **padded(image_id), num_boxes=10)
    assert_read(tmp_path / "x")  # num_boxes is 6
    assert_read(tmp_path / "y")  # rows of zeros in boxes without area


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"num_boxes": 7}, "num_boxes is 7, but there are 6 regions; create the file again"),
        ({"num_boxes": 4}, "num_boxes is 4, but 6 regions have features; create the file again"),
        (
            {"features": np.zeros((6, 32)), "boxes": np.zeros((6, 4))},
            "all its regions are zeros in boxes without area; extract it again",
        ),
        (
            {"boxes": np.zeros((6, 5))},
            "boxes of shape (6, 5) are not (R, 4); create the file again",
        ),
        ({"boxes": np.ones((6, 6))}, "boxes have 6 numbers; store 4 of them"),
        (
            {"features": np.ones((2, 6, 32))},
            "features of shape (2, 6, 32) are not (R, F) of one image; store it alone",
        ),
    ],
)
def test_numbers_that_disagree_with_the_rows_are_named(tmp_path, arrays, reason):
    npz(tmp_path / "x" / "9.npz", IDS[0], **arrays)
    assert list(open_features(tmp_path / "x")) == [SkippedItem(IDS[0], reason)]


def test_the_npy_and_info_of_mmf_are_read_without_running_the_pickle(tmp_path):
    for image_id in IDS:
        np.save(tmp_path / f"{image_id}.npy", np.pad(features_of(image_id), ((0, 94), (0, 0))))
        info = {**mmf(image_id), "bbox": np.pad(boxes_of(image_id), ((0, 94), (0, 0)))}
        np.save(tmp_path / f"{image_id}_info.npy", info)
    assert_read(tmp_path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["info", "lmdb", "pkl", "pth"])
def test_no_code_of_a_pickle_is_run(tmp_path, kind):
    content = {**record(IDS[0]), "evil": Evil(tmp_path / "ran")}
    path = tmp_path / "x"
    if kind == "info":
        path.mkdir()
        np.save(path / "9.npy", features_of(IDS[0]))
        np.save(path / "9_info.npy", content)
    elif kind == "lmdb":
        write_lmdb(path, {"9": pickle.dumps(content)})
    elif kind == "pkl":
        path.write_bytes(pickle.dumps({"9": content}))
    else:
        torch.save({"9": content}, path)
    with pytest.raises(A2Error, match=r"unsafe.*refers to"):
        convert(path, tmp_path / "store", form="a2")
    assert not (tmp_path / "ran").exists()


def encoded(image_id):
    boxes, features = text(boxes_of(image_id)), text(features_of(image_id))
    return {**record(image_id), "boxes": boxes.encode(), "features": features.encode()}


def lz4_block(value):
    return pytest.importorskip("lz4.block").compress(value)


def of_length(content, length):
    """Pickle a dictionary with padding, so that its length begins with these two bytes."""
    content["padding"] = b"x" * 300
    content["padding"] += b"x" * ((length - len(pickle.dumps(content))) % (1 << 16))
    return pickle.dumps(content)


@pytest.mark.parametrize(
    "value",
    [
        lambda i: pickle.dumps(record(i)),
        lambda i: pickle.dumps(encoded(i), protocol=2),
        lambda i: pickle.dumps({**mmf(i), "features": features_of(i)}, protocol=4),
        npz_bytes,
        packed,
        lambda i: pytest.importorskip("lz4.frame").compress(packed(i)),
        lambda i: lz4_block(pickle.dumps(record(i))),
        lambda i: lz4_block(of_length(record(i), 0x480)),
    ],
    ids=[
        *("vilbert", "base64", "mmf", "npz", "msgpack"),
        *("LZ4 frame", "LZ4 block", "LZ4 block that begins as a pickle"),
    ],
)
def test_lmdb_of_every_encoding_is_read(tmp_path, value):
    names = {f"train2014/COCO_train2014_{i}": i for i in IDS}
    values = {name: value(i) for name, i in names.items()}
    path = write_lmdb(tmp_path / "x", {**values, "keys": pickle.dumps([*names])})
    assert len(open_features(path)) == 3
    assert_read(path, atol=1e-4)
    next(iter(open_features(path, SIZES)))  # LMDB opens no file twice
    assert_read(path, atol=1e-4)


def reasons(path, values):
    write_lmdb(path, {str(number): value for number, value in enumerate(values)})
    return [item.reason for item in open_features(path)]


def test_values_of_lmdb_that_cannot_be_unpacked_are_refused_by_name(tmp_path, monkeypatch):
    frame = pytest.importorskip("lz4.frame").compress(npz_bytes(IDS[0]))
    is_packed = "it is packed with {}, which a2 does not read; write it unpacked"
    cut = "its LZ4 frame is cut, or expands too much"
    values = [frame[:-9], b"\x28\xb5\x2f\xfd", zlib.compress(b"x")]
    expected = [cut, is_packed.format("Zstandard"), is_packed.format("zlib")]
    assert reasons(tmp_path / "x", values) == expected
    monkeypatch.setattr(lmdb_records, "expansion_limit", lambda stored: 99)
    assert reasons(tmp_path / "y", [frame]) == [cut]
    monkeypatch.undo()
    for module in ("msgpack", "lz4.frame", "lz4.block"):
        monkeypatch.setitem(sys.modules, module, None)
    assert reasons(tmp_path / "z", [frame, b"\x81\xa1a\x01", b"\x63\0\0\0" + b"\x1f" * 9]) == [
        "it is packed with LZ4; pip install lz4",
        "it is not a pickle; if it is msgpack, pip install msgpack",
        "it is not a pickle; if it is msgpack, pip install msgpack; if it is packed with LZ4, pip "
        "install lz4",
    ]


def test_a_damaged_lmdb_is_refused(tmp_path):
    path = write_lmdb(tmp_path / "x", {"9": b"x" * 9999})
    whole = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(whole[: len(whole) // 2])
    assert message_of(open_features, path).startswith(f"{str(path)!r} is damaged: ")


def test_hdf5_of_arrays_with_ranges_or_of_equal_counts_is_read(tmp_path):
    assert_read(save_columns(tmp_path / "train.hdf5", ranges=True, index=True))
    assert_read(save_columns(tmp_path / "train36.hdf5", ranges=False))  # train_imgid2idx.pkl
    path = save_columns(tmp_path / "x.h5", ranges=False, image_id=np.array([9, 25, 132417]))
    assert_read(path)
    path = save_columns(tmp_path / "y.h5", ranges=False)
    assert message_of(open_features, path) == (
        "'y.h5' has no ids of its images (image_id, image_ids, img_ids, img_id, ids), and no "
        "y_imgid2idx.pkl is beside it; copy that there"
    )


def test_hdf5_of_one_group_or_several_datasets_an_image_is_read(tmp_path):
    assert_read(save_groups(tmp_path / "x.h5"), ReadHints())
    assert_read(save_flat(tmp_path / "y.h5"), ReadHints())  # with the sizes of DLCT
    assert_read(save_flat(tmp_path / "z.h5", sizes=False))


def test_grids_become_the_cells_of_the_image(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["9_grids"], file["9_size"] = np.ones((9, 8)), SIZE
        file["25_grids"], file["25_size"] = np.ones((8, 8)), SIZE
    refused, grid = open_features(tmp_path / "x.h5")
    assert grid.regions.boxes[[0, -1]].tolist() == [[0, 0, 40, 30], [80, 60, 120, 90]]
    assert refused.reason == "8 cells are not a square grid; name a file that has boxes"


def test_dictionaries_by_image_and_by_array_are_read(tmp_path):
    by_image = {i: record(i) for i in IDS}
    by_array = {
        "features": {int(i): features_of(i) for i in IDS},
        "boxes": {int(i): boxes_of(i) for i in IDS},
    }
    for content in (by_image, by_array):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(content))
        assert_read(tmp_path / "x.pkl")
    arrays = (("features", features_of), ("boxes", boxes_of))
    tensors = {i: {name: torch.tensor(make(i)) for name, make in arrays} for i in IDS}
    for is_zip in (True, False):
        torch.save(tensors, tmp_path / "x.pth", _use_new_zipfile_serialization=is_zip)
        assert_read(tmp_path / "x.pth")
    flat = {f"{int(i)}_{name}": make(i) for i in IDS for name, make in arrays}
    save_file(flat, tmp_path / "x.safetensors")
    assert_read(tmp_path / "x.safetensors")
    (tmp_path / "y.pkl").write_bytes(pickle.dumps([1]))
    assert message_of(open_features, tmp_path / "y.pkl") == (
        "'y.pkl' has a list in place of a dictionary of images, or of a list of them with "
        "image_id; name another file"
    )


def test_lists_of_images_are_read_by_their_ids(tmp_path):
    by_file = [{"img_id": int(i), **mmf(i), "features": features_of(i)} for i in IDS]
    for content in ([record(i) for i in IDS], by_file):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(content))
        np.save(tmp_path / "x.npy", np.array(content, dtype=object))
        assert_read(tmp_path / "x.pkl")
        assert_read(tmp_path / "x.npy")
    (tmp_path / "x.pkl").write_bytes(pickle.dumps([record(IDS[0])] * 2))
    assert len([*open_features(tmp_path / "x.pkl")]) == 2  # of which a conversion names one


def test_tars_that_a2_did_not_write_are_to_be_unpacked(tmp_path):
    npz(tmp_path / "9.npz", IDS[0])
    for name, mode in (("x.tar", "w"), ("x.tar.gz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as archive:
            archive.add(tmp_path / "9.npz", "9.npz")
    assert message_of(open_features, tmp_path / "x.tar") == (
        "tar 'x.tar' is not of a2 convert: it has 9.npz; unpack it"
    )
    assert message_of(open_features, tmp_path / "x.tar.gz") == (
        "'x.tar.gz' is packed with gzip, and not a TSV; unpack it"
    )
    np.save(tmp_path / "x.npy", features_of(IDS[0]))
    assert message_of(open_features, tmp_path / "x.npy").startswith("'x.npy' has a ndarray in ")
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "9.npy", features_of(IDS[0]))
    assert [item.reason for item in open_features(tmp_path / "x")] == [
        "no ID_info.npy with its boxes is beside it; copy it there"
    ]


def test_an_unknown_layout_lists_its_arrays_and_the_known_ones(tmp_path):
    np.savez(tmp_path / "9.npz", vectors=np.zeros((2, 8)), rois=np.zeros((2, 4)))
    [item] = open_features(tmp_path)
    assert item.reason == (
        "its layout is unknown: it has rois, vectors; known names of features and boxes are "
        "features and boxes; feat and box; x and bbox; features and bbox; image_features and "
        "image_bb; features and norm_bb; grids"
    )


def test_hdf5_of_an_unknown_layout_lists_its_names(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["9_vectors"] = np.zeros((2, 8))
    assert message_of(open_features, tmp_path / "x.h5").startswith(
        "the layout of 'x.h5' is unknown: it has 9_vectors; known names of features and boxes are "
        "features and boxes; feat and box; "
    )


def test_a_zip_of_something_else_is_refused(tmp_path):
    with ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.h5", b"")
    assert message_of(open_features, tmp_path / "x.zip") == (
        "zip 'x.zip' has no TSV, npz or npy: a.h5; unpack it"
    )


def test_images_of_every_layout_have_one_checksum(tmp_path):
    paths = [tsv(tmp_path), tsv(tmp_path, "b.tsv", columns=VL_BERT), save_flat(tmp_path / "x.h5")]
    sources = map(open_features, paths)
    digests = {frozenset(content_digest(*vars(i).values()) for i in images) for images in sources}
    assert len(digests) == 1
