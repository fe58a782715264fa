"""Features of another convention than the one they are read in are scaled, or refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from a2cap.data import box_check
from a2cap.data.box_check import BoxEvidence, corners
from a2cap.data.features.formats.feature_source import ReadHints
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import cell_boxes
from a2cap.pipeline.extraction.convert import convert
from a2cap.pipeline.extraction.open_features import open_features
from tests.data.messages import message_of
from tests.pipeline.extraction.test_open_features import (
    CAFFE,
    IDS,
    SIZE,
    assert_read,
    boxes_of,
    features_of,
    record,
    text,
    tsv,
    write_tsv,
)

pytestmark = pytest.mark.usefixtures("tolerant")


def changed(folder, change, ids=IDS):
    """Write a TSV of boxes that a function changes."""
    rows = [{**record(i), "boxes": change(boxes_of(i))} for i in ids]
    return write_tsv(folder / "x.tsv", rows, CAFFE)


def as_xywh(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def as_cxcywh(boxes):
    sides = boxes[:, 2:] - boxes[:, :2]
    return np.concatenate([boxes[:, :2] + sides / 2, sides], axis=1)


def as_yxyx(boxes):
    return boxes[:, [1, 0, 3, 2]]


def test_relative_boxes_are_scaled_with_one_notice(tmp_path, caplog):
    path = changed(tmp_path, lambda boxes: boxes / np.array([*SIZE, *SIZE], np.float32))
    assert_read(path, atol=1e-4)
    assert caplog.messages == [
        "'x.tsv' (TSV): boxes are within 0 to 1: they are multiplied by width and height"
    ]


def test_relative_boxes_without_image_sizes_are_refused(tmp_path):
    for i in IDS:
        np.savez(tmp_path / f"{i}.npz", features=features_of(i), boxes=boxes_of(i) / 200)
    assert message_of(convert, tmp_path, tmp_path.with_name("store"), form="a2").startswith(
        f"no image of {str(tmp_path)!r} can be read, first {IDS[0]!r}: size of image {IDS[0]!r} is "
        "unknown; name the folder of the images"
    )


@pytest.mark.parametrize(
    ("change", "order", "problem"),
    [
        (as_xywh, "xywh", " read as x1 y1 x2 y2; are the boxes x y w h"),
        (as_cxcywh, "cxcywh", " read as x1 y1 x2 y2; are the boxes cx cy w h? "),
        (as_yxyx, "yxyx", "; are the boxes y1 x1 y2 x2, or the size height before width? "),
    ],
)
def test_another_order_of_the_numbers_is_refused_and_read_by_name(tmp_path, change, order, problem):
    path = changed(tmp_path, change)
    if order == "yxyx":  # boxes that reach to the right, where the image is not that high
        path = changed(
            tmp_path, lambda boxes: change(np.maximum(boxes, [0, 0, 115, 0]).astype("f4"))
        )
    message = message_of(convert, path, tmp_path / "store", form="a2")
    assert message.startswith(
        "3 of the first 3 images of 'x.tsv' (TSV) are refused, first '0000000"
    )
    assert problem in message
    assert f"--boxes {order}" in message.rpartition("Name the order with ")[2]
    if order != "yxyx":
        assert_read(path, ReadHints(order=order), atol=1e-4)
    else:
        assert [*open_features(path, ReadHints(order=order))]


def test_orders_are_read_as_corners():
    boxes = boxes_of(IDS[0])
    for order, change in (("xywh", as_xywh), ("cxcywh", as_cxcywh), ("yxyx", as_yxyx)):
        np.testing.assert_allclose(corners(change(boxes), order), boxes, atol=1e-5)


def test_one_image_of_another_convention_is_skipped(tmp_path):
    rows = [record(i) for i in IDS]
    rows[1]["boxes"] = boxes_of(IDS[1])[:, [2, 3, 0, 1]]
    made = convert(write_tsv(tmp_path / "x.tsv", rows, CAFFE), tmp_path / "store", form="a2")
    assert (made.count, made.width) == (2, 32)
    [skipped] = made.skipped
    assert skipped.image_id == IDS[1]
    assert skipped.reason.startswith("line 2: box 0 ends before it begins: [")


def squares(change):
    rows = []
    for number in range(1, 13):
        rng = np.random.default_rng(number)
        start = rng.uniform([0, 30], [30, 60], (6, 2))  # below the middle
        boxes = np.concatenate([start, start + 30], axis=1).astype("f4")
        sides = {"image_w": 90, "image_h": 90, "image_id": number}
        rows.append({**record(IDS[0]), **sides, "boxes": change(boxes)})
    return rows


def test_swapped_axes_of_square_images_are_noticed(tmp_path, caplog):
    path = write_tsv(tmp_path / "x.tsv", squares(as_yxyx), CAFFE)
    assert len([*open_features(path)]) == 12
    assert caplog.messages == [
        "'x.tsv' (TSV): all images are square, and the objects of photographs would be right of "
        "the middle in place of below it; if the boxes are y1 x1 y2 x2, convert with --boxes yxyx"
    ]
    caplog.clear()
    assert len([*open_features(path, ReadHints(order="yxyx"))]) == 12
    assert caplog.messages == []


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("is_swapped", [True, False])
def test_swapped_axes_of_the_published_images_are_noticed_without_any_of_them(
    is_swapped, monkeypatch
):
    file = Path(__file__).parents[5] / "shared/reference/caffe_features/train2014_obj36.tsv"
    if not file.is_file():
        pytest.skip("the reference features are not beside the checkout")
    monkeypatch.setattr(box_check, "_FEWEST", 9)
    regions = [item.regions for item in open_features(file)]
    for left_out in range(-1, 10):
        axes = BoxEvidence()
        for number, image in enumerate(regions):
            square = image.boxes / np.array([image.width, image.height] * 2, np.float32)
            if number != left_out:
                axes.add(as_yxyx(square) if is_swapped else square, (1, 1))
        assert (axes.notice() is not None) is is_swapped


def test_boxes_of_smaller_images_are_noticed(tmp_path, caplog):
    sizes = dict.fromkeys((f"{number:012d}" for number in range(1, 11)), SIZE)
    for number in range(1, 11):
        arrays = {"features": features_of(IDS[0]), "boxes": boxes_of(IDS[0]) / 2}
        np.savez(tmp_path / f"{number}.npz", **arrays)
    assert len([*open_features(tmp_path, ReadHints(sizes.get))]) == 10
    [message] = caplog.messages
    assert message.endswith(
        ": are they pixels of scaled images? Check the sizes of the images, and look at boxes with "
        "--look"
    )
    assert "no box reaches beyond 4" in message


def test_a_grid_has_no_axes_that_could_be_swapped():
    axes = BoxEvidence()
    for side in range(200, 220):
        axes.add(cell_boxes(7, (0, 0, side, side)), (side, side))
    assert axes.notice() is None


@pytest.mark.parametrize(("kind", "width"), [("float16", 16), ("float64", 64)])
def test_features_of_another_type_are_refused_and_read_by_name(tmp_path, kind, width):
    code = {"float16": "<f2", "float64": "<f8"}[kind]
    rows = [{**record(i), "features": text(features_of(i), code)} for i in IDS]
    path = write_tsv(tmp_path / "x.tsv", rows, CAFFE)
    assert message_of(convert, path, tmp_path / "store", form="a2") == (
        "3 of the first 3 images of 'x.tsv' (TSV) are refused, first '000000000009': its "
        f"features are 6 regions of 32 numbers in {kind}, not of {width} in float32; convert with "
        f"--source-dtype {kind}"
    )
    made = convert(
        path, tmp_path / "s", form="a2", dtype="float32", hints=ReadHints(number_type=kind)
    )
    assert (made.count, made.width) == (3, 32)
    stored = FeatureStore(tmp_path / "s")[IDS[0]].features
    np.testing.assert_array_equal(stored, features_of(IDS[0]).astype(code).astype("f4"))


def test_boxes_of_another_type_are_recognised_by_their_bytes(tmp_path):
    for code, atol in (("<f2", 0.1), ("<f8", 0)):
        rows = [{**record(i), "boxes": text(boxes_of(i), code)} for i in IDS]
        assert_read(write_tsv(tmp_path / "x.tsv", rows, CAFFE), atol=atol)


def test_float32_features_of_any_kind_are_accepted(tmp_path):
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((6, 512)).astype("f4")
    kinds = [normal, normal.clip(0), normal.astype("f2").astype("f4"), np.exp(normal * 3)]
    kinds += [np.zeros((6, 512), "f4"), (normal > 0).astype("f4"), 1 / (1 + np.exp(-normal))]
    rows = [{**record(IDS[0]), "image_id": n, "features": kind} for n, kind in enumerate(kinds)]
    items = [*open_features(write_tsv(tmp_path / "x.tsv", rows, CAFFE))]
    for item, features in zip(items, kinds, strict=True):
        np.testing.assert_array_equal(item.regions.features, features)


def joined(folder, cut, prefix=""):
    """Write lines of which the second one is cut and goes on with the third."""
    rows = [{**record(i), "image_id": f"{prefix}{i}"} for i in IDS]
    path = write_tsv(folder / "x.tsv", rows, CAFFE)
    lines = path.read_text().splitlines()
    path.write_text(f"{lines[0]}\n{lines[1][:cut]}{lines[2]}\n")
    return path


def test_whole_lines_without_a_break_are_both_read(tmp_path):
    assert_read(joined(tmp_path, None))


def test_a_line_after_a_torn_one_is_read_where_its_id_is_clear(tmp_path):
    made = convert(joined(tmp_path, -300, "COCO_val2014_"), tmp_path / "store", form="a2")
    assert list(FeatureStore(tmp_path / "store")) == [IDS[0], IDS[2]]
    [skipped] = made.skipped
    assert skipped.image_id == IDS[1]


def test_the_list_says_what_of_a_torn_line_is_lost(tmp_path):
    made = convert(joined(tmp_path, -300), tmp_path / "store", form="a2")
    assert (made.count, [item.image_id for item in made.skipped]) == (1, [IDS[1], "line 2"])
    first, second = (item.reason for item in made.skipped)
    assert first == "line 2: 11 of 6 columns: a torn line joined with the next"
    assert second.startswith("the id of the line joined with a torn one cannot be told from b'")


def test_the_whole_record_of_a_torn_image_is_read_and_the_list_says_so(tmp_path):
    path = tsv(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1][:-300] + "\n", *lines[1:]]))
    made = convert(path, tmp_path / "store", form="a2")
    assert made.count == 3
    [skipped] = made.skipped
    assert skipped.image_id == IDS[1]
    assert skipped.reason.endswith("; another record of the image was read")
    [listed] = (tmp_path / "store.skipped.jsonl").read_text().splitlines()
    assert json.loads(listed)["reason"] == skipped.reason
