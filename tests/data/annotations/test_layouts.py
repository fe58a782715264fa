import gzip
import json

import pytest

from a2cap.data.annotations.caption import AnnotatedCaption
from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.annotations.layouts import GIVE_LAYOUT
from a2cap.data.annotations.read import Annotations, read_annotations
from a2cap.data.annotations.record import NAME_CAPTION
from a2cap.data.data_config import FieldNames
from tests.data.annotations.documents import GOOD, karpathy, read_karpathy, reasons
from tests.data.messages import message_of, written
from tests.experiments import a2

FIELDS = "no field of the {} among {}; {}"
NAME_IMAGE = "name it as data.fields.image"
NO_IMAGE = FIELDS.format("image", "'cocoid', 'filepath', 'split', 'sentences'", NAME_IMAGE)
NO_CAPTION = FIELDS.format("caption", "'cocoid', 'filepath', 'filename', 'split'", NAME_CAPTION)
OUTSIDE = "image path leaves the image folder: '../../etc/passwd'; give it without '..'"
SHARED = "{!r} has the same id as {!r}; rename one"
BY_FOLDER = ", or set data.ids=path, which makes the path the id"
ABSOLUTE = "image path is absolute: '/a.jpg'; give it relative to the image folder"


@pytest.mark.parametrize(
    ("filepath", "file"),
    [
        ("val2014", "val2014/COCO_val2014_000000000042.jpg"),
        (None, "COCO_val2014_000000000042.jpg"),
        ("", "COCO_val2014_000000000042.jpg"),
    ],
)
def test_a_karpathy_file_gives_images_with_its_own_tokens(tmp_path, filepath, file):
    image = karpathy(filepath=filepath, sentences=[{"raw": "A dog.", "tokens": ["a", "hound"]}])
    words = (AnnotatedCaption("A dog.", ("a", "hound")),)
    expected = AnnotatedImage("000000000042", file, "test", words, own_id=42)
    assert read_karpathy(tmp_path, image) == Annotations((expected,), ())


def test_images_keep_the_order_of_the_file_and_restval_counts_as_train(tmp_path):
    splits = {9: "train", 3: "restval", 5: "val", 4: "test"}
    images = (karpathy(filename=f"{number}.jpg", split=split) for number, split in splits.items())
    read = read_karpathy(tmp_path, *images)
    splits_of = [(image.image_id[-1], image.split) for image in read.images]
    assert splits_of == [("9", "train"), ("3", "train"), ("5", "val"), ("4", "test")]


@pytest.mark.parametrize(
    ("image", "skipped"),
    [
        (7, ("images[0]", "not a JSON object")),
        (karpathy(filename=None), ("images[0]", NO_IMAGE)),
        (karpathy(filename=3), ("images[0]", "'filename' is not the name of an image: 3")),
        (karpathy(filepath=3), ("images[0]", "'filepath' is not a string")),
        (karpathy(split=None), ("000000000042", "no split")),
        (karpathy(split="x"), ("000000000042", "unknown split: 'x'")),
        (karpathy(split=["train"]), ("000000000042", "unknown split: ['train']")),
        (karpathy(sentences=None), ("images[0]", NO_CAPTION)),
        (
            karpathy(sentences=3),
            ("images[0]", "'sentences' is neither a text nor a list of texts: 3"),
        ),
        (karpathy(sentences=[]), ("000000000042", "no caption")),
        (karpathy(filepath="../../etc", filename="passwd"), ("images[0]", OUTSIDE)),
    ],
)
def test_one_bad_karpathy_image_is_skipped_with_its_reason(tmp_path, image, skipped):
    assert reasons(read_karpathy(tmp_path, image, GOOD)) == [skipped]


def test_all_files_that_share_an_id_are_left_out_and_named(tmp_path):
    cats, dogs, *birds = files = ["cats/001.jpg", "dogs/001.jpg", "birds/1.jpg", "birds/1.png"]
    images = [karpathy(filepath="", filename=file) for file in files]
    read = read_karpathy(tmp_path, *images, GOOD)
    assert [image.file for image in read.images] == ["7.jpg"]
    assert reasons(read) == [
        ("000000000001", SHARED.format(cats, dogs) + BY_FOLDER),
        *(("000000000001", SHARED.format(file, cats) + BY_FOLDER) for file in (dogs, *birds)),
    ]
    by_path = read_annotations(tmp_path / "x.json", rule="path")
    assert [image.file for image in by_path.images] == [cats, dogs, "7.jpg"]
    assert reasons(by_path) == [
        ("birds/1", SHARED.format(birds[0], birds[1])),
        ("birds/1", SHARED.format(birds[1], birds[0])),
    ]


