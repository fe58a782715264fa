"""Tests of average precision, proposal recall and the accuracy of attributes."""

import contextlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from a2cap.data.detection.labels import DetectionData, Label, labelled_image
from a2cap.data.errors import ConfigError
from a2cap.extract.detector.detections import Detections
from a2cap.pipeline.training.detector.average_precision import detection_metrics, proposal_recall
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.detector.validation import attribute_accuracy, family_ids
from tests.data.messages import message_of

CLASSES = ("dog", "cat", "cup")
DOG, CAT, CUP = range(3)


def truth(images, classes=CLASSES):
    """`images`: image id -> labels; every image has 1000 x 1000 pixels."""
    return DetectionData(
        classes=classes,
        attributes=(),
        images=tuple(
            labelled_image(identity, Path("x.jpg"), width=1000, height=1000, labels=labels)
            for identity, labels in images.items()
        ),
    )


def boxed(*objects):
    """Return detections from (box, class id, score)."""
    return Detections(
        boxes=np.array([box for box, *_ in objects], np.float32).reshape(-1, 4),
        scores=np.array([score for *_, score in objects], np.float32),
        class_ids=np.array([class_id for _, class_id, _ in objects], np.int64),
    )


def random_case(seed, *, images=6, crowds=True):
    """Return boxes of three classes, and detections near them with tied scores."""
    rng = np.random.default_rng(seed)
    labels, detections = {}, {}
    for number in range(images):
        corners = rng.uniform(0, 600, (5, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(20, 300, (5, 2))], axis=1)
        class_ids = rng.integers(0, 3, 5)
        labels[str(number)] = [
            Label(tuple(box), int(class_id), crowd=bool(crowds and rng.random() < 0.15))
            for box, class_id in zip(boxes, class_ids, strict=True)
        ]
        shaken = np.concatenate([boxes, boxes]) + rng.normal(0, 4, (10, 4))
        of_classes = np.where(rng.random(10) < 0.8, np.tile(class_ids, 2), rng.integers(0, 3, 10))
        scores = rng.integers(1, 6, 10) / 6
        detections[str(number)] = boxed(*zip(shaken, of_classes, scores, strict=True))
    return truth(labels), detections


def all_at_once(data, detections):
    """Return COCO's twelve figures as COCOeval prints them, over all classes at once."""

    def indexed(annotations):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": number} for number in range(len(data.images))],
            "categories": [{"id": number} for number in range(len(data.classes))],
            "annotations": [item | {"id": i} for i, item in enumerate(annotations, start=1)],
        }
        coco.createIndex()
        return coco

    def annotations(number, boxes, class_ids, crowds, scores):
        for box, class_id, crowd, score in zip(boxes, class_ids, crowds, scores, strict=True):
            x1, y1, x2, y2 = map(float, box)
            sides = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
            of_class = {"image_id": number, "category_id": int(class_id), "iscrowd": int(crowd)}
            yield {**of_class, **sides, "score": float(score)}

    known, seen = [], []
    for number, image in enumerate(data.images):
        them = detections[image.image_id]
        known += annotations(number, image.boxes, image.class_ids, image.crowd, image.crowd)
        seen += annotations(number, them.boxes, them.class_ids, them.scores * 0, them.scores)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(indexed(known), indexed(seen), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def test_perfect_detections_score_one(capsys):
    boxes = {"a": [Label((0, 0, 20, 20), DOG), Label((50, 50, 100, 110), CAT)], "b": []}
    boxes["c"] = [Label((10, 10, 310, 310), DOG)]
    detections = {
        name: boxed(*((label.box, label.class_id, 0.5) for label in labels))
        for name, labels in boxes.items()
    }
    scores = detection_metrics(truth(boxes), detections)
    assert (scores.ap, scores.ap50, scores.ap75) == pytest.approx((1, 1, 1))
    assert (scores.ap_small, scores.ap_medium, scores.ap_large) == pytest.approx((1, 1, 1))
    assert scores.per_class == pytest.approx({"dog": 1, "cat": 1})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("seed", range(5))
def test_class_by_class_equals_pycocotools_on_all_classes(seed):
    data, detections = random_case(seed)
    scores = detection_metrics(data, detections)
    areas = [-1 if area is None else area for area in (scores.ap_small, scores.ap_medium)]
    ours = [scores.ap, scores.ap50, scores.ap75, *areas, scores.ap_large]
    assert ours == pytest.approx(all_at_once(data, detections)[:6].tolist())
    assert 0 < scores.ap < 1


def test_classes_without_a_box_to_find_do_not_count():
    data = truth({"a": [Label((0, 0, 50, 50), DOG), Label((100, 100, 200, 200), CAT, crowd=True)]})
    detections = {"a": boxed(((0, 0, 50, 50), DOG, 0.5), ((300, 300, 400, 400), CUP, 0.9))}
    scores = detection_metrics(data, detections)
    assert scores.per_class == pytest.approx({"dog": 1})
    assert scores.ap == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "nothing"), [(detection_metrics, boxed()), (proposal_recall, np.zeros((0, 4)))]
)
def test_images_without_a_box_to_find_are_rejected(call, nothing):
    crowd = Label((0, 0, 9, 9), DOG, crowd=True)
    data = truth({"a": [], "b": [crowd]})
    assert message_of(call, data, {"a": nothing, "b": nothing}) == (
        "no box to find in 2 images; score on images with labels"
    )


