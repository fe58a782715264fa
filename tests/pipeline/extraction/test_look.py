"""`a2 convert --look`: what a file was taken for, and its boxes on the photograph."""

import numpy as np
import pytest
from PIL import Image

from tests.experiments import a2
from tests.pipeline.extraction.test_open_features import (
    CAFFE,
    IDS,
    boxes_of,
    record,
    tsv,
    write_tsv,
)


def look(*words):
    return a2("convert", "--look", *words)


def test_a_summary_states_layout_counts_type_and_ranges(tmp_path):
    rows = [{**record(i), "features": np.full((6, 32), 2 * number)} for number, i in enumerate(IDS)]
    answer = look(write_tsv(tmp_path / "x.tsv", rows, CAFFE))
    boxes = np.concatenate([boxes_of(i) for i in IDS])
    sides = boxes[:, 2:] - boxes[:, :2]
    x, y = boxes[:, ::2], boxes[:, 1::2]
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.splitlines() == [
        "layout: 'x.tsv' (TSV), layout caffe, float32",
        "images: 3",
        "regions: 6 of 32 numbers",
        "features: 0 to 4, 33.3% zeros",
        "pixels: 120 x 90",
        f"boxes: x {x.min():.0f} to {x.max():.0f}, y {y.min():.0f} to {y.max():.0f}; "
        f"{sides[:, 0].min():.0f} to {sides[:, 0].max():.0f} wide, "
        f"{sides[:, 1].min():.0f} to {sides[:, 1].max():.0f} high, on average "
        f"{sides.prod(axis=1).mean() / (120 * 90):.0%} of the image",
        "first image: 000000000009",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "x.tsv"]


def test_images_that_cannot_be_read_are_listed(tmp_path):
    path = tsv(tmp_path)
    path.write_text(path.read_text() + "1\t2\n")
    assert look(path).stdout.splitlines()[-1] == "skipped: line 4: 2 of 6 columns"
    path.write_text("1\t9\t9\t1\tAA\tAA\n")
    answer = look(path)
    assert answer.exit_code == 1
    assert answer.stderr.startswith(
        f"a2: no image of {str(path)!r} can be read, first '000000000001': line 1: Incorrect"
    )


def test_boxes_are_drawn_on_the_photograph_of_their_id(tmp_path):
    (tmp_path / "photos").mkdir()
    photo = tmp_path / "photos" / f"COCO_val2014_{IDS[1]}.jpg"
    Image.new("RGB", (240, 180)).save(photo)
    note = "; the features are of 120 x 90 pixels, the photograph has 240 x 180"
    for named, target in ((photo, tmp_path / "a.png"), (photo.parent, tmp_path / "b.jpg")):
        answer = look(tsv(tmp_path), target, "--image", named)
        assert answer.stdout.splitlines()[-1] == (
            f"drawn: 6 boxes of {IDS[1]} on {str(photo)!r} in {str(target)!r}{note}"
        )
    with Image.open(tmp_path / "a.png") as drawn:
        assert drawn.size == (240, 180)
        pixels = np.asarray(drawn)
    is_drawn = pixels.max(axis=-1) > 0
    for x1, y1, x2, y2 in (boxes_of(IDS[1]) * 2).astype(int):
        assert is_drawn[y1 : y1 + 2, x1:x2].any(axis=0).all()
        assert is_drawn[y1:y2, x2 - 1 : x2 + 2].any(axis=1).all()


def test_a_photograph_without_features_is_refused(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "7.jpg")
    answer = look(tsv(tmp_path), tmp_path / "a.png", "--image", tmp_path / "7.jpg")
    assert answer.stderr == (
        f"a2: no features of {str(tmp_path / '7.jpg')!r}: the first are of {IDS[0]!r}; name its "
        "photograph\n"
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("x",), "missing argument 'TARGET'"),
        (("x", "y", "--image", "z"), "--image needs --look"),
        (("x", "y", "--look"), "--image and TARGET, the file to draw, need each other with --look"),
    ],
)
def test_arguments_that_need_each_other_are_named(words, problem):
    assert problem in a2("convert", *words, code=2).stderr
