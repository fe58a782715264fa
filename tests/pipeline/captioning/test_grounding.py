"""Grounding: category names in captions and the attention on their objects."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.captions.coco_objects import words_of
from a2cap.pipeline.captioning.grounding import (
    Grounding,
    ground,
    mean_grounding,
    names_in,
    region_names,
)

BOXES = np.array([[0, 0, 10, 10], [20, 0, 40, 20]], dtype=np.float32)
INSTANCES = Instances(BOXES, ("dog", "person"))
REGIONS = np.array([[0, 0, 10, 10], [20, 0, 40, 18], [0, 0, 40, 40], [1, 0, 10, 10]], np.float32)
NAMES = words_of(["dog", "hot dog", "person"])


@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("two dogs and a man", [(1, 2, "dog"), (4, 5, "person")]),
        ("a hot dog", [(1, 3, "hot dog")]),
        ("hot dogs for a dog", [(0, 2, "hot dog"), (4, 5, "dog")]),
        ("people on hot sand", [(0, 1, "person")]),
        ("a red bus", []),
        ("", []),
    ],
)
def test_the_longest_category_name_wins(caption, named):
    spans = NAMES.mentions(caption.split())
    assert [(span.start, span.stop, category) for span, category in spans] == named


@pytest.mark.parametrize(
    ("category", "word"),
    [
        ("box", "boxes"),
        ("fish", "fish"),
        ("knife", "knives"),
        ("skateboard", "skateboards"),
        ("teddy bear", "teddy bears"),
        ("puppy", "puppies"),
        ("couch", "sofas"),
        ("dining table", "table"),
    ],
)
def test_plurals_and_synonyms_name_the_category(category, word):
    [(_, name)] = words_of([category]).mentions(word.split())
    assert name == category


def test_a_categorys_own_name_overrides_synonyms():
    [(_, name)] = words_of(["dining table", "table"]).mentions(["table"])
    assert name == "table"


def test_names_come_from_the_categories_of_the_images():
    names = names_in([INSTANCES, Instances(BOXES, ("", "cat"))])
    assert [name for _, name in names.mentions(["cat", "a", "dog", "bus"])] == ["cat", "dog"]


def attention(*rows, factor=1.0):
    original = np.array(rows, dtype=np.float32)
    return CaptionAttention(original, np.flip(original, axis=1) * factor)


def test_grounding_is_the_share_of_attention_on_the_named_object():
    grounding = ground(
        ["a", "dog"],
        attention([0.25, 0.25, 0.25, 0.25], [0.5, 0.2, 0.2, 0.1], factor=2.0),
        *(REGIONS, INSTANCES, NAMES),
    )
    # regions 0 and 3 are the dog; "a" names nothing, and a row that sums to 2 is scaled
    assert grounding is not None
    assert (grounding.original, grounding.aligned) == pytest.approx((0.6, 0.6))
    assert (grounding.uniform, grounding.words) == (0.5, 1)


def test_every_word_of_a_name_counts():
    boxes = Instances(BOXES, ("hot dog", "person"))
    rows = attention([1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1])
    grounding = ground(["a", "hot", "dog"], rows, REGIONS, boxes, NAMES)
    assert grounding is not None
    assert (grounding.original, grounding.words) == (0.5, 2)


@pytest.mark.parametrize("words", [["a"], ["bus"], [], ["cat"]])
def test_a_caption_without_a_named_object_has_no_grounding(words):
    rows = CaptionAttention(np.full((len(words), 4), 0.25), np.full((len(words), 4), 0.25))
    assert ground(words, rows, REGIONS, INSTANCES, words_of(["dog", "person", "cat"])) is None


def test_a_word_counts_only_if_a_region_overlaps_its_object():
    assert ground(["dog"], attention([0.5, 0.5]), REGIONS[1:3], INSTANCES, NAMES) is None


@pytest.mark.slow
@given(st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_uniform_attention_has_the_uniform_grounding(row):
    even = ground(["person"], attention([0.25] * 4), REGIONS, INSTANCES, NAMES)
    assert even is not None
    assert even.original == even.aligned == even.uniform == 0.25
    any_ = ground(["person"], attention(row), REGIONS, INSTANCES, NAMES)
    assert any_ is not None
    assert 0 <= any_.original <= 1
    assert 0 <= any_.aligned <= 1


def test_the_mean_is_over_words():
    mean = mean_grounding([Grounding(1.0, 0.5, 0.25, 3), Grounding(0.0, 0.5, 0.25, 1)])
    assert mean == Grounding(0.75, 0.5, 0.25, 4)
    assert mean_grounding([]) is None


def test_regions_are_named_after_the_boxes_that_they_overlap():
    assert region_names(REGIONS, INSTANCES) == ["dog", "person", "", "dog"]
    assert region_names(REGIONS, Instances(np.zeros((0, 4), np.float32), ())) == [""] * 4
