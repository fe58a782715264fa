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


LEFT, ABOVE, INSIDE = (
    (("left", "ball", "box"),),
    (("above", "ball", "box"),),
    (("inside", "ball", "box"),),
)
BETWEEN, BETWEEN_CUPS = (("between", "ball", "box", "cup"),), (("between", "ball", "cup"),)
RED, SMALL, TWO, THREE = (
    (("red", "ball"),),
    (("small", "red ball"),),
    (("two", "red ball"),),
    (("three", "ball"),),
)
LARGEST = (("largest", "ball"),)

# Group -> sentence -> its pairs, (word, nouns) each, sorted, with repetitions.
PAIRS: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {
    "colours": {
        # A word describes the next noun or the subject of its clause.
        "a small red ball and two blue boxes": (("blue", "box"), *RED),
        "the balls are red and small": RED,
        "the red balls are large": RED,
        "a red ball and a red ball": RED * 2,
        "the ball is red and the cup is blue": (("blue", "cup"), *RED),
        "a ball left of a red thing": (),
        "red": (),
        "ball red": (),
        "there is red": (),
        "it is red": (),
        # Partitives are described by their predicate.
        "two of the three balls are red": RED,
        "of the three balls two are red": RED,
        # Colours are part of the noun, except in pairs of colours.
        "two red balls": RED,
    },
    "sizes": {
        "two small red balls": SMALL,
        "the red balls are small": SMALL,
        "a tiny ball and huge cups": (("large", "cup"), ("small", "ball")),
    },
    "counts": {
        "two small red balls and an blue fish": (("a", "blue fish"), *TWO),
        "we see cups which are three": (),
        "the cups are three": (("three", "cup"),),
        "two of the three balls are red": THREE,
        "of the three balls two are red": THREE,
        "two red balls": TWO,
        "pair of red balls": TWO,
        "single ball": (("one", "ball"),),
        "one ball": (("one", "ball"),),
        "two red blue balls": (("two", "blue red ball"),),
    },
    "relations": {
        # "a left of b" equals "b right of a".
        "a ball is to the left of a large box": LEFT,
        "balls on the left side of boxes": LEFT,
        "to the left of a box there is a ball": LEFT,
        "a box right of a ball": LEFT,
        "on the right side of the ball there is a box": LEFT,
        "a box with a ball to the left": LEFT,
        "a ball and a box on the right": LEFT,
        "a ball above a box": ABOVE,
        "a ball higher than a box": ABOVE,
        "a box under a ball": ABOVE,
        "a box is lower than a ball": ABOVE,
        "below a ball there is a box": ABOVE,
        # Relations join the nouns on both sides.
        "a ball left of a cup above a box": (("above", "cup", "box"), ("left", "ball", "cup")),
        "a ball inside a box": INSIDE,
        "a box inside a ball": (("inside", "box", "ball"),),
        "a box is around a ball": INSIDE,
        "a box with a ball inside": INSIDE,
        "a cup smaller than a ball": (("larger", "ball", "cup"),),
        "a ball on the left": (),
        "left of it": (),
        "left of a ball": (),
        "a red ball left of a blue ball": (("left", "red ball", "blue ball"),),
        "a red ball left of a red ball": (),
        # "between" has two nouns without an order.
        "a ball between a cup and a box": BETWEEN,
        "a ball is between a box and a cup": BETWEEN,
        "between a box and a cup there is a ball": BETWEEN,
        "a ball between two cups": BETWEEN_CUPS,
        "a ball between a cup and a cup": BETWEEN_CUPS,
        "between two cups there is a ball": BETWEEN_CUPS,
        "two cups with a ball between them": BETWEEN_CUPS,
        "a cup and a box with a ball between them": BETWEEN,
        # A superlative describes one noun.
        "the largest thing is a ball": LARGEST,
        "the ball is the largest": LARGEST,
        "the largest of all is a ball": LARGEST,
        "it is the largest": (),
        "the largest of the three balls is red": (),
    },
    "kinds": {"a red ball": ()},
}


@pytest.mark.parametrize("group", PAIRS)
def test_the_pairs_of_a_sentence(group):
    for sentence, found in PAIRS[group].items():
        pairs = READER.read(sentence.split())[group].elements()
        assert sorted((pair.word, *pair.nouns) for pair in pairs) == list(found), sentence


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ("a ball left of a box", "a ball right of a box", True),
        ("a ball left of a box", "a ball above a box", True),
        ("a ball left of a box", "a ball larger than a box", False),
        ("largest ball", "largest cup", True),
    ],
)
def test_pairs_that_exclude_each_other_have_one_topic(one, other, is_equal):
    [first], [second] = (READER.read(text.split())["relations"] for text in (one, other))
    assert first != second
    assert (first.topic == second.topic) is is_equal
