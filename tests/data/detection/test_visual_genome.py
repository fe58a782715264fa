import json
from pathlib import Path

import pytest
from PIL import Image

from a2cap.data.detection.labels import WITHOUT_AREA
from a2cap.data.detection.visual_genome import (
    ABOVE_MOST,
    MOST_ATTRIBUTES,
    NO_KNOWN_OBJECT,
    UNKNOWN_ATTRIBUTE,
    UNKNOWN_OBJECT,
    clean_name,
    read_visual_genome,
    split_attribute,
    split_object_name,
)
from a2cap.data.errors import InputError

OBJECTS = "dog,puppy\ntraffic light\nstop sign,stopsign\nlight"
ATTRIBUTES = "gray,grey\nred\nblack and white\nwet\nsmall"
DOG, TRAFFIC_LIGHT, STOP_SIGN, LIGHT = range(4)
GRAY, RED, BLACK_AND_WHITE, WET, SMALL = range(5)


def thing(*names, number=1, box=(10, 20, 30, 10), **changes):
    own = dict(zip("xywh", box, strict=True))
    return own | {"object_id": number, "names": list(names), "merged_object_ids": []} | changes


def image(*objects, number=61):
    return {"image_id": number, "objects": list(objects), "image_url": "none"}


def described(*entries, number=61):
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

    def write(self, name, value):
        path = self.folder / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def image(self, place):
        Image.new("RGB", (100, 50)).save(self.images / place)

    def read(self, objects, attributes=(), *, names=OBJECTS, **options):
        return read_visual_genome(
            self.write("objects.json", objects),
            self.write("attributes.json", list(attributes)),
            self.images,
            object_names=self.write("objects_vocab.txt", names),
            attribute_names=self.write("attributes_vocab.txt", ATTRIBUTES),
            **options,
        )

    def refusal(self, *arguments, **options):
        with pytest.raises(InputError) as caught:
            self.read(*arguments, **options)
        return str(caught.value)


@pytest.fixture
def files(tmp_path):
    """With the file of image 61."""
    made = Files(tmp_path)
    made.image("VG_100K/61.jpg")
    return made


@pytest.mark.parametrize(
    ("text", "name"), [(" Dog ", "dog"), ("DOG.", "dog"), ("dog .", "dog"), ("", ""), ("a..", "a.")]
)
def test_a_name_is_lower_case_without_space_around_and_one_full_stop(text, name):
    assert clean_name(text) == name


@pytest.mark.parametrize(
    ("text", "name", "adjectives"),
    [
        ("White Dog", "dog", ("white",)),
        ("small grey dog.", "dog", ("small", "grey")),
        ("traffic light", "traffic light", ()),
        ("red traffic light", "red traffic light", ()),
        ("red", "red", ()),
        ("  ", "", ()),
    ],
)
def test_common_adjectives_before_the_last_word_are_attributes(text, name, adjectives):
    assert split_object_name(text) == (name, adjectives)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Red and Blue.", ("red", "blue")),
        ("black and white", ("black and white",)),
        ("sandy", ("sandy",)),
    ],
)
def test_and_joins_attributes_but_for_black_and_white(text, names):
    assert split_attribute(text) == names


def test_boxes_are_corners_and_classes_places_in_the_list(files):
    found = files.read([image(thing("Stopsign"), thing("puppy", "cat", box=(0, 0, 1, 2)))])
    assert found.classes == ("dog", "traffic light", "stop sign", "light")
    assert found.attributes == ("gray", "red", "black and white", "wet", "small")
    (only,) = found.images
    assert only.boxes.tolist() == [[10, 20, 40, 30], [0, 0, 1, 2]]
    assert only.class_ids.tolist() == [STOP_SIGN, DOG]
    assert (only.image_id, only.width, only.height) == ("000000000061", 100, 50)
    assert only.file == files.images / "VG_100K/61.jpg"
    assert only.crowd.tolist() == [False, False]


def test_the_first_name_alone_counts(files):
    found = files.read([image(thing("cat", "dog", number=1), thing("dog", number=2))])
    assert found.images[0].class_ids.tolist() == [DOG]


def test_attributes_of_one_object_are_merged_those_of_its_name_first(files):
    found = files.read(
        [image(thing("small dog", number=7), thing("light", number=8))],
        [
            described(
                (7, {"attributes": ["wet", "Grey and red"]}),
                (8, {}),
                (7, {"attributes": ["gray", "black and white"]}),
                (9, {"attributes": None}),
            )
        ],
    )
    assert found.images[0].attribute_ids == ((SMALL, WET, GRAY, RED, BLACK_AND_WHITE), ())


def test_attributes_belong_to_the_object_of_their_own_image(files):
    files.image("62.jpg")
    found = files.read(
        [image(thing("dog", number=7)), image(thing("dog", number=7), number=62)],
        [described((7, {"attributes": ["wet"]}), number=62)],
    )
    assert [one.attribute_ids for one in found.images] == [((),), ((WET,),)]


def test_attributes_above_the_most_are_dropped_and_counted(files):
    names = ["wet", "red", "small"]
    found = files.read(
        [image(thing("dog"))], [described((1, {"attributes": names}))], most_attributes=2
    )
    assert found.images[0].attribute_ids == ((WET, RED),)
    assert found.dropped[ABOVE_MOST] == 1
    assert MOST_ATTRIBUTES == 16