def test_rows_of_a_table_whose_files_share_an_id_name_the_remedy(tmp_path):
    rows = ["image,caption,split", *(f"{name},A pet.,train" for name in ("cats/001.jpg", "7.jpg"))]
    path = written(tmp_path, "\n".join([*rows, "dogs/001.jpg,A dog.,train"]), "x.csv")
    assert reasons(read_annotations(path)) == [
        ("000000000001", SHARED.format("cats/001.jpg", "dogs/001.jpg") + BY_FOLDER),
        ("000000000001", SHARED.format("dogs/001.jpg", "cats/001.jpg") + BY_FOLDER),
    ]
    assert len(read_annotations(path, rule="path").images) == 3


def test_the_first_record_of_an_image_is_kept(tmp_path):
    read = read_karpathy(tmp_path, karpathy(), karpathy(split="train"))
    assert [image.split for image in read.images] == ["test"]
    file = "val2014/COCO_val2014_000000000042.jpg"
    assert reasons(read) == [("000000000042", f"duplicate of image {file!r}")]


def test_every_image_of_an_id_that_several_files_have_is_left_out(tmp_path):
    exported = [*COCO_IMAGES, {"id": 7, "file_name": "c.jpg"}, {"id": 7, "file_name": "d.jpg"}]
    read = read_coco(tmp_path, {"train": [42, "a/b", "c", "d"]}, images=exported)
    assert [image.file for image in read.images] == ["000000000042.jpg"]
    reason = "duplicate id 7, of 'a/b.jpg' and 'c.jpg'"
    assert reasons(read) == [(f"images[{index}]", reason) for index in (1, 2, 3)]
    document = {"images": exported, "annotations": COCO_CAPTIONS}
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "metadata.csv").write_text(json.dumps(document))
    placed = reasons(read_annotations(tmp_path / "folder"))
    assert placed == [(f"metadata.csv, images[{index}]", reason) for index in (1, 2, 3)]


def test_a_split_list_names_images_by_their_files_or_by_the_ids_of_the_annotations(tmp_path):
    images = [{"id": 2**40, "file_name": "1.jpg"}, {"id": "x_1", "file_name": "2.jpg"}]
    captions = [{"image_id": image["id"], "caption": "A dog."} for image in images]
    for splits in (
        {"train": [2**40], "val": ["x_1"]},
        {"train": [1], "val": ["000000000002"]},
        {"train": ["1.jpg"], "val": ["2.jpg"]},
    ):
        read = read_coco(tmp_path, splits, images=images, annotations=captions)
        assert {i.file: i.split for i in read.images} == {"1.jpg": "train", "2.jpg": "val"}


def test_a_split_list_whose_numbers_fit_two_images_is_rejected(tmp_path):
    images = [{"id": 2, "file_name": "1.jpg"}, {"id": 1, "file_name": "2.jpg"}]
    captions = [{"image_id": image["id"], "caption": "A dog."} for image in images]
    changes = {"images": images, "annotations": captions}
    assert message_of(lambda: read_coco(tmp_path, {"train": [1, 2]}, **changes)) == (
        f"the lines of {str(tmp_path / 'splits')!r} name an image '1', which the annotations give "
        "to the file '000000000002', while the file '000000000001' has id 2; set "
        "data.ids=annotation if these are ids of the annotations, data.ids=number if they are the "
        "numbers of files"
    )
    path, lists = tmp_path / "x.json", written(tmp_path, {"train": [1], "val": [2]}, "splits")
    for numbers, file in (("annotation", "2.jpg"), ("number", "1.jpg")):
        read = read_annotations(path, split_list=lists, numbers=numbers)
        assert [i.file for i in read.images if i.split == "train"] == [file]


