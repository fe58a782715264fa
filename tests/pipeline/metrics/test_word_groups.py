"""Scores of groups of words, counted by hand."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.pipeline.metrics.word_groups import GroupCounts, f1_values, score_word_groups

GROUPS = {
    "kinds": frozenset({"ball", "balls", "cup", "box"}),
    "colours": frozenset({"red", "blue"}),
    "counts": frozenset({"two", "three"}),
    "relations": frozenset({"left", "right"}),
}
REFERENCES = {
    "1": ["a red ball left of a blue cup", "a red ball and a cup", "a cup right of a ball"],
    "2": ["two red balls", "balls"],
}
CAPTIONS = {"1": "a red ball right of a red cup", "2": "three red balls"}


def scored(captions=CAPTIONS, references=REFERENCES, groups=GROUPS):
    return score_word_groups(captions, references, groups)


def test_words_are_compared_with_the_references_of_their_image():
    colours = scored().groups["colours"]
    # Image 1: red occurs twice, but in no reference; two of the references' three words occur.
    # Image 2: red occurs, as in one reference.
    assert asdict(colours) == {
        "precision": 2 / 3,
        "recall": 3 / 4,
        "f1": pytest.approx(2 * (2 / 3) * (3 / 4) / (2 / 3 + 3 / 4)),
        "predicted": 3,
        "images": 2,
        "reason": None,
    }


def test_repeated_words_are_correct_as_often_as_in_one_reference():
    scores = scored({"1": "red red red ball", "2": ""})
    assert scores.groups["colours"].precision == 1 / 3


@pytest.mark.parametrize(
    ("captions", "references", "reason"),
    [
        ({"1": "a ball"}, {"1": ["a cup"]}, "nobody says such a word"),
        ({"1": "a red ball"}, {"1": ["a cup"]}, "no reference has such a word"),
        ({"1": "a ball"}, {"1": ["a red cup"]}, "no caption has such a word"),
    ],
)
def test_shares_of_zero_are_none_with_a_reason(captions, references, reason):
    colours = scored(captions, references).groups["colours"]
    assert colours.reason == reason
    assert colours.f1 is None
    assert (colours.precision is None) is ("red" not in captions["1"])
    assert (colours.recall is None) is ("red" not in references["1"][0])


SENTENCES = st.lists(
    st.sampled_from(["a", "red", "blue", "ball", "balls", "cup", "left", "right", "is", "two"]),
    max_size=9,
).map(" ".join)


@given(caption=SENTENCES, others=st.lists(SENTENCES, max_size=3))
def test_a_caption_equal_to_a_reference_is_correct_in_every_group(caption, others):
    scores = scored({"1": caption}, {"1": [*others, caption]})
    for score in scores.groups.values():
        assert score.precision in (None, 1.0)


@given(caption=SENTENCES, references=st.lists(SENTENCES, min_size=1, max_size=3))
def test_counts_are_consistent_and_independent_of_the_order_of_references(caption, references):
    scores = scored({"1": caption}, {"1": references})
    assert scores == scored({"1": caption}, {"1": references[::-1]})
    for counts in scores.per_image["1"].values():
        assert counts.correct <= counts.predicted
        assert counts.recalled <= counts.expected


def test_f1_is_zero_if_nothing_is_correct_and_nan_without_words():
    rows = [GroupCounts(2, 0, 3, 0, 1), GroupCounts(2, 1, 4, 4, 1), [0] * 5]
    values = f1_values(np.array(rows, dtype=float))
    np.testing.assert_equal(values, [[0], [2 / 3], [np.nan]])
