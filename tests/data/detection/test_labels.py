from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.detection.labels import DetectionData, Label, labelled_image
from a2cap.data.files.sealed_folder import SkippedItem
from tests.data.messages import message_of

coordinates = st.floats(-500, 500, width=32)


def image(identity="1", *labels, width=100, height=50):
    return labelled_image(
        identity, Path(f"{identity}.jpg"), width=width, height=height, labels=labels
    )


def data(*identities):
    return DetectionData(("cat",), (), tuple(image(identity) for identity in identities))


def test_boxes_are_clipped_and_arrays_have_the_documented_shapes_and_types():
    labelled = image("1", Label((1, 2, 3, 4), 5, (7, 0)), Label((-5, 10, 120, 60), 0, crowd=True))
    assert labelled.boxes.tolist() == [[1, 2, 3, 4], [0, 10, 100, 50]]
    assert (labelled.boxes.dtype, labelled.boxes.shape) == (np.float32, (2, 4))
    assert (labelled.class_ids.dtype, labelled.class_ids.tolist()) == (np.int64, [5, 0])
    assert (labelled.crowd.dtype, labelled.crowd.tolist()) == (np.bool_, [False, True])
    assert labelled.attribute_ids == ((7, 0), ())
    empty = image()
    assert (empty.boxes.dtype, empty.boxes.shape) == (np.float32, (0, 4))
    assert (empty.class_ids.dtype, empty.crowd.dtype) == (np.int64, np.bool_)


def test_boxes_without_area_inside_the_image_are_removed_with_their_labels():
    outside, upside_down, line = (120, 5, 130, 9), (5, 9, 8, 2), (5, 5, 5, 9)
    labels = [Label(box, 1, (1,), crowd=True) for box in (outside, upside_down, line)]
    labelled = image("1", *labels, Label((1, 1, 2, 2), 3, (4,)))
    assert labelled.boxes.tolist() == [[1, 1, 2, 2]]
    assert labelled.class_ids.tolist() == [3]
    assert labelled.attribute_ids == ((4,),)
    assert labelled.crowd.tolist() == [False]


@given(st.lists(st.tuples(coordinates, coordinates, coordinates, coordinates)))
def test_all_boxes_are_inside_the_image_and_have_an_area(boxes):
    kept = image("1", *(Label(box, 0) for box in boxes)).boxes
    assert ((kept[:, :2] >= 0) & (kept[:, 2:] <= (100, 50))).all()
    assert (kept[:, 2:] > kept[:, :2]).all()


def test_a_subset_keeps_the_order_of_the_data_and_ignores_skipped_images():
    one_skipped = replace(data("1", "2", "3"), skipped=(SkippedItem("4", "no file"),))
    subset = one_skipped.subset(["3", "4", "1"])
    assert [picked.image_id for picked in subset.images] == ["1", "3"]


def test_an_entry_that_names_no_image_may_be_that_of_a_missing_one():
    one_unnamed = replace(data("1", "2"), skipped=(SkippedItem("images[2]", "no file name"),))
    assert [picked.image_id for picked in one_unnamed.subset(["2", "7"]).images] == ["2"]
    assert message_of(one_unnamed.subset, ["2", "7", "8"]).startswith("no labelled image '7' ")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            ["9", "2", "8"],
            "no labelled image '8' (2 of 3 are missing); remove its id from the list, "
            "or add its labels",
        ),
        (["3"], "none of 1 images can be used; check their files and labels"),
    ],
)
def test_a_subset_with_an_unknown_image_or_without_a_usable_one_is_rejected(wanted, message):
    one_skipped = replace(data("1", "2"), skipped=(SkippedItem("3", "no file"),))
    assert message_of(one_skipped.subset, wanted) == message
