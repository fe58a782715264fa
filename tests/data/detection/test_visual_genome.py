from pathlib import Path

import pytest
from PIL import Image

from a2cap.data.detection import visual_genome
from a2cap.data.detection.labels import WITHOUT_AREA
from a2cap.data.detection.visual_genome import (
    ABOVE_MOST,
    NO_KNOWN_OBJECT,
    UNKNOWN_ATTRIBUTE,
    UNKNOWN_OBJECT,
    read_name_list,
    read_visual_genome,
    split_attribute,
    split_object_name,
)
from a2cap.data.files.image_file import FORMAT_NAMES
from a2cap.data.files.sealed_folder import SkippedItem
from tests.data.messages import message_of, written

VOCABULARY = Path(__file__).parents[3].parent / "shared/reference/visual_genome_vocab"
OBJECTS = "dog,puppy\ntraffic light\nstop sign,stopsign\nlight"
ATTRIBUTES = "gray,grey\nred\nblack and white\nwet\nsmall"
LEAVES = "image path leaves the image folder: '../62.jpg'; give it without '..'"
DOG, TRAFFIC_LIGHT, STOP_SIGN, LIGHT = range(4)
GRAY, RED, BLACK_AND_WHITE, WET, SMALL = range(5)


def entry(*names, number=1, box=(10, 20, 30, 10), **changes):
    own = dict(zip("xywh", box, strict=True))
    return own | {"object_id": number, "names": list(names), "merged_object_ids": []} | changes


def image(*objects, number=61):
    return {"image_id": number, "objects": list(objects), "image_url": "none"}


def attributes_of(*entries, number=61):
    return {
        "image_id": number,
        "attributes": [{"object_id": of, "names": ["x"]} | more for of, more in entries],
    }


