"""a2 analyze --grounding: the field's measures, by hand, on scenes, and on bad annotations."""

import numpy as np
import pytest
import torch

from a2cap.data.annotations.instances import read_instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.captions.coco_objects import words_of
from a2cap.data.captions.entities import GroundedImage, GroundedSentence, NamedObject
from a2cap.data.regions import Regions
from a2cap.pipeline.analysis.grounding import (
    RunGrounding,
    _Meter,
    analyse_grounding,
    ground_word,
    grounding_values,
)
from a2cap.pipeline.analysis.trainings import OpenedRun, read_run
from a2cap.pipeline.analysis.word_boxes import WordBoxes, read_word_boxes
from a2cap.pipeline.captioning.grounding import ground
from tests.data.messages import message_of
from tests.experiments import a2

DOG = np.array([[0, 0, 10, 10]], np.float32)
BALL = np.array([[20, 0, 30, 10]], np.float32)
REGIONS = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [0, 0, 20, 10], [5, 5, 15, 15]], np.float32)
"""The dog, the ball, a region whose left half is the dog, one of which a quarter is the dog."""


class FakeRun:
    """What the meter reads of an opened run: the same four regions in every image."""

    def __init__(self):
        description = type("Description", (), {"max_regions": None})
        self.model = type("Model", (), {"description": description})
        self.store = {name: regions() for name in ("a", "b")}


def regions():
    scores, classes = np.ones(4, np.float32), np.zeros(4, np.int32)
    return Regions(REGIONS, np.zeros((4, 2), np.float32), scores, classes, None, 40, 20)


def by_word(*rows, keep=None):
    original = np.array(rows, np.float32)
    mask = None if keep is None else np.full_like(original, keep)
    return CaptionAttention(original, original if keep is None else original[:, ::-1] * 2, mask)


def test_the_worked_example_of_the_docs():
    # docs/guide/judging.md, "Grounding": attention 0.5, 0.1, 0.2, 0.2 at the word "dog"
    word = ground_word({"attention": np.array([0.5, 0.1, 0.2, 0.2])}, REGIONS, DOG)
    assert word.correctness["attention"] == pytest.approx(0.5 * 1 + 0.1 * 0 + 0.2 / 2 + 0.2 / 4)
    assert word.correctness["random"] == pytest.approx((1 + 0 + 1 / 2 + 1 / 4) / 4)
    assert word.pointing == {"attention": 1, "random": 3 / 4}  # centres 5 5, 10 5 and 10 10
    assert word.localised == {"attention": 1, "random": 2 / 4}  # IoU 1, 0, 1/2 and 1/7


def test_boxes_that_overlap_count_once_and_rows_are_scaled():
    boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10]], np.float32)
    row = {"aligned": np.array([0, 0, 3, 0], np.float32)}
    assert ground_word(row, REGIONS, boxes).correctness["aligned"] == pytest.approx(15 / 20)


def test_f1_is_of_precision_and_recall_averaged_over_classes():
    # columns: words, correctness, pointing, predicted A, annotated B, correct C, localised E
    sums = np.array([[2, 1.0, 2, 4, 2, 2, 1], [2, 0.5, 0, 0, 3, 0, 0]], float)
    precision, recall = (1 / 4 + 0) / 2, (1 / 2 + 0) / 2
    localisation = (1 / 2 + 0) / 2
    f1_all = 2 * precision * recall / (precision + recall)
    assert grounding_values(sums) == pytest.approx([1.5 / 4, 2 / 4, f1_all, localisation])


def test_the_interval_of_f1_contains_its_estimate_where_classes_are_rare():
    # 40 images, each with a class of its own that is predicted and localised
    sums = np.eye(40)[..., None] * np.ones(7)
    row = RunGrounding([str(number) for number in range(40)], {"random": sums}).rows()[0]
    assert [row[name] for name in ("F1_all", "F1_all_low", "F1_loc", "F1_loc_low")] == [1] * 4


def meter():
    nothing = np.zeros((0, 4), np.float32)
    dog, ball = NamedObject(1, "dog", DOG), NamedObject(4, "ball", BALL)
    tree = NamedObject(1, "tree", nothing)
    sentences = {
        "a": (GroundedSentence(("a", "dog", "and", "a", "ball"), (dog, ball)),),
        "b": (
            GroundedSentence(("a", "ball"), (NamedObject(1, "ball", BALL),)),
            GroundedSentence(("a", "tree"), (tree,)),
        ),
    }
    images = {name: GroundedImage(None, of) for name, of in sentences.items()}
    names = words_of({"dog", "ball", "tree"})
    return _Meter(WordBoxes("test", images, names.mentions, {}), FakeRun())


