"""Scores of groups of words, counted by hand."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.annotations.word_groups import read_word_groups
from a2cap.pipeline.metrics.word_groups import (
    GroupCounts,
    group_values,
    score_word_groups,
)

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
    found = scored().groups["colours"].words
    # Image 1: red occurs twice, but in no reference; two of the references' three words occur.
    # Image 2: red occurs, as in one reference.
    assert asdict(found) == {
        "precision": 2 / 3,
        "recall": 3 / 4,
        "f1": pytest.approx(2 * (2 / 3) * (3 / 4) / (2 / 3 + 3 / 4)),
        "predicted": 3,
        "images": 2,
        "reason": None,
    }


def test_pairs_are_correct_if_a_reference_has_them():
    colours = scored().groups["colours"].pairs
    # red ball and red balls are correct; the cup has another colour in the references.
    assert (colours.predicted, colours.judged, colours.images) == (3, 3, 2)
    assert (colours.accuracy, colours.precision) == (2 / 3, 2 / 3)
    counts = scored().groups["counts"].pairs
    assert (counts.accuracy, counts.predicted, counts.judged) == (0.0, 1, 1)


def test_a_correct_word_may_be_the_wrong_relation():
    """The references contain both "left" and "right"; only pairs show the error."""
    relations = scored({**CAPTIONS, "1": "a ball right of a cup"}).groups["relations"]
    assert (relations.words.precision, relations.pairs.accuracy) == (1.0, 0.0)
    truth = scored({**CAPTIONS, "1": "a blue cup right of a red ball"}).groups["relations"]
    assert (truth.words.precision, truth.pairs.accuracy, truth.pairs.judged) == (1.0, 1.0, 1)


def test_pairs_without_a_reference_pair_of_their_topic_are_not_judged():
    captions = {"1": "a box left of a cup", "2": "blue balls"}
    relations = scored(captions).groups["relations"].pairs
    assert (relations.predicted, relations.judged, relations.precision) == (1, 0, 0.0)
    assert relations.accuracy is None
    assert relations.reason == "no reference says such a pair of the same topic"


def test_repeated_words_are_correct_as_often_as_in_one_reference():
    found = scored({"1": "red red red ball", "2": ""})
    assert found.groups["colours"].words.precision == 1 / 3
    assert found.groups["colours"].pairs.judged == 3
    assert found.groups["colours"].pairs.accuracy == 1 / 3


@pytest.mark.parametrize(
    ("captions", "references", "reason"),
    [
        ({"1": "a ball"}, {"1": ["a cup"]}, "nobody says such a {}"),
        ({"1": "a red ball"}, {"1": ["a cup"]}, "no reference has such a {}"),
        ({"1": "a ball"}, {"1": ["a red cup"]}, "no caption has such a {}"),
    ],
)
def test_shares_of_zero_are_none_with_a_reason(captions, references, reason):
    found = scored(captions, references).groups["colours"]
    assert found.words.reason == reason.format("word")
    assert found.pairs.reason == reason.format("pair")
    assert found.words.f1 is None
    assert found.pairs.accuracy is None
    assert (found.words.precision is None) is ("red" not in captions["1"])
    assert (found.words.recall is None) is ("red" not in references["1"][0])


def test_a_group_without_pairs_has_a_reason():
    assert scored().groups["kinds"].pairs.reason == "pairs of other groups are about 'kinds'"
    bare = scored(groups={"colours": GROUPS["colours"]}).groups["colours"]
    assert bare.pairs.reason == "no group 'kinds' says what pairs are about"
    assert bare.words == scored().groups["colours"].words


@pytest.mark.slow
def test_true_captions_of_scenes_do_not_contradict_each_other(experiment):
    """Each caption is compared with the others of its image; a misread pair contradicts them."""
    groups = read_word_groups(experiment.scenes / "words.json")
    images = json.loads((experiment.scenes / "dataset_coco.json").read_text())["images"]
    captioned = [[" ".join(s["tokens"]) for s in image["sentences"]] for image in images]
    captions, references = {}, {}
    for number, group in enumerate(captioned):
        for index, caption in enumerate(group):
            captions[f"{number} {index}"] = caption
            references[f"{number} {index}"] = group[:index] + group[index + 1 :]
    found = scored(captions, references, groups).groups
    for name in ("sizes", "counts"):
        assert found[name].pairs.judged >= 10
    for name in ("sizes", "textures", "counts", "relations"):
        assert found[name].pairs.accuracy == 1.0
    # Captions may each name the colour of another object of the same kind.
    assert found["colours"].pairs.accuracy >= 0.95


SENTENCES = st.lists(
    st.sampled_from(["a", "red", "blue", "ball", "balls", "cup", "left", "right", "is", "two"]),
    max_size=9,
).map(" ".join)


@given(caption=SENTENCES, others=st.lists(SENTENCES, max_size=3))
def test_a_caption_equal_to_a_reference_is_correct_in_every_group(caption, others):
    found = scored({"1": caption}, {"1": [*others, caption]})
    for score in found.groups.values():
        assert score.words.precision in (None, 1.0)
        assert score.pairs.accuracy in (None, 1.0)
        assert score.pairs.judged == score.pairs.predicted


@given(caption=SENTENCES, references=st.lists(SENTENCES, min_size=1, max_size=3))
def test_counts_are_consistent_and_independent_of_the_order_of_references(caption, references):
    found = scored({"1": caption}, {"1": references})
    assert found == scored({"1": caption}, {"1": references[::-1]})
    for counts in found.per_image["1"].values():
        assert counts.correct <= counts.predicted
        assert counts.recalled <= counts.expected
        assert counts.held <= counts.judged <= counts.pairs


def test_f1_is_zero_if_nothing_is_correct_and_nan_without_words():
    nothing_correct = GroupCounts(2, 0, 3, 0, 0, 0, 0, 1, 0)
    half = GroupCounts(2, 1, 4, 4, 2, 2, 1, 1, 1)
    found = group_values(np.array([nothing_correct, half, [0] * 9], dtype=float))
    np.testing.assert_equal(found, [[0, np.nan], [2 / 3, 0.5], [np.nan, np.nan]])
