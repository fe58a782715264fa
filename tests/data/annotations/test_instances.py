import numpy as np
import pytest

from a2cap.data.annotations.instances import read_instances
from tests.data.messages import message_of, written


def box(order=1, image=42, **changes):
    return {"id": order, "image_id": image, "bbox": [10, 20, 30.5, 40], "iscrowd": 0} | changes


def instances(folder, *annotations, **changes):
    images = [
        {"id": 42, "file_name": "COCO_val2014_000000000042.jpg"},
        {"id": 7, "file_name": "7.jpg"},
    ]
    return written(folder, {"images": images, "annotations": annotations} | changes)


def test_boxes_are_corners_in_the_order_of_annotation_ids(tmp_path):
    outside = box(11, bbox=[-3, 2**24, 1, 2])
    boxed = read_instances(instances(tmp_path, box(9), outside, box(2, bbox=[0, 0, 5, 5])))
    assert list(boxed) == ["000000000042", "000000000007"]
    assert boxed["000000000042"].boxes.tolist() == [
        *([0, 0, 5, 5], [10, 20, 40.5, 60]),
        [-3, 2**24, -2, 2**24 + 2],
    ]
    assert boxed["000000000042"].names == ("", "", "")  # the file has no categories
    assert {image.boxes.dtype for image in boxed.values()} == {np.dtype(np.float32)}
    assert boxed["000000000007"].boxes.shape == (0, 4)


def test_crowds_and_boxes_without_area_are_left_out(tmp_path):
    path = instances(
        tmp_path,
        box(1, iscrowd=1),
        box(2, bbox=[1, 1, 0, 5]),
        box(3, bbox=[1, 1, 5, -1]),
        {"id": 4, "image_id": 42, "bbox": [1, 2, 3, 4]},
    )
    assert read_instances(path)["000000000042"].boxes.tolist() == [[1, 2, 4, 6]]


def test_boxes_have_the_names_of_their_categories(tmp_path):
    categories = [{"id": 3, "name": "hot dog"}, {"id": 5}, "none"]
    boxes = [box(9, category_id=3), box(2, category_id=5), box(4, category_id=[3]), box(5)]
    boxed = read_instances(instances(tmp_path, *boxes, categories=categories))
    assert boxed["000000000042"].names == ("", "", "", "hot dog")
    assert boxed["000000000042"].boxes.shape == (4, 4)
    assert boxed["000000000007"].names == ()
    assert boxed["000000000042"].class_ids.tolist() == [-1, -1, -1, 3]


def test_boxes_belong_to_an_image_of_the_stated_size(tmp_path):
    stated = {"id": 1, "file_name": "1.jpg", "width": 40, "height": 30}
    unstated = {"id": 2, "file_name": "2.jpg", "width": "40"}
    boxed = read_instances(instances(tmp_path, images=[stated, unstated]))
    assert [image.size for image in boxed.values()] == [(40, 30), None]
    boxed["000000000001"].require_usable(40, 30)
    boxed["000000000002"].require_usable(1, 1)
    assert message_of(boxed["000000000001"].require_usable, 30, 40) == (
        "image of 30 x 40 pixels after EXIF rotation, its boxes expect 40 x 30; "
        "correct them and the size beside them"
    )


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (3, "not a JSON object"),
        ({"id": 1, "bbox": [1, 2, 3, 4]}, "no key 'image_id'"),
        ({"image_id": 42, "bbox": [1, 2, 3, 4]}, "no key 'id'"),
        ({"id": 1, "image_id": 42}, "no key 'bbox'"),
        (box(image=5), "box of an unknown image: 5"),
        (box(image=True), "'image_id' is neither an integer nor a string"),
        (box(image=[42]), "'image_id' is neither an integer nor a string"),
        (box(id="a"), "'id' is not an integer"),
        (box(id=True), "'id' is not an integer"),
        (box(bbox="1 2 3 4"), "'bbox' is not a list"),
        (box(score=1.5), "'score' is not from 0 to 1: 1.5"),
        (box(score="high"), "'score' is not from 0 to 1: 'high'"),
        *[
            (box(bbox=numbers), f"'bbox' is not four numbers of pixels: {numbers}")
            for numbers in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, None], [1, 2, 3, 1e30])
        ],
    ],
)
def test_a_bad_box_makes_only_the_boxes_of_its_image_unusable(tmp_path, caplog, annotation, reason):
    path = instances(tmp_path, box(), annotation, box(3, image=7))
    boxed = read_instances(path)
    boxed["000000000007"].require_usable(640, 480)
    if isinstance(annotation, dict) and annotation.get("image_id") == 42:
        assert message_of(boxed["000000000042"].require_usable, 1, 1) == (
            f"annotations[1]: {reason}; fix or remove it"
        )
    else:
        boxed["000000000042"].require_usable(640, 480)
        assert caplog.messages == [f"skipped annotations[1] of {str(path)!r}: {reason}"]