class Files:
    """A Visual Genome of a few images, each of 100 x 50 pixels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = folder / "images"
        (self.images / "VG_100K").mkdir(parents=True)
        (self.images / "VG_100K_2").mkdir()

    def image(self, path):
        Image.new("RGB", (100, 50)).save(self.images / path)

    def read(self, objects, attributes=(), *, names=OBJECTS, **options):
        return read_visual_genome(
            written(self.folder, objects, "objects.json"),
            written(self.folder, list(attributes), "attributes.json"),
            self.images,
            object_names=written(self.folder, names, "objects_vocab.txt"),
            attribute_names=written(self.folder, ATTRIBUTES, "attributes_vocab.txt"),
            **options,
        )


@pytest.fixture
def files(tmp_path):
    """A Visual Genome with the file of image 61."""
    made = Files(tmp_path)
    made.image("VG_100K/61.jpg")
    return made


@pytest.mark.parametrize(
    ("text", "name", "adjectives"),
    [
        ("White Dog", "dog", ("white",)),
        ("small grey dog.", "dog", ("small", "grey")),
        ("traffic light", "traffic light", ()),
        ("red traffic light", "red traffic light", ()),
        ("red", "red", ()),
        ("  ", "", ()),
        (" Dog ", "dog", ()),
        ("dog .", "dog", ()),
        ("a..", "a.", ()),
    ],
)
def test_names_are_cleaned_and_common_adjectives_before_the_last_word_are_attributes(
    text, name, adjectives
):
    assert split_object_name(text) == (name, adjectives)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Red and Blue.", ("red", "blue")),
        ("black and white", ("black and white",)),
        ("sandy", ("sandy",)),
    ],
)
def test_and_separates_attributes_except_in_black_and_white(text, names):
    assert split_attribute(text) == names


def test_boxes_are_corners_and_classes_indices_of_the_list(files):
    # the second box is clipped to the image file
    labelled = files.read([image(entry("Stopsign"), entry("puppy", "cat", box=(-5, 40, 500, 20)))])
    assert labelled.classes == ("dog", "traffic light", "stop sign", "light")
    assert labelled.attributes == ("gray", "red", "black and white", "wet", "small")
    (only,) = labelled.images
    assert only.boxes.tolist() == [[10, 20, 40, 30], [0, 40, 100, 50]]
    assert only.class_ids.tolist() == [STOP_SIGN, DOG]
    assert (only.image_id, only.width, only.height) == ("000000000061", 100, 50)
    assert only.file == files.images / "VG_100K/61.jpg"
    assert only.crowd.tolist() == [False, False]


def test_attributes_of_an_object_are_merged_with_those_of_its_name_first(files):
    labelled = files.read(
        [image(entry("small dog", number=7), entry("light", number=8))],
        [
            attributes_of(
                (7, {"attributes": ["wet", "Grey and red"]}),
                (8, {}),
                (7, {"attributes": ["gray", "black and white"]}),
                (9, {"attributes": None}),
            )
        ],
    )
    assert labelled.images[0].attribute_ids == ((SMALL, WET, GRAY, RED, BLACK_AND_WHITE), ())


def test_attributes_belong_to_the_object_of_the_same_image(files):
    files.image("62.jpg")
    dogs = [image(entry("dog", number=7), number=number) for number in (61, 62)]
    labelled = files.read(dogs, [attributes_of((7, {"attributes": ["wet"]}), number=62)])
    assert [shown.attribute_ids for shown in labelled.images] == [((),), ((WET,),)]


def test_attributes_beyond_the_maximum_are_dropped_and_counted(files, monkeypatch):
    assert visual_genome.MOST_ATTRIBUTES == 16
    monkeypatch.setattr(visual_genome, "MOST_ATTRIBUTES", 2)
    attributes = attributes_of((1, {"attributes": ["wet", "red", "small"]}))
    labelled = files.read([image(entry("dog"))], [attributes])
    assert labelled.images[0].attribute_ids == ((WET, RED),)
    assert labelled.dropped[ABOVE_MOST] == 1


def test_unlisted_names_are_dropped_and_counted(files):
    objects = [entry("cat", "dog"), entry(), entry(None), entry("wet dog"), entry("dog")]
    objects.append(entry("dog", box=(100, 0, 5, 5)))
    labelled = files.read(
        [image(*objects)], [attributes_of((1, {"attributes": ["odd", 3, "wet and old"]}))]
    )
    assert labelled.images[0].class_ids.tolist() == [DOG]
    counts = {UNKNOWN_OBJECT: 4, WITHOUT_AREA: 1, UNKNOWN_ATTRIBUTE: 4, ABOVE_MOST: 0}
    assert labelled.dropped == counts


def test_images_of_all_folders_are_ordered_by_id(files):
    files.image("VG_100K_2/9.jpg")
    files.image("100.jpg")
    labelled = files.read([image(entry("dog"), number=n) for n in (100, 9, 61)])
    assert [shown.file.name for shown in labelled.images] == ["9.jpg", "61.jpg", "100.jpg"]


@pytest.mark.usefixtures("tolerant")
def test_an_image_without_a_usable_file_is_skipped_with_the_reason(files):
    (files.images / "7.jpg").write_text("torn")
    labelled = files.read([image(entry("dog"), number=n) for n in (61, 62, 7)])
    assert [shown.image_id for shown in labelled.images] == ["000000000061"]
    assert [(item.image_id, item.reason) for item in labelled.skipped] == [
        ("000000000062", "no file '62.jpg'"),
        (
            "000000000007",
            f"image '7.jpg' has no readable header; get the file again, as {FORMAT_NAMES}",
        ),
    ]


def test_any_number_of_images_without_a_listed_object_is_skipped(files):
    for number in range(100, 120):
        files.image(f"{number}.jpg")
    unknown = [image(entry("cat"), number=number) for number in range(100, 120)]
    labelled = files.read([image(entry("dog")), *unknown])
    assert [shown.image_id for shown in labelled.images] == ["000000000061"]
    assert {item.reason for item in labelled.skipped} == {NO_KNOWN_OBJECT}
    assert len(labelled.skipped) == 20


def test_more_missing_files_than_the_limit_are_rejected(files):
    objects = [image(entry("dog"), number=number) for number in range(61, 73)]
    assert message_of(files.read, objects).startswith(
        "11 of 12 images cannot be used, at most 1 may be left out: "
        "'000000000062' (no file '62.jpg'), "
    )


def test_only_the_requested_images_are_read_and_all_must_be_in_the_file(files):
    objects = [image(entry("dog"), number=number) for number in range(61, 90)]
    labelled = files.read(objects, only={"000000000061"})
    assert [shown.image_id for shown in labelled.images] == ["000000000061"]
    assert labelled.skipped == ()
    message = message_of(files.read, objects, only={"000000000061", "000000000099"})
    assert message.startswith("no labelled image '000000000099' (1 of 2 are missing); ")


def test_a_folder_without_any_of_the_images_is_rejected(files):
    message = message_of(files.read, [image(entry("dog"), number=5)])
    assert message == (
        f"no image of {str(files.folder / 'objects.json')!r} is in {str(files.images)!r} "
        "(1 searched); check the folder"
    )


def test_a_list_without_any_object_of_the_file_is_rejected(files):
    message = message_of(files.read, [image(entry("dog"))], names="chien\nchat")
    assert message == (
        f"no object of {str(files.folder / 'objects.json')!r} is listed in "
        f"{str(files.folder / 'objects_vocab.txt')!r}; check that list"
    )


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (3, "not a JSON object"),
        ({"objects": []}, "no key 'image_id'"),
        ({"image_id": 62}, "no key 'objects'"),
        ({"image_id": 62.5, "objects": []}, "'image_id' is neither an integer nor a string"),
        (image(), "images[2]: duplicate image '000000000061'"),
        (image(number="../62"), LEAVES),
    ],
)
def test_a_malformed_image_is_skipped_alone(files, item, reason):
    files.image("62.jpg")
    files.image("63.jpg")
    labelled = files.read([image(entry("dog"), number=n) for n in (63, 61)] + [item])
    skipped = {"duplicate": "000000000061", "no key 'objects'": "000000000062"}
    owner = next((of for start, of in skipped.items() if start in reason), "images[2]")
    kept = {"000000000061", "000000000063"} - {owner}
    assert {image.image_id for image in labelled.images} == kept
    assert labelled.skipped == (SkippedItem(owner, reason),)


NOT_PIXELS = "'x y w h' is not four numbers of pixels: ['a', 1, 2, 3]"


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([3], "objects[0]: not a JSON object"),
        ([entry("dog"), {"names": ["dog"]}], "objects[1]: no key 'object_id'"),
        ([{"object_id": 1}], "objects[0]: no key 'names'"),
        ([{"object_id": 1, "names": [], "x": 1, "y": 2}], "objects[0]: no key 'w'"),
        ([entry("dog", names="dog")], "objects[0]: 'names' is not a list"),
        ([entry(box=["a", 1, 2, 3])], f"objects[0]: {NOT_PIXELS}"),
    ],
)
def test_a_malformed_object_skips_only_its_image(files, objects, reason):
    files.image("VG_100K_2/62.jpg")
    labelled = files.read([image(*objects), image(entry("dog"), number=62)])
    assert [image.image_id for image in labelled.images] == ["000000000062"]
    assert labelled.skipped == (SkippedItem("000000000061", reason),)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ([{"image_id": 61}], "no key 'attributes'"),
        ([{"image_id": 61, "attributes": [{}]}], "no key 'object_id'"),
        ([attributes_of((1, {"attributes": "red"}))], "'attributes' is not a list"),
        ([{"attributes": []}], "no key 'image_id'"),
    ],
)
def test_an_image_with_malformed_attributes_is_skipped(files, attributes, reason):
    files.image("62.jpg")
    dogs = [image(entry("dog"), number=number) for number in (61, 62)]
    labelled = files.read(dogs, attributes)
    position = "attributes.json images[0]"
    if reason == "no key 'image_id'":
        assert len(labelled.images) == 2
        assert labelled.skipped == (SkippedItem(position, reason),)
    else:
        assert [image.image_id for image in labelled.images] == ["000000000062"]
        assert labelled.skipped == (SkippedItem("000000000061", f"{position}: {reason}"),)
    only = files.read(dogs, attributes, only={"000000000062"})
    assert only.skipped == ()  # the bad item belongs to no requested image


def test_a_line_is_a_class_named_by_its_first_name_in_lower_case(tmp_path):
    text = "yolk\n Dog , DOGGY,dog,\r\n\n,\nstop sign,stopsign\n\n"
    listed = read_name_list(written(tmp_path, text))
    assert listed.names == ("yolk", "dog", "stop sign")
    assert listed.ids == {"yolk": 0, "dog": 1, "doggy": 1, "stop sign": 2, "stopsign": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog,hound\ncat\nwolf,Hound\n", "line 3 of {} repeats 'hound', a name of 'dog'; keep one"),
        (" \n,\n", "no names in {}; write one class per line, synonyms separated by commas"),
    ],
)
def test_a_list_without_names_or_with_a_name_of_two_classes_is_rejected(tmp_path, text, message):
    path = written(tmp_path, text)
    assert message_of(read_name_list, path) == message.format(repr(str(path)))


@pytest.mark.shared
@pytest.mark.skipif(not VOCABULARY.is_dir(), reason="needs ../shared/reference")
@pytest.mark.parametrize(
    ("file", "classes", "names", "alias"),
    [
        ("objects_vocab.txt", 1600, 1625, ("fridge", "refrigerator")),
        ("attributes_vocab.txt", 400, 410, ("grey", "gray")),
    ],
)
def test_the_published_lists_are_1600_classes_and_400_attributes(file, classes, names, alias):
    listed = read_name_list(VOCABULARY / file)
    assert (len(listed.names), len(listed.ids)) == (classes, names)
    assert listed.names[listed.ids[alias[0]]] == alias[1]