def slow_recall(data, proposals, count, overlap):
    """Compute recall box by box and proposal by proposal."""
    hits = []
    for image in data.images:
        for x1, y1, x2, y2 in image.boxes[~image.crowd].tolist():
            hit = False
            for a1, b1, a2, b2 in proposals[image.image_id][:count].tolist():
                width, height = min(x2, a2) - max(x1, a1), min(y2, b2) - max(y1, b1)
                shared = max(width, 0) * max(height, 0)
                union = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - shared
                hit = hit or shared / union >= overlap
            hits.append(hit)
    return sum(hits) / len(hits)


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_recall_is_the_share_of_boxes_that_the_first_proposals_overlap(seed, overlap):
    data, detections = random_case(seed)
    rng = np.random.default_rng(seed)
    proposals = {name: rng.permutation(objects.boxes) for name, objects in detections.items()}
    proposals["0"] = proposals["0"][:1]
    counts = (1, 3, 5, 100)
    recall = proposal_recall(data, proposals, counts, overlap)
    assert recall == {n: slow_recall(data, proposals, n, overlap) for n in counts}
    assert list(recall.values()) == sorted(recall.values())


def test_recall_is_measured_at_10_36_and_100_proposals_and_half_overlap():
    data = truth({"a": [Label((0, 0, 10, 10), DOG), Label((50, 50, 60, 60), CAT)], "b": []})
    far = np.tile(np.array([[500, 500, 600, 600]], np.float32), (10, 1))
    half, less = [[0, 0, 10, 5]], [[50, 50, 60, 54.9]]
    proposals = {"a": np.concatenate([far, half, less]).astype(np.float32), "b": far}
    assert proposal_recall(data, proposals) == {10: 0, 36: 0.5, 100: 0.5}


BOXES = [(0, 0, 20, 20), (40, 0, 60, 20), (0, 40, 20, 60), (40, 40, 60, 60)]
LABELS = [
    Label(BOXES[0], 0, (0, 3)),
    Label(BOXES[1], 0, (1, 2)),
    Label(BOXES[2], 1, (1,)),
    Label(BOXES[3], 0, (0,), crowd=True),
]
IMAGE = labelled_image("a", Path("a.jpg"), width=100, height=100, labels=LABELS)
TRUTH = DetectionData(("ball", "cup"), ("red", "blue", "plain", "striped"), (IMAGE,))
FAMILIES = {"colour": [0, 1], "texture": [2, 3]}
# red and striped; red and striped, the second of two at its box; blue, of another class; red, crowd
LOGITS = [[2, 1, 0, 1], [1, 0, 0, 3], [0, 9, 9, 0], [0, 9, 9, 0], [5, 0, 0, 0]]
FOUND = Detections(
    np.array([BOXES[0], BOXES[1], BOXES[1], BOXES[2], BOXES[3]], np.float32),
    np.linspace(0.9, 0.1, 5, dtype=np.float32),
    np.array([0, 0, 0, 0, 0]),
    np.array(LOGITS, np.float32),
)


def test_found_objects_count_once_and_by_family():
    accuracy = attribute_accuracy(TRUTH, {"a": FOUND}, {"colour": [0, 1], "texture": [2, 3]})
    # both boxes are found as red and striped, which is right for the first
    assert accuracy == {"colour": 0.5, "texture": 0.5}


def test_there_is_no_accuracy_without_a_found_object_or_an_attribute_head():
    nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, int))
    assert attribute_accuracy(TRUTH, {"a": nothing}, {"colour": [0, 1]}) == {"colour": None}
    headless = replace(FOUND, attribute_logits=None)
    assert attribute_accuracy(TRUTH, {"a": headless}, {"colour": [0, 1]}) == {"colour": None}


def test_families_are_those_of_the_labels():
    config = DetectorConfig(attribute_families=(("blue", "red"),))
    assert family_ids(config, TRUTH.attributes) == {"blue/red": [1, 0]}
    assert message_of(family_ids, config, ("red",), error=ConfigError) == (
        "detector.attribute_families has an attribute that the labels lack: 'blue'; they have red"
    )


def test_families_without_attributes_and_repeated_attributes_are_rejected():
    twice = DetectorConfig(attribute_families=(("red",), ("red",)))
    assert message_of(family_ids, twice, ("red",), error=ConfigError) == (
        "detector.attribute_families has 'red' twice; name each attribute once"
    )
    message = "attribute_loss is 'families' without detector.attribute_families; set them"
    with pytest.raises(ValueError, match=message):
        DetectorConfig.model_validate({"attribute_loss": "families"})