def test_generated_captions_are_counted_by_hand():
    counted = meter()
    # image a: dog localised, ball not (its region gets less); image b: dog is not in the image,
    # the tree has no box, the ball is not named
    attention = by_word(*[[0.5, 0.1, 0.2, 0.2]] * 5)
    counted.add_caption("a", ["a", "dog", "with", "a", "ball"], attention)
    counted.add_caption("b", ["a", "dog", "by", "a", "tree"], attention)
    assert counted.classes == ["ball", "dog"]
    [ball, dog] = counted.sums["attention"].sum(axis=0)[:, 3:].tolist()
    assert (ball, dog) == ([1, 2, 1, 0], [2, 1, 1, 1])
    # F1_all: precision (0 + 1/2) / 2, recall (0 + 1/1) / 2; F1_loc: (0 + 1) / 2
    values = grounding_values(counted.sums["attention"].sum(axis=0))
    assert values[2:] == pytest.approx([2 * 0.25 * 0.5 / 0.75, 0.5])
    random = counted.sums["random"].sum(axis=0)
    assert random[:, 6].tolist() == [1 / 4, 2 / 4]


def test_an_empty_caption_predicts_nothing():
    counted = meter()
    counted.add_caption("a", [], CaptionAttention(np.zeros((0, 4)), np.zeros((0, 4))))
    assert counted.sums["attention"].sum(axis=0)[:, 3:5].tolist() == [[0, 1], [0, 1]]


def test_intervals_are_over_images_and_aligned_attention_has_its_rows():
    counted = meter()
    for name, rows in (("a", 5), ("b", 2)):
        sentence = counted._images[name].sentences[0]
        counted.add_sentence(name, sentence, by_word(*[[0.7, 0.1, 0.1, 0.1]] * rows, keep=0.5))
    rows = RunGrounding(counted.classes, counted.sums).rows()
    assert [(r["attention"], r["class"]) for r in rows[:4]] == [
        *(("attention", "all"), ("aligned", "all"), ("random", "all")),
        ("aligned - attention", "all"),
    ]
    assert [r["class"] for r in rows[4:]] == ["ball", "dog"] * 3
    attention, aligned, _, gain = rows[:4]
    assert (gain["words"], gain["images"]) == (3, 2)
    assert gain["correctness"] == pytest.approx(aligned["correctness"] - attention["correctness"])
    assert (attention["words"], attention["images"]) == (3, 2)
    # image a: dog 0.7 + 0.05 + 0.025, ball 0.1; image b: ball 0.1
    assert attention["correctness"] == pytest.approx((0.775 + 0.1 + 0.1) / 3)
    assert attention["correctness_low"] == pytest.approx(0.1)
    assert attention["correctness_high"] == pytest.approx((0.775 + 0.1) / 2)


@pytest.fixture(scope="module")
def opened(experiment):
    run = read_run("tiny", experiment.directory("train-xe"), experiment.artifacts, split="val")
    return OpenedRun.open(run, split="val", images=None, device=torch.device("cpu"))


def test_correctness_on_scenes_is_todays_share_where_the_definitions_agree(opened, experiment):
    instances = read_instances(experiment.scenes / "instances.json")
    annotations = read_word_boxes(experiment.scenes / "instances.json", opened)
    names = words_of({name for boxes in instances.values() for name in boxes.names})
    compared = 0
    for identity in opened.image_ids:
        boxes, sizes = opened.store[identity].boxes, instances[identity]
        if overlap(boxes):
            continue  # a region that partly overlaps an object counts by its part here
        for sentence in annotations.images[identity].sentences:
            for item in sentence.objects:
                if not len(item.boxes):
                    continue
                row = np.random.default_rng(compared).random(len(boxes)).astype(np.float32)
                word = sentence.words[item.position]
                share = ground([word], CaptionAttention(row[None], row[None]), boxes, sizes, names)
                assert share is not None
                measured = ground_word({"attention": row}, boxes, item.boxes).correctness
                assert measured["attention"] == pytest.approx(share.original, abs=1e-6)
                assert measured["random"] == pytest.approx(share.uniform)
                compared += 1
    assert compared > 5


