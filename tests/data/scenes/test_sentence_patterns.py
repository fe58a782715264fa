"""The grammar: every word that refers to objects is in one group."""

from a2cap.data.scenes import sentence_patterns as grammar
from a2cap.data.scenes.objects import COLOURS, OBJECT_CATEGORIES, PLURALS, SIZES, TEXTURES
from a2cap.data.scenes.sentence_patterns import NUMBERS, SIZE_WORDS, TEXTURE_WORDS, WORD_GROUPS


def patterns() -> list[str]:
    groups = [value for value in vars(grammar).values() if isinstance(value, tuple)]
    flat = [pattern for group in groups for pattern in group]
    return [*flat, *(p for ps in grammar.RELATIONS.values() for p in ps)]


def test_every_word_is_in_one_group():
    assert list(WORD_GROUPS) == ["kinds", "colours", "sizes", "textures", "counts", "relations"]
    words = [word for group in WORD_GROUPS.values() for word in group]
    assert len(words) == len(set(words))
    assert set(WORD_GROUPS["kinds"]) == {*OBJECT_CATEGORIES, *PLURALS.values()}
    assert WORD_GROUPS["colours"] == list(COLOURS)
    assert set(SIZE_WORDS) == set(SIZES) and set(TEXTURE_WORDS) == set(TEXTURES)
    assert set(NUMBERS[1:]) < set(WORD_GROUPS["counts"])


def test_the_marked_words_of_the_patterns_are_the_relations():
    marked = {w[1:] for pattern in patterns() for w in pattern.split() if w[0] in "*^"}
    assert marked == set(WORD_GROUPS["relations"])
    plain = {w for pattern in patterns() if "{" in pattern for w in pattern.split()}
    assert not plain & {word for group in WORD_GROUPS.values() for word in group}
