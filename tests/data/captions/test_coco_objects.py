"""Categories of COCO that captions mention, and those that images have."""

import json

import pytest

from a2cap.data.captions.coco_objects import (
    coco_categories,
    coco_words,
    mentions_of,
    objects_of_images,
    read_coco_objects,
)
from a2cap.data.errors import InputError
from tests.data.messages import message_of

EIGHTY = (
    (
        "person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant "
        "stop_sign parking_meter bench bird cat dog horse sheep cow elephant bear zebra giraffe "
        "backpack umbrella handbag tie suitcase frisbee skis snowboard sports_ball kite "
        "baseball_bat baseball_glove skateboard surfboard tennis_racket bottle wine_glass cup fork "
        "knife spoon bowl "
        "banana apple sandwich orange broccoli carrot hot_dog pizza donut cake chair couch "
        "potted_plant bed dining_table toilet tv laptop mouse remote keyboard cell_phone microwave "
        "oven toaster sink refrigerator book clock vase scissors teddy_bear hair_drier toothbrush"
    )
    .replace(" ", ",")
    .replace("_", " ")
    .split(",")
)


def test_the_list_has_cocos_80_categories_by_their_names():
    assert coco_categories() == frozenset(EIGHTY)
    assert len(EIGHTY) == 80
    for name in EIGHTY:
        assert mentions_of(f"a {name}") == [name]


def test_no_phrase_is_of_two_categories():
    phrases = [tuple(words) for words in coco_words().categories]
    assert len(set(phrases)) == len(phrases)  # a mapping, whose file may list one twice
    assert mentions_of("two buses , puppies and berries") == ["bus", "dog"]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a hot dog next to a dog", ["hot dog", "dog"]),  # the longest phrase
        ("a teddy bear and a bear", ["teddy bear", "bear"]),
        ("a hot dog stand at a bus stop", []),
        ("an orange cat on train tracks", ["cat"]),
        ("a cat eats an orange", ["cat", "orange"]),
        ("an orange on a plate", ["orange"]),
        ("two oranges", ["orange"]),
        ("a baby elephant and a baby lying down", ["elephant", "person"]),
        ("a couple of zebras", ["zebra"]),
        ("a couple sitting on a couch", ["person", "couch"]),
        ("women with knives", ["person", "knife"]),
        ("a dog and a dog", ["dog", "dog"]),
        ("", []),
        ("a thing", []),
    ],
)
def test_mentions_are_the_longest_phrases_in_their_order(caption, expected):
    assert mentions_of(caption) == expected


def instances(tmp_path, names=("dog", "person"), **changes):
    """Write instances of two images: a dog and a crowd, and none."""
    path = tmp_path / "instances.json"
    boxes = [("dog", 0), ("person", 1)]
    document = {
        "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
        "categories": [{"id": 10 + i, "name": name} for i, name in enumerate(names)],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 10 + i, "bbox": [0, 0, 5, 5], "iscrowd": crowd}
            for i, (_, crowd) in enumerate(boxes)
        ],
    }
    path.write_text(json.dumps({**document, **changes}))
    return path


def test_images_have_the_categories_of_instances_crowds_and_references(tmp_path):
    annotated = read_coco_objects(instances(tmp_path))
    first, second = sorted(annotated)
    assert annotated == {first: {"dog", "person"}, second: frozenset()}
    references = {first: ["a dog"], second: ["a cat on a sofa", "a kitten"]}
    assert objects_of_images(references, annotated) == {
        first: {"dog", "person"},
        second: {"cat", "couch"},
    }


def test_other_files_and_other_images_are_rejected(tmp_path):
    path = instances(tmp_path, names=("ball", "dog"))
    assert message_of(read_coco_objects, path, error=InputError) == (
        f"not COCO's 80 categories: ball in {str(path)!r}; CHAIR needs COCO's "
        "instances_train2014.json or instances_val2014.json"
    )
    path = instances(tmp_path, categories=[])
    assert message_of(read_coco_objects, path, error=InputError).startswith(
        "not COCO's 80 categories: none in "
    )
    path.write_text(json.dumps({"images": [], "annotations": []}))
    assert message_of(read_coco_objects, path, error=InputError) == (
        f"not COCO instances: {str(path)!r} (no key 'categories'); give instances_*.json"
    )
    references = {"1": ["a dog"], "7": ["a dog"]}
    assert message_of(objects_of_images, references, {"1": frozenset()}, error=InputError) == (
        "no instances of 1 of 2 images: 7; name the instances of the same images"
    )
