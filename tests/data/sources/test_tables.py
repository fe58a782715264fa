"""Folders that Hugging Face's datasets keeps: Arrow streams and Parquet files, by split."""

import json
from pathlib import Path, PurePosixPath

import pytest

from a2cap.data.annotations.layouts import require_annotations
from a2cap.data.annotations.read import read_annotations
from a2cap.data.sources.open_source import image_source, is_source, open_source
from tests.data.annotations.documents import reasons
from tests.data.messages import message_of
from tests.data.sources.samples import jpeg, write_arrow, write_parquet

pytest.importorskip("pyarrow", reason="no pyarrow")

A, B, C = (jpeg(shade) for shade in (1, 2, 3))
WRITERS = {"arrow": write_arrow, "parquet": write_parquet}


def rows(*items):
    """Return the columns of images with two captions each; items: bytes and path of each."""
    images = [{"bytes": content, "path": path} for content, path in items]
    return {"image": images, "captions": [["a dog", "dogs"]] * len(items)}


def read(path):
    source = open_source(str(path))
    return {item.image_id: content for item, content in source.read(source.items())}


@pytest.fixture(params=["arrow", "parquet"])
def cache(request, tmp_path):
    """Write a data set of two splits as datasets caches it; return its folder."""
    write, suffix = WRITERS[request.param], request.param
    write(tmp_path / f"pets-train-00000-of-00002.{suffix}", **rows((A, "a.jpg"), (None, "sub/b")))
    write(tmp_path / f"pets-train-00001-of-00002.{suffix}", **rows((C, None)))
    write(tmp_path / f"pets-validation.{suffix}", **rows((B, None), (None, "/etc/hostname")))
    write(tmp_path / f"cache-0123456789abcdef.{suffix}", **rows((A, "of a map.jpg")))
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(B)
    return tmp_path


def test_a_cached_data_set_has_the_images_of_its_rows(cache):
    whole = read(cache)
    errors = {name: whole.pop(name) for name in list(whole) if not isinstance(whole[name], bytes)}
    assert whole == {
        "a": A,
        "sub/b": B,
        "pets-train-00001-of-00002/row-0": C,
        "pets-validation/row-0": B,
    }
    [(name, error)] = errors.items()
    assert name == "pets-validation/row-1"
    assert str(error).startswith("'/etc/hostname' is outside the folder of ")


def test_the_files_of_a_cached_data_set_name_the_splits(cache):
    assert is_source(cache) and image_source(cache) == str(require_annotations(cache)) == str(cache)
    annotations = read_annotations(cache)
    assert [(image.image_id, image.split, len(image.captions)) for image in annotations.images] == [
        ("a", "train", 2),
        ("sub/b", "train", 2),
        ("pets-train-00001-of-00002/row-0", "train", 2),
        ("pets-validation/row-0", "val", 2),
    ]
    [(_, reason)] = reasons(annotations)
    assert reason == str(read(cache)["pets-validation/row-1"])


def test_files_that_rows_name_are_part_of_the_digest(cache):
    [first, *_] = open_source(str(cache)).containers
    stem = Path(first.name).stem
    assert first.local_files() == {f"{stem}/row-1": cache / "sub" / "b"}


def test_an_absolute_path_below_the_folder_is_a_relative_one(tmp_path):
    (tmp_path / "x.jpg").write_bytes(A)
    write_arrow(tmp_path / "one.arrow", **rows((None, str(tmp_path / "x.jpg"))))
    assert read(tmp_path / "one.arrow") == {"x": A}
    write_parquet(tmp_path / "texts.parquet", image=["x.jpg", "../x.jpg", "data::x.jpg"])
    contents = list(read(tmp_path / "texts.parquet").values())
    assert contents[0] == A
    assert "leaves the image folder" in str(contents[1])
    assert "'::' chains addresses" in str(contents[2])


def test_two_data_sets_below_a_folder_are_refused(cache):
    [table] = cache.glob("pets-v*")
    (cache / "old").mkdir()
    (cache / "old" / table.name).write_bytes(table.read_bytes())
    message = message_of(open_source, str(cache))
    assert message.startswith(f"two folders below {str(cache)!r} have tables of one split: ")
    assert message.endswith("; name the folder of one data set, or the files, as *.parquet")


def test_a_table_beside_images_is_no_source(tmp_path):
    (tmp_path / "a.jpg").write_bytes(A)
    write_parquet(tmp_path / "metadata.parquet", file_name=["a.jpg"])
    assert not is_source(tmp_path)


