import json

import numpy as np
import pytest

from a2cap.data.detection.coco import REPEATED, read_coco
from a2cap.data.detection.labels import WITHOUT_AREA
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.scenes.generate import write_scenes
from tests.data.messages import bad_item, message_of, touch, written

NO_LIST = "'attributes' is not a list"
CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "hot dog"}]
ATTRIBUTES = [{"id": 2, "name": "small"}, {"id": 1, "name": "red"}]


def image(number=42, **changes):
    own = {"id": number, "file_name": f"{number}.jpg", "width": 100, "height": 50}
    return own | changes


def box(order=1, image=42, **changes):
    own = {"id": order, "image_id": image, "bbox": [10, 20, 30.5, 10], "category_id": 18}
    return own | changes


def instances(folder, *annotations, files=("42.jpg", "7.jpg"), **changes):
    """The path of instances.json with images 42 and 7, which have files."""
    touch(folder / "images", *files)
    own = {"images": [image(42), image(7)], "categories": CATEGORIES}
    return written(folder, own | {"annotations": annotations} | changes)


def read(path, **options):
    return read_coco(path, path.parent / "images", **options)


def test_images_and_categories_are_ordered_by_id_and_boxes_by_annotation_id(tmp_path):
    path = instances(tmp_path, box(9), box(2, bbox=[0, 0, 5, 5], category_id=3))
    labelled = read(path)
    assert [image.image_id for image in labelled.images] == ["000000000007", "000000000042"]
    without_boxes, image = labelled.images
    assert without_boxes.boxes.shape == (0, 4)
    assert image.boxes.tolist() == [[0, 0, 5, 5], [10, 20, 40.5, 30]]
    assert image.file == tmp_path / "images/42.jpg"
    assert (image.width, image.height) == (100, 50)
    assert labelled.classes == ("hot dog", "dog")
    assert image.class_ids.tolist() == [0, 1]


def test_crowds_are_marked_and_boxes_without_area_dropped_and_counted(tmp_path):
    labelled = read(instances(tmp_path, box(1, iscrowd=1), box(2, iscrowd=0), box(3)))
    assert labelled.images[1].crowd.tolist() == [True, False, False]
    assert labelled.dropped == {WITHOUT_AREA: 0, REPEATED: 0}
    path = instances(tmp_path, box(1, bbox=[0, 0, 0, 5]), box(2, bbox=[200, 0, 9, 9]), box(3))
    labelled = read(path)
    assert labelled.images[1].boxes.tolist() == [[10, 20, 40.5, 30]]
    assert labelled.dropped == {WITHOUT_AREA: 2, REPEATED: 0}


def test_an_annotation_that_occurs_twice_counts_once(tmp_path):
    moved = box(1, bbox=[0, 0, 5, 5])  # another box with the same id counts
    labelled = read(instances(tmp_path, box(1), moved, box(1), box(1)))
    assert labelled.images[1].boxes.tolist() == [[10, 20, 40.5, 30], [0, 0, 5, 5]]
    assert labelled.dropped[REPEATED] == 2


def test_attributes_are_read_only_if_the_file_lists_them(tmp_path):
    boxes = [box(1, attributes=["small", "red", "small"]), box(2, attributes=[]), box(3)]
    labelled = read(instances(tmp_path, *boxes, attributes=ATTRIBUTES))
    assert labelled.attributes == ("red", "small")
    assert labelled.images[1].attribute_ids == ((1, 0), (), ())
    labelled = read(instances(tmp_path, box(1, attributes={"occluded": False})))
    assert (labelled.attributes, labelled.images[1].attribute_ids) == ((), ((),))


def test_only_the_requested_images_are_read_and_all_must_be_in_the_file(tmp_path):
    path = instances(tmp_path, box(), box(2, 7), files=["42.jpg"])
    labelled = read(path, only={"000000000042"})
    assert [image.image_id for image in labelled.images] == ["000000000042"]
    assert labelled.skipped == ()
    assert message_of(read, path, only={"000000000042", "x"}).startswith("no labelled image 'x' ")


def test_a_listed_name_that_may_be_the_id_of_another_image_is_rejected(tmp_path):
    images = [image(42, id=7), image(7, id="img_1")]
    path = instances(tmp_path, box(image=7), images=images)
    assert [image.image_id for image in read(path, only=["7.jpg"]).images] == ["000000000007"]
    for name in ("7", "000000000007", "img_1"):
        assert message_of(read, path, only=[name]) == (
            f"listed image {name!r} is the id that {str(path)!r} gives to the file "
            f"'{'7' if name == 'img_1' else '42':0>12}'; list the names of files with their suffix"
        )


def test_an_image_without_a_file_is_skipped_with_its_file_name(tmp_path):
    labelled = read(instances(tmp_path, box(), files=["42.jpg"]))
    assert [image.image_id for image in labelled.images] == ["000000000042"]
    assert labelled.skipped == (SkippedItem("000000000007", "no file '7.jpg'"),)