def test_what_is_not_known_is_dropped_and_counted(files):
    objects = [thing("cat"), thing(), thing(None), thing("wet dog"), thing("dog")]
    objects.append(thing("dog", box=(100, 0, 5, 5)))
    found = files.read(
        [image(*objects)], [described((1, {"attributes": ["odd", 3, "wet and old"]}))]
    )
    assert found.images[0].class_ids.tolist() == [DOG]
    assert found.dropped == {
        UNKNOWN_OBJECT: 4,
        WITHOUT_AREA: 1,
        UNKNOWN_ATTRIBUTE: 4,
        ABOVE_MOST: 0,
    }


def test_boxes_are_clipped_to_the_image_of_the_file(files):
    found = files.read([image(thing("dog", box=(-5, 40, 500, 20)))])
    assert found.images[0].boxes.tolist() == [[0, 40, 100, 50]]


def test_images_are_in_the_order_of_their_ids_wherever_their_files_are(files):
    files.image("VG_100K_2/9.jpg")
    files.image("100.jpg")
    found = files.read([image(thing("dog"), number=n) for n in (100, 9, 61)])
    assert [one.file.name for one in found.images] == ["9.jpg", "61.jpg", "100.jpg"]


def test_an_image_without_a_usable_file_is_skipped_with_the_reason(files):
    (files.images / "7.jpg").write_text("torn")
    found = files.read([image(thing("dog"), number=n) for n in (61, 62, 7)])
    assert [one.image_id for one in found.images] == ["000000000061"]
    assert [(item.image_id, item.reason) for item in found.skipped] == [
        ("000000000062", "no file '62.jpg'"),
        ("000000000007", "not an image: '7.jpg' has no readable header"),
    ]


def test_images_without_a_known_object_are_skipped_however_many(files):
    for number in range(100, 120):
        files.image(f"{number}.jpg")
    unknown = [image(thing("cat"), number=number) for number in range(100, 120)]
    found = files.read([image(thing("dog")), *unknown])
    assert [one.image_id for one in found.images] == ["000000000061"]
    assert {item.reason for item in found.skipped} == {NO_KNOWN_OBJECT}
    assert len(found.skipped) == 20


def test_more_missing_files_than_the_limit_are_refused(files):
    objects = [image(thing("dog"), number=number) for number in range(61, 73)]
    assert files.refusal(objects).startswith(
        "11 of 12 images cannot be used, at most 10 may be left out: "
        "'000000000062' (no file '62.jpg'), "
    )


def test_only_the_images_of_a_split_are_taken_and_looked_for(files):
    objects = [image(thing("dog"), number=number) for number in range(61, 90)]
    found = files.read(objects, only={"000000000061"})
    assert [one.image_id for one in found.images] == ["000000000061"]
    assert found.skipped == ()


def test_an_id_of_a_split_that_is_not_in_the_file_is_refused(files):
    found = files.refusal([image(thing("dog"))], only={"000000000061", "000000000062"})
    assert found == (
        "no labelled image '000000000062' (1 of 2 are missing); "
        "remove its id from the list, or add its labels"
    )


def test_no_image_file_at_all_is_refused(files):
    message = files.refusal([image(thing("dog"), number=5)])
    assert message == (
        f"no image of {str(files.folder / 'objects.json')!r} is in {str(files.images)!r} "
        "(1 looked for); check the folder"
    )


def test_a_list_that_names_no_object_of_the_file_is_refused(files):
    message = files.refusal([image(thing("dog"))], names="chien\nchat")
    assert message == (
        f"no object of {str(files.folder / 'objects.json')!r} is listed in "
        f"{str(files.folder / 'objects_vocab.txt')!r}; check that list"
    )


def without(item, key):
    return {name: value for name, value in item.items() if name != key}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (3, "not a JSON object"),
        ({"objects": []}, "no key 'image_id'"),
        ({"image_id": 62}, "no key 'objects'"),
        ({"image_id": 62.5, "objects": []}, "'image_id' is neither an integer nor a string"),
        (image(), "duplicate image '000000000061'"),
        (
            image(number="../62"),
            "image path leaves the image folder: '../62.jpg'; give it without '..'",
        ),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_by_its_place(files, item, reason):
    place = f"images[1] of {str(files.folder / 'objects.json')!r}"
    message = files.refusal([image(thing("dog")), item])
    assert message == f"{place}: {reason}; fix or remove that item"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (3, "not a JSON object"),
        (without(thing("dog"), "object_id"), "no key 'object_id'"),
        (without(thing("dog"), "names"), "no key 'names'"),
        (without(thing("dog"), "w"), "no key 'w'"),
        (thing("dog", names="dog"), "'names' is not a list"),
        (
            thing("dog", box=("a", "b", "c", "d")),
            "'x y w h' is not four numbers of pixels: ['a', 'b', 'c', 'd']",
        ),
    ],
)
def test_an_object_that_cannot_be_read_is_refused_by_its_place(files, item, reason):
    place = f"images[0] of {str(files.folder / 'objects.json')!r}: objects[1]"
    message = files.refusal([image(thing("dog"), item)])
    assert message == f"{place}: {reason}; fix or remove that item"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"image_id": 61}, "no key 'attributes'"),
        ({"image_id": 61, "attributes": [{}]}, "no key 'object_id'"),
        (described((1, {"attributes": "red"})), "'attributes' is not a list"),
    ],
)
def test_attributes_that_cannot_be_read_are_refused_by_their_place(files, item, reason):
    place = f"images[0] of {str(files.folder / 'attributes.json')!r}"
    message = files.refusal([image(thing("dog"))], [item])
    assert message == f"{place}: {reason}; fix or remove that item"


def test_a_file_of_another_layout_is_refused(files):
    path = files.folder / "objects.json"
    assert files.refusal({"images": []}) == (
        f"not a JSON list: {str(path)!r}; name a file that contains one"
    )
