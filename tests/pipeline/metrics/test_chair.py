"""CHAIR of twenty captions, counted by hand, with intervals over images."""

import numpy as np
import pytest

from a2cap.data.captions.coco_objects import objects_of_images
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.bootstrap import resample
from a2cap.pipeline.metrics.metric_table import metric_of
from a2cap.pipeline.metrics.scene_truth import chair_counts, chair_values

BY_HAND = (
    # caption; categories of the instances; reference; mentions, absent ones; objects, mentioned
    ("a man rides a horse on the beach", "person horse", "a rider at the sea", 2, 0, 2, 2),
    ("a dog and a cat on a couch", "dog couch", "a dog sleeps", 3, 1, 2, 2),
    ("two dogs play with a ball", "dog", "dogs with a tennis ball", 2, 0, 2, 2),
    ("a plate of food on a table", "bowl", "food on a plate", 1, 1, 1, 0),
    ("a red bus on a city street", "bus car person", "a bus and people", 1, 0, 3, 1),
    ("a train on the train tracks", "train", "a train", 1, 0, 1, 1),
    ("an orange cat on train tracks", "cat", "a cat outside", 1, 0, 1, 1),
    ("a hot dog and a dog", "hot dog", "a hotdog in a bun", 2, 1, 1, 1),
    ("a teddy bear on a bed", "teddy bear", "a stuffed animal", 2, 1, 1, 1),
    ("people on skis and a snowboarder", "person skis", "skiers on a slope", 3, 0, 2, 2),
    ("a picture of a beautiful sky", "", "the sky at night", 0, 0, 0, 0),
    ("a baby elephant and its mother", "elephant", "elephants", 2, 1, 1, 1),
    ("a man and a man and a man", "person", "a crowd", 3, 0, 1, 1),
    ("a couple of zebras near a giraffe", "zebra", "zebras grazing", 2, 1, 1, 1),
    ("a kitchen with a stove and a sink", "oven sink refrigerator", "a fridge", 2, 0, 3, 2),
    ("a cell phone and a wine glass", "", "a phone next to a glass of wine", 2, 0, 2, 2),
    ("scissors and knives in a cup", "scissors knife", "a pair of scissors", 3, 1, 2, 2),
    ("a boy with a frisbee", "person", "a kid in a park", 2, 1, 1, 1),
    ("a surfer with a surf board", "person surfboard", "a man surfing", 2, 0, 2, 2),
    ("a clock tower with two clocks", "clock", "a tower", 2, 0, 1, 1),
)
NAMES = ("hot dog", "teddy bear")


def categories(text):
    names = [name for name in NAMES if name in text]
    for name in names:
        text = text.replace(name, "")
    return frozenset([*names, *text.split()])


CAPTIONS = {f"{i:02}": row[0] for i, row in enumerate(BY_HAND)}
REFERENCES = {f"{i:02}": [row[2]] for i, row in enumerate(BY_HAND)}
OBJECTS = objects_of_images(
    REFERENCES, {f"{i:02}": categories(row[1]) for i, row in enumerate(BY_HAND)}
)
SUMS = np.array([row[3:] for row in BY_HAND]).sum(axis=0)


@pytest.fixture
def scores(without_meteor):
    return score(CAPTIONS, REFERENCES, objects=OBJECTS, metrics=["Bleu_1"])


def test_twenty_captions_have_the_counts_of_a_count_by_hand():
    counts = chair_counts(CAPTIONS.values(), [OBJECTS[image_id] for image_id in CAPTIONS])
    assert counts.tolist() == [
        [1, absent > 0, mentions, absent, objects, recalled]
        for *_, mentions, absent, objects, recalled in BY_HAND
    ]
    assert SUMS.tolist() == [38, 8, 30, 26]


def test_chair_is_the_share_of_mentions_and_captions_and_recall_of_objects(scores):
    expected = {"CHAIR-i": 8 / 38, "CHAIR-s": 8 / 20, "CHAIR-recall": 26 / 30}
    assert {name: scores.metrics[name] for name in expected} == pytest.approx(expected)
    assert [metric_of(name).lower_is_better for name in expected] == [True, True, False]
    assert scores.per_image["01"]["CHAIR-i"] == pytest.approx(1 / 3)
    assert scores.per_image["01"]["CHAIR-s"] == 1
    assert "CHAIR-i" not in scores.per_image["10"]  # it mentions nothing
    for name, value in expected.items():
        low, high = scores.confidence[name]
        assert low < value < high


def test_intervals_are_of_resampled_images_whose_counts_are_summed():
    counts = chair_counts(CAPTIONS.values(), [OBJECTS[image_id] for image_id in CAPTIONS])
    values = resample({"CHAIR": counts})
    assert values["CHAIR-i"].mean() == pytest.approx(8 / 38, abs=0.02)
    assert np.isnan(chair_values(counts[10])).tolist() == [True, False, True]


@pytest.mark.usefixtures("without_meteor")
def test_without_objects_there_is_no_chair_and_other_scripts_have_none():
    assert "CHAIR-i" not in score(CAPTIONS, REFERENCES, metrics=["Bleu_1"]).metrics
    scores = score(CAPTIONS, REFERENCES, objects=OBJECTS, metrics=["Bleu_1"], tokenizer="unicode")
    assert "CHAIR-i" not in scores.metrics
    assert scores.not_run["CHAIR-i"] == (
        "it reads English alone, the captions are compared as Unicode words"
    )
