import re

import numpy as np
import pytest

from a2.data.scene_captions import CAPTIONS_PER_SCENE, Caption, captions_of, relation
from a2.data.scene_things import COLOURS, KINDS, PLURALS, TEXTURES, Thing
from a2.data.scenes import Scene, make_scene

SINGULAR = {plural: kind for kind, plural in PLURALS.items()} | {kind: kind for kind in KINDS}
COUNTS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5}
SIZES = {"small": "small", "little": "small", "large": "large", "big": "large"}
DIRECTIONS = {
    "left": "left",
    "right": "right",
    "above": "above",
    "higher": "above",
    "below": "below",
    "under": "below",
    "lower": "below",
}
NOUN_PHRASE = re.compile(
    rf"\b({'|'.join(COUNTS)}) ((?:(?:{'|'.join([*SIZES, *TEXTURES, *COLOURS])}) )*)"
    rf"({'|'.join(SINGULAR)})\b"
)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(index, seed=7, side=160) for index in range(400)]


def text(caption: Caption) -> str:
    return " ".join(word.text for word in caption)


def named(match: re.Match[str], things: tuple[Thing, ...]) -> set[int]:
    """The things that fit a noun phrase, found from the description alone."""
    words = match[2].split()
    colours, sizes = set(words) & set(COLOURS), {SIZES[w] for w in words if w in SIZES}
    textures = set(words) & set(TEXTURES)
    return {
        i
        for i, thing in enumerate(things)
        if thing.kind == SINGULAR[match[3]]
        and colours <= {thing.colour}
        and sizes <= {thing.size}
        and textures <= {thing.texture}
    }


def test_every_count_is_the_number_of_things_that_fit_the_phrase(scenes):
    for scene in scenes:
        for caption in scene.captions:
            phrases = list(NOUN_PHRASE.finditer(text(caption)))
            assert phrases, text(caption)
            for phrase in phrases:
                assert len(named(phrase, scene.things)) == COUNTS[phrase[1]], text(caption)


def test_no_thing_word_stands_outside_a_noun_phrase(scenes):
    content = {*SINGULAR, *COLOURS, *SIZES, *TEXTURES, *COUNTS} - {"a"}
    for scene in scenes:
        for caption in scene.captions:
            rest = NOUN_PHRASE.sub(" ", text(caption))
            assert not content & set(rest.split()), text(caption)


def test_every_relation_holds_between_the_things_that_it_joins(scenes):
    seen = set()
    for scene in scenes:
        for caption in scene.captions:
            directions = [DIRECTIONS[w.text] for w in caption if w.text in DIRECTIONS]
            if not directions:
                continue
            a, b = (named(phrase, scene.things) for phrase in NOUN_PHRASE.finditer(text(caption)))
            if caption[0].text == "to" or caption[0].text in DIRECTIONS:
                a, b = b, a
            axis, sign = {"left": (0, 1), "right": (0, -1), "above": (1, 1), "below": (1, -1)}[
                directions[0]
            ]
            for i in a:
                for j in b:
                    first, second = scene.things[i].box, scene.things[j].box
                    assert sign * first[axis] < sign * second[axis], text(caption)
                    assert sign * first[axis + 2] < sign * second[axis + 2], text(caption)
            seen.add(directions[0])
    assert seen == {"left", "right", "above", "below"}


def test_content_words_carry_the_things_of_their_phrase_and_articles_none(scenes):
    for scene in scenes:
        for caption in scene.captions:
            phrases = [
                named(phrase, scene.things) for phrase in NOUN_PHRASE.finditer(text(caption))
            ]
            nouns = [set(word.things) for word in caption if word.text in SINGULAR]
            assert nouns == phrases
            for word in caption:
                if word.text in COLOURS:
                    assert {scene.things[i].colour for i in word.things} == {word.text}
                elif word.text in SIZES:
                    assert {scene.things[i].size for i in word.things} == {SIZES[word.text]}
                elif word.text in COUNTS and COUNTS[word.text] > 1:
                    assert len(word.things) == COUNTS[word.text]
                elif word.text in DIRECTIONS:
                    assert set(word.things) == set().union(*phrases)
                elif word.text not in SINGULAR and word.text not in TEXTURES:
                    assert word.things == ()


def test_a_scene_has_five_different_captions_of_four_to_sixteen_words(scenes):
    for scene in scenes:
        assert len({text(caption) for caption in scene.captions}) == CAPTIONS_PER_SCENE == 5
        assert all(4 <= len(caption) <= 16 for caption in scene.captions)


def test_the_vocabulary_has_at_least_forty_words_and_every_kind_and_colour(scenes):
    words = {word.text for scene in scenes for caption in scene.captions for word in caption}
    assert len(words) >= 60
    assert words >= {*COLOURS, *KINDS, *PLURALS.values()}


def test_counts_and_relations_are_common(scenes):
    captions = [{w.text for w in caption} for scene in scenes for caption in scene.captions]
    assert sum(bool(words & {"two", "three", "four", "five"}) for words in captions) > 0.5 * 2000
    assert sum(bool(words & set(DIRECTIONS)) for words in captions) > 0.15 * 2000


def test_an_article_agrees_with_the_word_after_it(scenes):
    captions = [text(caption) for scene in scenes for caption in scene.captions]
    assert any(" an orange " in caption for caption in captions)
    assert not any(re.search(r"\b(a [aeiou]|an [^aeiou])", caption) for caption in captions)


def test_the_verb_agrees_with_the_first_phrase():
    things = (square(30, 80), square(120, 80))
    spoken = {
        text(c) for seed in range(40) for c in captions_of(things, np.random.default_rng(seed))
    }
    assert "there are two red boxes" in spoken
    assert not any(re.search(r"there is two|boxes is", caption) for caption in spoken)


def square(x: float, y: float, *, colour: str = "red", half: float = 12) -> Thing:
    return Thing("box", colour, "small", "plain", (x - half, y - half, x + half, y + half))


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (20, 80, "left"),
        (140, 80, "right"),
        (80, 20, "above"),
        (80, 140, "below"),
        (20, 20, None),
        (90, 85, None),
    ],
)
def test_relation_names_the_side_and_nothing_on_the_diagonal_or_when_boxes_overlap(x, y, expected):
    assert relation([square(x, y)], [square(80, 80)]) == expected


def test_relation_of_groups_needs_all_of_one_on_the_same_side_of_all_of_the_other():
    around = [square(20, 80), square(140, 80)]
    assert relation(around, [square(80, 80)]) is None
    assert relation([square(20, 60), square(20, 100)], [square(130, 80)]) == "left"


def test_relation_turned_round_is_its_opposite(scenes):
    opposite = {"left": "right", "right": "left", "above": "below", "below": "above", None: None}
    for scene in scenes:
        first, last = scene.things[:1], scene.things[-1:]
        assert relation(first, last) == opposite[relation(last, first)]