UNKNOWN = "caption of an unknown image: 5"
SPELLINGS = ["x/a.jpg", "./x/a.jpg", "x\\a.jpg", " x/a.jpg"]
CHAT = [
    {"from": "human", "value": "<image>\nWhat is it?"},
    {"from": "gpt", "value": "<image> A dog."},
    {"role": "user", "content": "And there?"},
    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
]
COCO_IMAGES: list[object] = [
    {"id": 42, "file_name": "000000000042.jpg"},
    {"id": 7, "file_name": "a/b.jpg"},
]
COCO_CAPTIONS: list[object] = [
    {"id": 2, "image_id": 7, "caption": "A cat!"},
    {"id": 1, "image_id": 42, "caption": "A dog."},
    {"id": 3, "image_id": 42, "caption": "Two dogs"},
]


def coco(**changes):
    return {"images": COCO_IMAGES, "annotations": COCO_CAPTIONS} | changes


def read_coco(folder, splits, **changes):
    path = written(folder, coco(**changes))
    return read_annotations(path, split_list=written(folder, splits, "splits"))


def test_coco_captions_with_a_split_list_give_the_same_kind_of_images(tmp_path):
    read = read_coco(tmp_path, "42 train\na/b.jpg val")
    dogs = (AnnotatedCaption("A dog.", ("a", "dog")), AnnotatedCaption("Two dogs", ("two", "dogs")))
    cat = (AnnotatedCaption("A cat!", ("a", "cat")),)
    assert read == Annotations(
        (
            AnnotatedImage("000000000042", "000000000042.jpg", "train", dogs, own_id=42),
            AnnotatedImage("a/b", "a/b.jpg", "val", cat, own_id=7),
        ),
        (),
    )


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({"dataset": "coco"}, "coco"),
        ({"info": {"description": "COCO 2014 Dataset"}}, "COCO 2014 Dataset"),
        ({"dataset": 3, "info": "2014"}, ""),
        ({}, ""),
    ],
)
def test_annotations_state_the_name_that_the_file_gives_its_data(tmp_path, about, name):
    path = written(tmp_path, {"images": [karpathy()], **about})
    assert read_annotations(path).dataset == name


def test_captions_without_splits_are_split_at_random_with_a_notice(tmp_path, caplog):
    path = written(tmp_path, coco())
    annotations = read_annotations(path)
    assert annotations == read_annotations(path, split="random(0.8/0.1/0.1, 1)")
    assert caplog.messages == [
        f"the captions {str(path)!r} name no splits: of 2 images, 80 % are training, 10 % "
        "validation and 10 % test images at random, as by data.split=random(0.8/0.1/0.1, 1); set "
        'it, or data.split_list, a JSON file {"train": [ids or file names], "val": …, "test": …}'
    ]
    both = {"split": "random(1/0/0, 1)", "split_list": path}
    assert message_of(read_annotations, path, **both) == (
        "data.split and data.split_list are both set; leave one of them out"
    )


def test_coco_images_in_no_split_are_skipped(tmp_path):
    read = read_coco(tmp_path, {"train": [42]})
    assert [image.image_id for image in read.images] == ["000000000042"]
    assert reasons(read) == [("a/b", "in no split")]


def test_a_split_list_without_any_image_of_the_file_is_rejected(tmp_path):
    assert message_of(read_coco, tmp_path, {"train": [1]}) == (
        f"none of the 2 images of {str(tmp_path / 'x.json')!r} is in the split list; "
        "give its own list as data.split_list"
    )


@pytest.mark.parametrize(
    ("images", "annotations", "skipped"),
    [
        ([{"id": 1}], [], ("000000000001", "no caption")),
        ([{"id": [1]}], [], ("images[2]", "'id' is neither an integer nor a string")),
        ([{"id": 1, "file_name": "/a.jpg"}], [], ("images[2]", ABSOLUTE)),
        (
            [{"id": 1, "file_name": 3}],
            [],
            ("images[2]", "'file_name' is not the name of an image: 3"),
        ),
        ([], [{"image_id": 5, "caption": "x"}], ("annotations[3]", UNKNOWN)),
        ([], [{"image_id": 42}], ("annotations[3]", "no key 'caption'")),
        ([], COCO_CAPTIONS[:1], ("annotations[3]", "duplicate id 2")),
        (
            [],
            [{"image_id": 42, "caption": {}}],
            ("000000000042", "caption 2: an object of nothing, not a text"),
        ),
    ],
)
def test_one_bad_item_of_coco_is_skipped_with_its_reason(tmp_path, images, annotations, skipped):
    both = {"images": [*COCO_IMAGES, *images], "annotations": [*COCO_CAPTIONS, *annotations]}
    assert reasons(read_coco(tmp_path, {"train": [42, 1, "a/b"]}, **both)) == [skipped]


