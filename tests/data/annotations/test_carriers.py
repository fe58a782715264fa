"""Captions without splits: tables, folders, VizWiz, TextCaps, and random splits."""

import gzip

import pytest

from a2cap.data.annotations.layouts import GIVE_LAYOUT
from a2cap.data.annotations.read import read_annotations
from a2cap.data.annotations.split_list import random_splits
from tests.data.annotations.documents import karpathy, reasons
from tests.data.messages import message_of, touch, written

ANY = "random(1/0/0, 1)"
DOGS = [("a.jpg", ["A dog, running.", 'Two "dogs"']), ("b.jpg", ["A cat"])]
FLICKR8K = 'image,caption\na.jpg,"A dog, running."\nb.jpg,A cat\na.jpg,"Two ""dogs"""\n'


def read(path, split=ANY):
    images = read_annotations(path, split=split).images
    return [(image.file, [caption.raw for caption in image.captions]) for image in images]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("captions.txt", FLICKR8K),
        ("captions.txt", FLICKR8K.replace("\n", "\r\n")),
        ("own.csv", FLICKR8K.replace("image,caption", "Filename,Text")),
        (
            "own.tsv",
            'text\tfile_name\n"A dog, running."\ta.jpg\nA cat\tb.jpg\n"Two ""dogs"""\ta.jpg',
        ),
        (
            "results.csv",
            "image_name| comment_number| comment\na.jpg| 0| A dog, running.\nb.jpg| 0| A cat\n"
            'a.jpg| 1| "Two ""dogs"""\n',
        ),
        ("Flickr8k.token.txt", 'a.jpg#0\tA dog, running.\nb.jpg#0\tA cat\na.jpg#1\tTwo "dogs"\n'),
        ("results_20130124.token", 'a.jpg#0\tA dog, running.\na.jpg#1\tTwo "dogs"\nb.jpg#0\tA cat'),
    ],
)
def test_tables_of_flickr_and_others_are_read(tmp_path, name, text):
    path = written(tmp_path, text, name)
    assert read(path) == DOGS
    zipped = tmp_path / f"{name}.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert read(zipped) == DOGS


def test_an_open_quotation_mark_of_flickr30k_ends_with_its_line(tmp_path):
    text = 'image_name| comment_number| comment\na.jpg| 0| " Look , a dog\nb.jpg| 0| A "cat"\n'
    assert read(written(tmp_path, text, "results.csv")) == [
        ("a.jpg", ["Look , a dog"]),
        ("b.jpg", ['A "cat"']),
    ]


def test_a_quotation_mark_that_does_not_close_costs_its_own_line(tmp_path):
    text = 'image,caption\na.jpg,A dog\nb.jpg,"A cat\nc.jpg,"Dogs, two"\nd.jpg,A "big" dog\n'
    annotations = read_annotations(written(tmp_path, text, "x.csv"), split=ANY)
    assert [image.image_id for image in annotations.images] == ["a", "c", "d"]
    assert reasons(annotations) == [("line 3", "a quotation mark that does not close")]


def test_a_caption_with_commas_is_whole_without_quotation_marks(tmp_path):
    text = "image,caption\na.jpg,A dog, brown and big\nb.jpg,A cat,\n"
    assert read(written(tmp_path, text, "x.csv")) == [
        ("a.jpg", ["A dog, brown and big"]),
        ("b.jpg", ["A cat,"]),
    ]
    text = "caption,image\nA dog, brown and big,a.jpg\nA cat,b.jpg\n"
    annotations = read_annotations(written(tmp_path, text, "y.csv"), split=ANY)
    assert reasons(annotations) == [("line 2", "3 columns, 2 expected")]


def test_a_table_may_name_the_splits(tmp_path):
    text = "image,split,caption\na.jpg,train,A dog\nb.jpg,test,A cat\na.jpg,val,Dogs\n"
    annotations = read_annotations(written(tmp_path, text, "x.csv"))
    assert [(image.image_id, image.split) for image in annotations.images] == [
        ("a", "train"),
        ("b", "test"),
    ]
    assert reasons(annotations) == [("line 4", "split 'val', 'train' in line 2")]


def test_a_folder_has_a_text_file_beside_each_image(tmp_path):
    touch(tmp_path, "a.jpg", "sub/b.png", "c.jpg")
    (tmp_path / "a.txt").write_text('A dog, running.\n\nTwo "dogs"\n')
    (tmp_path / "sub/b.txt").write_text("A cat")
    assert read(tmp_path) == [DOGS[0], ("sub/b.png", ["A cat"])]
    assert reasons(read_annotations(tmp_path, split=ANY)) == [
        ("c.jpg", "no 'c.txt' beside the image")
    ]


def test_a_table_without_captions_is_rejected(tmp_path):
    path = written(tmp_path, "image,width\na.jpg,3\n", "x.csv")
    assert message_of(read_annotations, path) == (
        f"unknown layout: {str(path)!r} has the first line 'image,width'; name columns image and "
        f"caption, or set data.fields; {GIVE_LAYOUT}"
    )
    path = written(tmp_path, "A dog\nA cat\n", "x.txt")
    assert message_of(read_annotations, path) == (
        f"no usable image in {str(path)!r}, read as lines of text: 2 of 2 items skipped for one "
        "reason, first 'line 1': captions without images; name the image of each; fix them"
    )