def test_numbered_columns_are_captions(tmp_path):
    write_parquet(tmp_path / "f.parquet", image=[A], caption_0=["a dog"], caption_1=["dogs"])
    [image] = read_annotations(tmp_path, split="random(1/0/0, 1)").images
    assert [caption.raw for caption in image.captions] == ["a dog", "dogs"]


def test_a_stream_cut_anywhere_loses_nothing_silently(tmp_path):
    path = tmp_path / "one.arrow"
    write_arrow(path, **rows(*((shade, None) for shade in (A, B, C, A, B))))
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        assert message_of(lambda: list(open_source(str(path)).items())) == (
            f"{str(path)!r} ends early or is no stream of Arrow; copy the file again"
        )
    # an end in the middle, as one flipped header would be
    end = whole.index(b"\xff\xff\xff\xff", len(whole) // 2)
    path.write_bytes(whole[:end] + b"\xff\xff\xff\xff" + bytes(4) + whole[end + 8 :])
    assert "ends early" in message_of(lambda: list(open_source(str(path)).items()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of datasets and its dependencies
def test_what_datasets_writes_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="no datasets")
    for split, shade in (("train", A), ("test", B)):
        (tmp_path / "images" / split).mkdir(parents=True)
        (tmp_path / "images" / split / f"{split}.jpg").write_bytes(shade)
        line = {"file_name": f"{split}.jpg", "text": f"a {split}"}
        (tmp_path / "images" / split / "metadata.jsonl").write_text(json.dumps(line))
    loaded = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "images"), cache_dir=str(tmp_path / "cache")
    )
    loaded.map(lambda row: {"length": len(row["text"])})  # keeps its result beside the splits
    loaded.save_to_disk(str(tmp_path / "saved"))
    loaded["train"].to_parquet(str(tmp_path / "parquet" / "train-00000-of-00001.parquet"))
    names = {"train": "train", "test": "test"}
    for folder in (tmp_path / "images", tmp_path / "saved"):
        again = read_annotations(folder)
        assert {PurePosixPath(image.image_id).name: image.split for image in again.images} == names
        assert [i.captions[0].raw for i in again.images] == [f"a {s}" for s in sorted(names)]
    assert read(tmp_path / "saved") == {"train": A, "test": B}
    # the cache of an imagefolder and the Parquet of it have the paths of the images alone
    [cached] = (path.parent for path in (tmp_path / "cache").rglob("dataset_info.json"))
    for folder in (cached, tmp_path / "parquet"):
        assert all("name the folder of the images" in str(error) for error in read(folder).values())


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_metadata_of_an_imagefolder_are_captions_and_folders_are_splits(tmp_path, suffix):
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        (tmp_path / split / f"{split} 1.jpg").write_bytes(A)
        names = [f"{split} 1.jpg", "../x.jpg", f"/etc/{split}"]
        lines = ["file_name,text", *(f"{name},a dog" for name in names)]
        if suffix == "jsonl":
            lines = [json.dumps({"file_name": name, "text": "a dog"}) for name in names]
        (tmp_path / split / f"metadata.{suffix}").write_text("\n".join(lines))
    annotations = read_annotations(tmp_path)
    assert [(image.image_id, image.split) for image in annotations.images] == [
        ("train/train 1", "train"),
        ("validation/validation 1", "val"),
    ]
    first = "line 2" if suffix == "jsonl" else "line 3"
    position, reason = reasons(annotations)[0]
    assert position == f"train/metadata.{suffix}, {first}"
    assert reason.startswith("image path leaves the image folder: 'train/../x.jpg'")
    assert reasons(annotations)[1][1].startswith("image path is absolute: '/etc/train'")


def test_metadata_without_folders_of_splits_may_state_them(tmp_path):
    path = tmp_path / "metadata.jsonl"
    line = {"file_name": "a.jpg", "captions": ["a dog", "dogs"], "split": "validation"}
    path.write_text(json.dumps(line))
    for named in (path, tmp_path):
        [image] = read_annotations(named).images
        assert (image.file, image.split, len(image.captions)) == ("a.jpg", "val", 2)
    del line["split"]
    path.write_text(json.dumps(line))
    [image] = read_annotations(tmp_path, split="random(1/0/0, 1)").images
    assert image.split == "train"