def test_lists_spellings_and_paths_of_windows_name_one_image(tmp_path):
    rows = [{"image": name, "caption": name} for name in (*SPELLINGS, "photo.v2", "x/b.jpg")]
    for name in ("x.json", "x.jsonl"):  # a list is one, whatever its name
        read = read_annotations(written(tmp_path, rows, name))
        assert [image.file for image in read.images] == ["x/a.jpg", "photo.v2.jpg", "x/b.jpg"]
        assert [caption.raw for caption in read.images[0].captions] == SPELLINGS


def test_a_jsonl_gives_one_image_per_line(tmp_path):
    lines = [
        '{"image": "a/b.jpg", "captions": ["A dog\u2028runs."], "split": "train"}',
        "",
        '{"captions": ["Two cats"], "split": "val", "image": "42.jpg", "by": "me"}',
    ]
    dog = (AnnotatedCaption("A dog\u2028runs.", ("a", "dog", "runs")),)
    cats = (AnnotatedCaption("Two cats", ("two", "cats")),)
    images = (
        AnnotatedImage("a/b", "a/b.jpg", "train", dog),
        AnnotatedImage("000000000042", "42.jpg", "val", cats),
    )
    for line_break, name in (("\n", "captions.jsonl"), ("\r\n", "captions.txt")):
        path = written(tmp_path, line_break.join(lines), name)
        zipped = tmp_path / f"{name}.gz"
        zipped.write_bytes(gzip.compress(path.read_bytes()))
        assert read_annotations(path) == read_annotations(zipped) == Annotations(images, ())


def test_bad_lines_of_a_jsonl_are_skipped_by_number(tmp_path):
    lines = [
        '{"image": "a.jpg", "captions": ["A dog"], "split": "train"}',
        '{"image": "b.jpg", "captions": [',
        '{"image": "c.jpg", "captions": 3, "split": "train"}',
        '{"image": "d.jpg", "captions": ["A dog"]}',
        '{"captions": ["A dog"], "split": "train"}',
        "[1]",
    ]
    read = read_annotations(written(tmp_path, "\n".join(lines), "captions.jsonl"))
    assert [image.image_id for image in read.images] == ["a"]
    invalid = "not JSON: line 2 (line 1, column 33: Expecting value)"
    assert reasons(read) == [
        ("line 2", f"{invalid}; fix the file or copy it again"),
        ("line 3", "'captions' is neither a text nor a list of texts: 3"),
        ("line 5", FIELDS.format("image", "'captions', 'split'", NAME_IMAGE)),
        ("line 6", "not a JSON object"),
        ("d", "no split"),
    ]


@pytest.mark.parametrize(
    ("record", "names", "caption"),
    [
        (
            {"image": "b.jpg", "title": "no", "photo": "a.jpg", "said": "A dog.", "part": "val"},
            {"image": "photo", "caption": "said", "split": "part"},
            "A dog.",
        ),
        ({"image": "a.jpg", "set": "val", "conversations": CHAT}, {"turn": 2}, "A cat."),
        ({"image": "a.jpg", "set_name": "val", "messages": CHAT}, {}, "A dog."),
    ],
)
def test_fields_and_turns_may_have_other_names(tmp_path, record, names, caption):
    path = written(tmp_path, [record])
    (image,) = read_annotations(path, fields=FieldNames(**names)).images
    assert (image.image_id, image.split) == ("a", "val")
    assert [text.raw for text in image.captions] == [caption]
    options = {"image": "--image-field", "caption": "--caption-field", "turn": "--turn"}
    words = [word for name in names.keys() & options for word in (options[name], names[name])]
    a2("annotations", path, "--output", tmp_path / "x.jsonl", *words, code=0)
    assert json.loads((tmp_path / "x.jsonl").read_text())["captions"] == [caption]