@pytest.mark.parametrize(
    ("name", "text", "skipped"),
    [
        ("x.csv", "image,caption\na.jpg,A dog\nb.jpg\n", ("line 3", "1 columns, 2 expected")),
        ("x.csv", "image,caption\na.jpg,A dog\nb.jpg,.\n", ("b", "caption 0: empty")),
        (
            "x.token",
            "a.jpg#0\tA dog\nb.jpg A cat\n",
            ("line 2", "not 'image.jpg#0<tab>caption': 'b.jpg A cat'"),
        ),
        (
            "x.csv",
            f"image,caption\na.jpg,A dog\nb.jpg,{'x' * 131_073}\n",
            ("line 3", "not CSV: field larger than field limit (131072)"),
        ),
        (
            "x.csv",
            "image,caption\nb.jpg,A cat\rthat\na.jpg,A dog\n",
            ("line 2", "not CSV: new-line character seen in unquoted field"),
        ),
        (
            "x.csv",
            "image,caption\na.jpg,A dog\n../b.jpg,A cat\n",
            ("line 3", "image path leaves the image folder: '../b.jpg'; give it without '..'"),
        ),
    ],
)
def test_a_bad_line_is_skipped_with_its_number(tmp_path, name, text, skipped):
    annotations = read_annotations(written(tmp_path, text, name), split=ANY)
    assert [image.image_id for image in annotations.images] == ["a"]
    assert reasons(annotations)[0] == skipped


def test_karpathys_flickr_files_have_neither_folder_nor_coco_id(tmp_path):
    image = karpathy(cocoid=None, filepath=None, filename="1000268201_693b08cb0e.jpg")
    document = {"images": [image | {"sentids": [0], "imgid": 0}], "dataset": "flickr8k"}
    annotations = read_annotations(written(tmp_path, document))
    [only] = annotations.images
    assert (only.image_id, only.split) == ("1000268201_693b08cb0e", "test")


def test_vizwiz_is_coco_captions_with_other_fields_of_which_rejected_ones_are_left_out(tmp_path):
    texts = [("Quality issues are too severe.", True, True), ("A can.", False, False)]
    vizwiz = {
        "info": {},
        "images": [{"file_name": "VizWiz_val_00000000.jpg", "id": 23431, "text_detected": False}],
        "annotations": [
            {
                **{"caption": caption, "image_id": 23431, "id": number, "text_detected": False},
                **{"is_precanned": precanned, "is_rejected": rejected},
            }
            for number, (caption, precanned, rejected) in enumerate(texts)
        ],
    }
    assert read(written(tmp_path, vizwiz)) == [("VizWiz_val_00000000.jpg", ["A can."])]


def test_textcaps_has_an_entry_per_caption_and_names_the_splits(tmp_path):
    entries = [
        {
            **{"image_id": image, "image_name": image, "image_path": f"{split}/{image}.jpg"},
            **{"set_name": split, "caption_id": number, "caption_str": caption},
            **{"caption_tokens": [], "reference_strs": [caption], "reference_tokens": []},
        }
        for number, (image, split, caption) in enumerate(
            [("0054c9", "train", "A book"), ("0af0", "val", "A sign"), ("0054c9", "train", "Books")]
        )
    ]
    document = {"dataset_type": "train", "dataset_name": "textcaps", "data": entries}
    path = written(tmp_path, document)
    assert read(path, split=None) == [("0054c9.jpg", ["A book", "Books"]), ("0af0.jpg", ["A sign"])]
    assert [image.split for image in read_annotations(path).images] == ["train", "val"]
    assert message_of(read_annotations, path, split=ANY) == (
        f"{str(path)!r} already names the splits; remove data.split"
    )


def test_a_random_split_has_the_shares_and_depends_on_ids_and_seed_alone():
    ids = [f"{number:012d}" for number in range(100)]
    splits = random_splits(ids, "random(0.8/0.15/0.05, 7)")
    assert sorted(splits) == ["test"] * 5 + ["train"] * 80 + ["val"] * 15
    assert random_splits(reversed(ids), "random(0.8/0.15/0.05,7)") == splits[::-1]
    assert random_splits(ids, "random(0.8/0.15/0.05, 8)") != splits
    # on every machine, in every release
    assert [i for i, split in enumerate(splits) if split == "test"] == [26, 31, 46, 52, 53]
    assert set(random_splits(ids, "random(1/0/0, 1)")) == {"train"}
    assert sorted(random_splits(ids[:3], "random(0.8/0.1/0.1, 1)")) == ["test", "train", "val"]


@pytest.mark.parametrize("split", ["random", "random(0.8/0.1/0.2, 1)", "random(0.8/0.1/0.1)", "8"])
def test_another_form_of_a_random_split_is_rejected(tmp_path, split):
    path = written(tmp_path, FLICKR8K, "captions.txt")
    assert message_of(read_annotations, path, split=split) == (
        f"data.split is {split!r}; write random(0.8/0.1/0.1, 1): the shares of train, val and "
        "test, 1 in total, and a seed"
    )
