"""Pairs of words and nouns in hand-made sentences."""

import pytest

from a2cap.pipeline.metrics.word_pairs import PairReader

GROUPS = {
    "kinds": frozenset({"ball", "balls", "box", "boxes", "cup", "cups", "fish"}),
    "colours": frozenset({"red", "blue"}),
    "sizes": frozenset({"small", "tiny", "large", "huge"}),
    "counts": frozenset({"a", "an", "one", "single", "two", "pair", "three"}),
    "relations": frozenset(
        {"left", "right", "above", "below", "under", "higher", "lower", "inside", "between"}
        | {"largest", "smallest", "smaller", "larger", "around"}
    ),
}
READER = PairReader(GROUPS)


def pairs(sentence, group):
    """Return the pairs of a group, (word, nouns) each, sorted, with repetitions."""
    found = READER.read(sentence.split())[group]
    return sorted((pair.word, *pair.nouns) for pair in found.elements())


def relations(sentence):
    return pairs(sentence, "relations")


@pytest.mark.parametrize(
    ("sentence", "colours"),
    [
        ("a small red ball and two blue boxes", [("blue", "box"), ("red", "ball")]),
        ("the balls are red and small", [("red", "ball")]),
        ("the red balls are large", [("red", "ball")]),
        ("a red ball and a red ball", [("red", "ball")] * 2),
        ("the ball is red and the cup is blue", [("blue", "cup"), ("red", "ball")]),
        ("a ball left of a red thing", []),
        ("red", []),
        ("ball red", []),
        ("there is red", []),
        ("it is red", []),
    ],
)
def test_a_word_describes_the_next_noun_or_the_subject_of_its_clause(sentence, colours):
    assert pairs(sentence, "colours") == colours


def test_counts_describe_their_noun_across_adjectives_and_an_equals_a():
    sentence = "two small red balls and an blue fish"
    assert pairs(sentence, "counts") == [("a", "blue fish"), ("two", "red ball")]
    assert pairs("we see cups which are three", "counts") == []
    assert pairs("the cups are three", "counts") == [("three", "cup")]


def test_synonyms_are_equal():
    assert pairs("a tiny ball and huge cups", "sizes") == [("large", "cup"), ("small", "ball")]
    for sentence in ("two red balls", "pair of red balls"):
        assert pairs(sentence, "counts") == [("two", "red ball")]
    assert pairs("single ball", "counts") == pairs("one ball", "counts") == [("one", "ball")]


def test_partitives_are_described_by_their_predicate():
    for sentence in ("two of the three balls are red", "of the three balls two are red"):
        assert pairs(sentence, "counts") == [("three", "ball")]
        assert pairs(sentence, "colours") == [("red", "ball")]


@pytest.mark.parametrize(
    "sentence",
    [
        "a ball is to the left of a large box",
        "balls on the left side of boxes",
        "to the left of a box there is a ball",
        "a box right of a ball",
        "on the right side of the ball there is a box",
        "a box with a ball to the left",
        "a ball and a box on the right",
    ],
)
def test_left_of_mirrors_right_of(sentence):
    assert relations(sentence) == [("left", "ball", "box")]


@pytest.mark.parametrize(
    "sentence",
    [
        "a ball above a box",
        "a ball higher than a box",
        "a box under a ball",
        "a box is lower than a ball",
        "below a ball there is a box",
    ],
)
def test_synonyms_of_above_and_below_are_equal(sentence):
    assert relations(sentence) == [("above", "ball", "box")]


def test_the_wrong_side_is_another_pair_of_the_same_topic():
    [right], [wrong] = (
        READER.read(text.split())["relations"]
        for text in ("a ball left of a box", "a ball right of a box")
    )
    assert right != wrong
    assert right.topic == wrong.topic == ("place", "ball", "box")


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("a ball left of a cup above a box", [("above", "cup", "box"), ("left", "ball", "cup")]),
        ("a ball inside a box", [("inside", "ball", "box")]),
        ("a box inside a ball", [("inside", "box", "ball")]),
        ("a box is around a ball", [("inside", "ball", "box")]),
        ("a box with a ball inside", [("inside", "ball", "box")]),
        ("a cup smaller than a ball", [("larger", "ball", "cup")]),
        ("a ball on the left", []),
        ("left of it", []),
        ("left of a ball", []),
        ("a red ball left of a blue ball", [("left", "red ball", "blue ball")]),
        ("a red ball left of a red ball", []),
    ],
)
def test_relations_join_the_nouns_on_both_sides(sentence, found):
    assert relations(sentence) == found


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("a ball between a cup and a box", [("between", "ball", "box", "cup")]),
        ("a ball is between a box and a cup", [("between", "ball", "box", "cup")]),
        ("between a box and a cup there is a ball", [("between", "ball", "box", "cup")]),
        ("a ball between two cups", [("between", "ball", "cup")]),
        ("a ball between a cup and a cup", [("between", "ball", "cup")]),
        ("between two cups there is a ball", [("between", "ball", "cup")]),
        ("two cups with a ball between them", [("between", "ball", "cup")]),
        ("a cup and a box with a ball between them", [("between", "ball", "box", "cup")]),
    ],
)
def test_between_has_two_unordered_nouns(sentence, found):
    assert relations(sentence) == found


def test_colours_are_part_of_the_noun_except_in_pairs_of_colours():
    assert pairs("two small red balls", "sizes") == [("small", "red ball")]
    assert pairs("the red balls are small", "sizes") == [("small", "red ball")]
    assert pairs("two red blue balls", "counts") == [("two", "blue red ball")]
    assert pairs("two red balls", "colours") == [("red", "ball")]


def test_relations_of_position_and_size_have_different_topics():
    [position], [size], [above] = (
        READER.read(f"a ball {word} a box".split())["relations"]
        for word in ("left of", "larger than", "above")
    )
    assert position.topic == above.topic
    assert position.topic != size.topic


def test_superlatives_describe_one_noun_and_exclude_each_other():
    assert relations("the largest thing is a ball") == [("largest", "ball")]
    assert relations("the ball is the largest") == [("largest", "ball")]
    assert relations("the largest of all is a ball") == [("largest", "ball")]
    assert relations("it is the largest") == []
    assert relations("the largest of the three balls is red") == []
    [one], [other] = (
        READER.read(text.split())["relations"] for text in ("largest ball", "largest cup")
    )
    assert one.topic == other.topic


def test_kinds_have_no_pairs_and_other_groups_need_them():
    assert pairs("a red ball", "kinds") == []
    bare = PairReader({"colours": frozenset({"red"})})
    assert not bare.read(["red", "ball"])["colours"]