def test_numbers_that_folders_repeat_are_read_by_path_if_it_is_asked_for(tmp_path):
    rows = [{"image": f"{kind}/001.jpg", "caption": f"a {kind}"} for kind in ("cat", "dog")]
    path, lines = written(tmp_path, rows), tmp_path / "x.jsonl"
    refused = a2("annotations", path)
    assert refused.stderr == (
        f"a2: no usable image in {str(path)!r}, read as a JSON list of records: 2 of 2 items "
        "skipped for one reason, first '000000000001': 'cat/001.jpg' has the same id as "
        f"'dog/001.jpg'; rename one{BY_FOLDER}; fix them\n"
    )
    a2("annotations", path, "--ids", "path", "--output", lines, code=0)
    images = read_annotations(lines, rule="path").images
    assert [image.image_id for image in images] == ["cat/001", "dog/001"]


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"images": [karpathy()]}, "x.json"),
        ('{"image": "a.jpg", "caption": "A dog", "split": "dev"}', "x.jsonl"),
    ],
)
def test_a_split_list_for_annotations_with_splits_is_rejected(tmp_path, document, name):
    path = written(tmp_path, document, name)
    splits = written(tmp_path, {"train": [42]}, "splits.json")
    assert message_of(read_annotations, path, split_list=splits) == (
        f"{str(path)!r} already names the splits; remove data.split_list"
    )


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({}, "is a JSON object of nothing"),
        ({"images": {}}, "is a JSON object of 'images'"),
        ({"images": [], "annotations": 3}, "is a JSON object of 'images', 'annotations'"),
        ([3], "is a JSON list of 3"),
    ],
)
def test_a_file_without_a_known_layout_is_rejected_by_what_it_has(tmp_path, document, what):
    path = written(tmp_path, document)
    message = message_of(read_annotations, path)
    assert message == f"unknown layout: {str(path)!r} {what}; {GIVE_LAYOUT}"
    assert message.startswith(
        "give one of: Karpathy's dataset_coco.json, COCO captions, ", -len(GIVE_LAYOUT)
    )


KARPATHY = "Karpathy's dataset_coco.json"
LINES = "JSON Lines of records"


@pytest.mark.parametrize(
    ("name", "document", "layout", "why"),
    [
        ("x.json", {"images": []}, KARPATHY, f"it is empty; {GIVE_LAYOUT}"),
        (
            "x.json",
            {"images": [{"id": 1}]},
            KARPATHY,
            "1 of 1 items skipped for one reason, first 'images[0]': no field of the image among "
            "'id'; name it as data.fields.image; fix them",
        ),
        (
            "x.json",
            {"images": [karpathy(filename=3), karpathy(split="x"), GOOD | {"split": "y"}]},
            KARPATHY,
            "2 of 3 items skipped for one reason, first '000000000042': unknown split: 'x'; fix "
            "them",
        ),
        # not that it is empty
        (
            "x.json",
            {
                "images": [{"id": 1, "file_name": "a.jpg"}],
                "annotations": [{"image_id": 1, "caption": "Quality issues", "is_rejected": True}],
            },
            "COCO captions",
            "1 of 1 items skipped for one reason, first 'annotations[0]': rejected: it says only "
            "that the image is bad; fix them",
        ),
        # not that the file names the splits
        (
            "x.jsonl",
            '{"image": "a.jpg", "label": "a dog", "split": "train"}\n{"image": "b.jpg"}',
            LINES,
            "2 of 2 items skipped for one reason, first 'line 1': no field of the caption among "
            f"'image', 'label', 'split'; {NAME_CAPTION}; fix them",
        ),
    ],
)
def test_the_most_frequent_reason_is_named_where_nothing_is_usable(
    tmp_path, name, document, layout, why
):
    path = written(tmp_path, document, name)
    for split in (None, "random(0.8/0.1/0.1, 1)"):
        assert message_of(read_annotations, path, split=split) == (
            f"no usable image in {str(path)!r}, read as {layout}: {why}"
        )


def test_coco_instances_are_not_captions(tmp_path):
    boxes = [{"image_id": 42, "bbox": [0, 0, 1, 1]}]
    assert message_of(read_coco, tmp_path, {"train": [42]}, annotations=boxes).startswith(
        f"unknown layout: {str(tmp_path / 'x.json')!r} is a JSON object of 'images', 'annotations'"
    )