def test_a_folder_without_any_of_the_images_is_rejected(tmp_path):
    path = instances(tmp_path, box(), files=["other.jpg"])
    assert message_of(read, path) == (
        f"no image of {str(path)!r} is in {str(tmp_path / 'images')!r} (2 searched); "
        "check the folder"
    )


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (box(image=5), "box of an unknown image: 5"),
        (box(category_id=4), "'category_id' is not among the categories: 4"),
        (box(category_id=[3]), "'category_id' is not an integer"),
        (box(bbox="1 2 3 4"), "'bbox' is not a list"),
        (box(attributes={"red": True}), "'attributes' is not a list"),
        (box(attributes=["wet"]), "attribute is not among the file's attributes: 'wet'"),
        (box(attributes=[[1]]), "attribute is not among the file's attributes: [1]"),
    ],
)
def test_a_bad_box_skips_only_its_image(tmp_path, annotation, reason):
    labelled = read(instances(tmp_path, box(), annotation, box(3, 7), attributes=ATTRIBUTES))
    if annotation["image_id"] == 42:
        assert [image.image_id for image in labelled.images] == ["000000000007"]
        assert labelled.skipped == (SkippedItem("000000000042", f"annotations[1]: {reason}"),)
    else:
        assert len(labelled.images) == 2
        assert labelled.skipped == (SkippedItem("annotations[1]", reason),)


@pytest.mark.parametrize(
    ("entry", "owner", "reason"),
    [
        ({"id": 1}, None, "no key 'file_name'"),
        ({"file_name": "1.jpg", "width": 9, "height": 9}, "1", "no key 'id'"),
        (image(1, id=[1]), "1", "'id' is neither an integer nor a string"),
        (image(1, width="9"), "1", "'width' is not an integer"),
        ({"id": 1, "file_name": "1.jpg", "width": 9}, "1", "no key 'height'"),
        (image(1, height=0), "1", "image of 100 x 0 pixels"),
        (image(1, file_name="42.jpg"), "42", "duplicate image '000000000042'"),
    ],
)
@pytest.mark.usefixtures("tolerant")
def test_a_bad_image_is_skipped_alone_with_its_boxes(tmp_path, entry, owner, reason):
    boxes = [box(number, image) for number, image in enumerate((1, 1, 42, 7))]
    path = instances(tmp_path, *boxes, images=[image(42), image(7), entry])
    owner = "images[2]" if owner is None else owner.zfill(12)
    labelled = read(path)
    kept = {"000000000042", "000000000007"} - {owner}
    assert {image.image_id for image in labelled.images} == kept
    position = "images[2]: " if owner != "images[2]" else ""
    expected = [SkippedItem(owner, f"{position}{reason}")]
    if entry.get("id") != 1:  # the boxes of an unknown id are listed once
        expected.insert(0, SkippedItem("annotations[0]", "box of an unknown image: 1"))
    assert set(labelled.skipped) == set(expected)
    # a list of ids may name the image, whether or not its entry does
    ids = {"000000000001", "000000000007"}
    if owner != "000000000042":
        assert [image.image_id for image in read(path, only=ids).images] == ["000000000007"]


@pytest.mark.usefixtures("tolerant")
def test_images_that_share_an_id_are_both_skipped(tmp_path):
    path = instances(tmp_path, box(), images=[image(42), image(7), image(8, id=42)])
    labelled = read(path)
    assert [image.image_id for image in labelled.images] == ["000000000007"]
    reason = "images[2]: duplicate id 42"
    skipped = {SkippedItem(owner.zfill(12), reason) for owner in ("42", "8")}
    assert set(labelled.skipped) == skipped


def test_more_bad_images_than_the_limit_are_rejected(tmp_path):
    path = instances(tmp_path, images=[image(42), *({"id": n} for n in range(11))])
    assert message_of(read, path).startswith(
        f"11 of 12 images of {str(path)!r} cannot be used, at most 1 may be left out: "
        "'images[1]' (no key 'file_name'), "
    )


@pytest.mark.parametrize(
    ("key", "item", "reason"),
    [
        ("categories", {"id": True, "name": "x"}, "'id' is not an integer"),
        ("categories", {"id": 42, "name": 3}, "'name' is not a string"),
        ("categories", {"id": 3, "name": "x"}, "duplicate id 3"),
        ("categories", {"id": 5, "name": "hot dog"}, "duplicate name 'hot dog'"),
        ("attributes", {"id": 3}, "no key 'name'"),
        ("attributes", {"id": 3, "name": "red"}, "duplicate name 'red'"),
    ],
)
def test_a_bad_entry_is_rejected_with_its_position(tmp_path, key, item, reason):
    good = {"images": [image()], "categories": CATEGORIES[1:], "attributes": ATTRIBUTES[1:]}
    path = instances(tmp_path, **(good | {key: [*good[key], item]}))
    assert message_of(read, path) == bad_item(path, f"{key}[1]", reason)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"images": [], "annotations": []}, "no key 'categories'"),
        ({"images": [], "annotations": [], "categories": [], "attributes": {}}, NO_LIST),
    ],
)
def test_a_file_of_another_format_is_rejected(tmp_path, document, problem):
    path = written(tmp_path, document)
    assert message_of(read, path) == (
        f"not COCO instances: {str(path)!r} ({problem}); give instances_*.json"
    )


def test_generated_scenes_are_detection_data(tmp_path):
    write_scenes(tmp_path / "scenes", count=3, side=96)
    document = json.loads((tmp_path / "scenes/instances.json").read_text())
    labelled = read(tmp_path / "scenes/instances.json")
    boxes = np.concatenate([image.boxes for image in labelled.images])
    sides = np.array([item["bbox"] for item in document["annotations"]], dtype=np.float32)
    corners = np.hstack([sides[:, :2], sides[:, :2] + sides[:, 2:]]).clip(0, 96)
    np.testing.assert_allclose(boxes, corners, atol=1e-4)
    assert labelled.classes == tuple(item["name"] for item in document["categories"])
    assert [image.file.is_file() for image in labelled.images] == [True] * 3