def overlap(boxes):
    sides = np.minimum(boxes[:, None, 2:], boxes[:, 2:]) - np.maximum(
        boxes[:, None, :2], boxes[:, :2]
    )
    shared = (sides > 0).all(axis=-1)
    return (shared.sum() - len(boxes)) > 0


def test_a_run_is_measured_on_instances(opened, experiment):
    annotations = read_word_boxes(experiment.scenes / "instances.json", opened)
    rows = analyse_grounding(opened, annotations).rows()
    assert [row["attention"] for row in rows[:3]] == ["attention", "aligned", "random"]
    assert annotations.summary.startswith("COCO instances: ")
    for row in rows[:3]:
        assert 0 < row["correctness"] < 1
        assert row["correctness_low"] <= row["correctness"] <= row["correctness_high"]
    assert rows[0]["words"] == rows[2]["words"] > 10


def entities(folder, opened, *, sentences=None, boxes=None, size=(96, 96)):
    """Write Flickr30k Entities of the run's images: the first noun of each caption has a box."""
    for name in ("Sentences", "Annotations"):
        (folder / name).mkdir(parents=True)
    for identity in opened.image_ids:
        lines = [f"[/EN#7/other {text}] ." for text in reversed(opened.references[identity])]
        box = boxes or "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>50</ymax></bndbox>"
        (folder / "Sentences" / f"{identity}.txt").write_text("\n".join(sentences or lines))
        (folder / "Annotations" / f"{identity}.xml").write_text(
            f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>"
            f"<object><name>7</name>{box}</object></annotation>"
        )
    return folder


def test_a_run_is_measured_on_entities_of_another_order(opened, tmp_path):
    annotations = read_word_boxes(entities(tmp_path, opened), opened)
    count = sum(len(opened.references[identity]) for identity in opened.image_ids)
    assert annotations.summary == (
        f"Flickr30k Entities: {count:,} words with boxes of {len(opened.image_ids)} images; "
        "left out: 0 words without a box, 0 images"
    )
    assert analyse_grounding(opened, annotations).rows()[0]["words"] == count


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            {"sentences": ["[/EN#7/people A man] ."]},
            "none of its sentences is a caption of the run",
        ),
        ({"size": (50, 60)}, "boxes of an image of another size than its features"),
        ({"boxes": "<nobndbox>1</nobndbox>"}, None),
    ],
)
def test_annotations_without_a_usable_word_are_rejected(opened, tmp_path, fault, reason):
    folder = entities(tmp_path, opened, **fault)
    message = message_of(read_word_boxes, folder, opened)
    assert message.startswith(
        f"no word with a box in {len(opened.image_ids)} images of split 'val'"
    )
    assert message.endswith("; name the annotations of these images, or another --split")
    if reason:
        assert f"{len(opened.image_ids)}: {reason}" in message
    else:
        assert "0 words with boxes" in message


def test_images_that_the_file_lacks_are_counted(opened, tmp_path, experiment):
    folder = entities(tmp_path, opened)
    (folder / "Sentences" / f"{opened.image_ids[0]}.txt").unlink()
    assert read_word_boxes(folder, opened).summary.endswith(
        "left out: 0 words without a box, 1 images; 1: no file of it in 'Sentences'"
    )


def test_a_captioner_without_attention_is_rejected(opened, experiment, monkeypatch):
    annotations = read_word_boxes(experiment.scenes / "instances.json", opened)
    monkeypatch.setattr(OpenedRun, "attend", lambda *_: iter(()))
    assert message_of(analyse_grounding, opened, annotations) == (
        "captioner without attention to regions: 'tiny'; leave it out"
    )


@pytest.mark.slow
def test_the_command_prints_and_writes_grounding(experiment, tmp_path):
    answer = a2(
        *("analyze", "-c", experiment.config_file, "--artifacts", experiment.artifacts),
        *("--set", "runtime.device=cpu", "--images", "2", "--erasure", "0"),
        *("--grounding", experiment.scenes / "instances.json", "--output", tmp_path / "out"),
        code=0,
    )
    assert "is taken for COCO instances: " in answer.stdout
    assert "\ngrounding, 2 images [95 % over images]\nattention " in answer.stdout
    assert (tmp_path / "out" / "grounding.csv").read_text().startswith("run,fusion,attention,class")