def test_too_many_bad_boxes_are_rejected(tmp_path):
    path = instances(tmp_path, *(box(number, bbox=[]) for number in range(11)))
    assert message_of(read_instances, path).startswith(
        f"11 of 11 boxes of {str(path)!r} cannot be used, at most 1 may be left out: "
        "'000000000042' (annotations[0]: 'bbox' is not four numbers of pixels: []), "
    )


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"id": 1}, "no key 'file_name'"),
        (
            {"id": 1, "file_name": "../a.jpg"},
            "image path leaves the image folder: '../a.jpg'; give it without '..'",
        ),
        ({"id": 42, "file_name": "a.jpg"}, "duplicate id 42"),
        ({"id": 1, "file_name": "42.jpg"}, "duplicate image '000000000042'"),
    ],
)
@pytest.mark.usefixtures("tolerant")
def test_a_bad_image_makes_only_its_own_boxes_unusable(tmp_path, caplog, image, reason):
    good = [{"id": number, "file_name": f"{number}.jpg"} for number in (42, 7)]
    path = instances(tmp_path, box(), box(2, image=1), images=[*good, image])
    boxed = read_instances(path)
    boxed["000000000007"].require_usable(640, 480)
    if "duplicate" in reason:  # both images are bad: nothing states whose their boxes are
        assert message_of(boxed["000000000042"].require_usable, 1, 1) == (
            f"images[2]: {reason}; fix or remove it"
        )
    else:
        boxed["000000000042"].require_usable(640, 480)
        assert caplog.messages == [f"skipped images[2] of {str(path)!r}: {reason}"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "not a JSON object"),
        ({"annotations": []}, "no key 'images'"),
        ({"images": []}, "no key 'annotations'"),
        ({"images": 3, "annotations": []}, "'images' is not a list"),
    ],
)
def test_a_file_of_another_format_is_rejected(tmp_path, document, problem):
    path = written(tmp_path, document)
    assert message_of(read_instances, path) == (
        f"not COCO instances: {str(path)!r} ({problem}); give instances_*.json"
    )


@pytest.mark.parametrize(
    ("bbox", "reason"),
    [
        (
            [60, 20, 90, 60],  # x1 y1 x2 y2
            "box 0 is outside the image of 100 x 80 pixels: [60.0, 20.0, 90.0, 60.0]; are the "
            "boxes x1 y1 x2 y2? Write x y w h",
        ),
        (
            [70, 40, 50, 60],  # centre and sides
            "box 0 is outside the image of 100 x 80 pixels: [70.0, 40.0, 50.0, 60.0]; are the "
            "boxes cx cy w h? Write x y w h",
        ),
        (
            [0.1, 0.2, 0.5, 0.5],
            "all boxes are within 0 to 1 in an image of 100 x 80 pixels: [0.1, 0.2, 0.5, 0.5]; "
            "multiply them by its width and height",
        ),
    ],
)
def test_boxes_of_another_convention_are_refused(tmp_path, bbox, reason):
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 100, "height": 80} for n in range(1, 5)]
    boxes = [box(n, n, bbox=bbox) for n in range(1, 4)] + [box(4, 4, bbox=[1, 2, 3, 4])]
    path = instances(tmp_path, *boxes, images=images)
    assert message_of(read_instances, path) == (
        f"boxes of 3 of 4 images of {str(path)!r} are not as in COCO, first '000000000001': "
        f"{reason}"
    )
    few = instances(tmp_path, *boxes[:2], images=images)
    assert message_of(read_instances(few)["000000000001"].require_usable, 100, 80) == reason
