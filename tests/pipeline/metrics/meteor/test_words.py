"""Stems, synonyms, normalisation and alignments of METEOR."""

import pytest

from a2cap.pipeline.metrics.meteor.normalization import normalized_words
from a2cap.pipeline.metrics.meteor.word_alignment import EXACT, align, new_match
from a2cap.pipeline.metrics.meteor.words import java_hash, stem, words

STEMS = {
    "caresses": "caress",
    "ponies": "poni",
    "ties": "tie",
    "gas": "gas",
    "agreed": "agre",
    "sized": "size",
    "troubled": "troubl",
    "hopping": "hop",
    "hoping": "hope",
    "bleeding": "bleed",
    "skies": "sky",
    "dying": "die",
    "inning": "inning",
    "generously": "generous",
    "communism": "communism",
    "relational": "relat",
    "conditional": "condit",
    "vietnamization": "vietnam",
    "happily": "happili",
    "dog's": "dog",
    "'tis": "tis",
    "yellow": "yellow",
    "say": "say",
    "cry": "cri",
    "formative": "format",
    "adoption": "adopt",
    "controll": "control",
    "be": "be",
}
"""Values of the jar's stemmer."""


@pytest.mark.parametrize("word", STEMS)
def test_stems_are_those_of_the_jar(word):
    assert stem(word) == STEMS[word]


def test_words_with_a_common_synonym_set_are_synonyms():
    known = words()
    assert known["kids"].synsets & known["children"].synsets
    assert known["running"].synsets & known["run"].synsets
    assert not known["dog"].synsets & known["piano"].synsets
    # words on "ss" and of two letters are no plurals
    assert not known["pass"].synsets & known["pas"].synsets
    assert not known["us"].synsets & known["u"].synsets
    assert [known[word].is_function for word in ("the", "dog")] == [True, False]


def test_a_word_is_compared_by_its_hash_in_java():
    assert java_hash("hello") == 99162322
    assert java_hash("an") == java_hash("c0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a dog", "a dog"),
        ("t-shirt o'clock", "t shirt o 'clock"),
        ("u.s. army etc. now", "us army etc. now"),
        ("at no. 5 no. x end.", "at no . 5 no. x end ."),
        ("1,000 dogs,cats", "1,000 dogs , cats"),
        ("well ... so", "well ... so"),
        ("“a” ''b'' 90's", '" a " " b " 90 \'s'),
    ],
)
def test_normalised_words_are_those_of_the_jar(text, expected):
    assert normalized_words(text, words().prefixes) == expected.split()


def test_the_alignment_covers_most_words_with_fewest_chunks():
    # the caption "a b a", the reference "b a"
    b, first, last = (new_match(EXACT, *at) for at in ((1, 1, 0, 1), (0, 1, 1, 1), (2, 1, 1, 1)))
    assert align([[b], [first, last]]) == [b, last]
