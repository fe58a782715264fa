"""Captions of scenes: every statement is true of the objects, and every word has its objects."""

import re

import numpy as np
import pytest

from a2cap.data.scenes.captions import CAPTIONS_PER_SCENE, Caption, generate_captions
from a2cap.data.scenes.grammar import NUMBERS, SIZE_WORDS, TEXTURE_WORDS, WORD_GROUPS
from a2cap.data.scenes.objects import (
    CLUTTER,
    COLOURS,
    MUTED,
    OBJECT_CATEGORIES,
    PLURALS,
    SceneObject,
)
from a2cap.data.scenes.relations import is_between, is_inside, is_larger, relation
from a2cap.data.scenes.scene import Scene, make_scene

SINGULAR = {plural: category for category, plural in PLURALS.items()} | {
    category: category for category in OBJECT_CATEGORIES
}
COUNTS = {word: number for number, word in enumerate(NUMBERS) if number > 1} | {
    "a single": 1,
    "a pair of": 2,
    "a": 1,
    "an": 1,
}
SIZES = {form: size for size, forms in SIZE_WORDS.items() for form in forms}
TEXTURES = {form: texture for texture, forms in TEXTURE_WORDS.items() for form in forms}
DIRECTIONS = {
    "left": "left",
    "right": "right",
    "above": "above",
    "over": "above",
    "higher": "above",
    "below": "below",
    "beneath": "below",
    "underneath": "below",
    "under": "below",
    "lower": "below",
}
SUPERLATIVES = {"largest": max, "biggest": max, "smallest": min}
NOUN_PHRASE = re.compile(
    rf"\b({'|'.join(COUNTS)}) ((?:(?:{'|'.join([*SIZES, *TEXTURES, *COLOURS])}) )*)"
    rf"({'|'.join(SINGULAR)})\b"
)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(index, seed=7, side=160) for index in range(600)]


def text(caption: Caption) -> str:
    return " ".join(word.text for word in caption)


def named(match: re.Match[str], objects: tuple[SceneObject, ...]) -> set[int]:
    """Return the objects that fit the words of a noun phrase."""
    words = match[2].split()
    colours, sizes = set(words) & set(COLOURS), {SIZES[w] for w in words if w in SIZES}
    textures = {TEXTURES[w] for w in words if w in TEXTURES}
    return {
        i
        for i, obj in enumerate(objects)
        if obj.category == SINGULAR[match[3]]
        and colours <= {obj.colour}
        and sizes <= {obj.size}
        and textures <= {obj.texture}
    }


def phrases(caption: Caption, scene: Scene) -> list[set[int]]:
    """Return the objects of each noun phrase in the order of the caption."""
    return [named(phrase, scene.objects) for phrase in NOUN_PHRASE.finditer(text(caption))]


def captions_with(
    scenes: list[Scene], words: set[str]
) -> list[tuple[str, str, list[list[SceneObject]], Scene]]:
    """Return the captions with one of the words: word, text, objects of each phrase, scene."""
    found = []
    for scene in scenes:
        for caption in scene.captions:
            for word in {word.text for word in caption} & words:
                groups = [[scene.objects[i] for i in g] for g in phrases(caption, scene)]
                found.append((word, text(caption), groups, scene))
    return found


@pytest.mark.slow
def test_every_count_is_the_number_of_objects_that_fit_the_phrase(scenes):
    for scene in scenes:
        for caption in scene.captions:
            found = list(NOUN_PHRASE.finditer(text(caption)))
            assert found, text(caption)
            for phrase in found:
                assert len(named(phrase, scene.objects)) == COUNTS[phrase[1]], text(caption)


@pytest.mark.slow
def test_content_words_outside_noun_phrases_refer_to_a_part_of_them(scenes):
    content = {*SINGULAR, *COLOURS, *SIZES, *TEXTURES, *WORD_GROUPS["counts"]}
    parts = 0
    for scene in scenes:
        for caption in scene.captions:
            rest = NOUN_PHRASE.sub("", text(caption)).split()
            if not content & set(rest):
                continue
            (whole,) = phrases(caption, scene)
            colour = caption[-1].text if caption[-1].text in COLOURS else ""
            assert colour, text(caption)
            of_colour = {i for i in whole if scene.objects[i].colour == colour}
            counts = {NUMBERS.index(word) for word in rest if word in NUMBERS}
            if counts:
                assert counts == {len(of_colour)} and set(caption[-1].objects) == of_colour
                parts += 1
            else:
                ((superlative, *_),) = [[w for w in rest if w in SUPERLATIVES]]
                one = SUPERLATIVES[superlative](whole, key=lambda i: scene.objects[i].area)
                assert caption[-1].objects == (one,) and one in of_colour, text(caption)
            assert content & set(rest) <= {colour, *NUMBERS}
    assert parts > 50


@pytest.mark.slow
def test_every_relation_is_true_of_all_pairs_of_objects(scenes):
    seen = set()
    for word, caption, groups, _ in captions_with(scenes, set(DIRECTIONS)):
        a, b = groups[::-1] if caption.split()[0] in ("to", *DIRECTIONS) else groups
        axis, sign = {"left": (0, 1), "right": (0, -1), "above": (1, 1), "below": (1, -1)}[
            DIRECTIONS[word]
        ]
        for first in a:
            for second in b:
                assert sign * first.box[axis] < sign * second.box[axis], caption
                assert sign * first.box[axis + 2] < sign * second.box[axis + 2], caption
        seen.add(word)
    assert seen == set(DIRECTIONS)


@pytest.mark.slow
def test_inside_means_in_the_box_of_a_ring_or_a_box(scenes):
    found = captions_with(scenes, {"inside", "within", "around"})
    for word, caption, (a, b), _ in found:
        turned = word == "around" or caption.startswith("inside") or caption.endswith("inside")
        inner, outer = (b, a) if turned else (a, b)
        assert is_inside(inner, outer), caption
        (container,) = outer
        assert container.category in ("ring", "box")
        for obj in inner:
            assert container.box[0] < obj.box[0] and obj.box[2] < container.box[2]
            assert container.box[1] < obj.box[1] and obj.box[3] < container.box[3]
    assert len(found) > 30


@pytest.mark.slow
def test_between_means_that_the_others_are_on_opposite_sides(scenes):
    found = captions_with(scenes, {"between"})
    for _, caption, groups, _ in found:
        first = caption.startswith("between") or caption.endswith("between them")
        inner = groups.pop() if first else groups.pop(0)
        b, c = groups if len(groups) == 2 else ([groups[0][0]], [groups[0][1]])
        assert is_between(inner, b, c), caption
        around = [obj for group in groups for obj in group]
        for axis in (0, 1):
            low = any(all(o.box[axis + 2] < t.box[axis] for t in inner) for o in around)
            high = any(all(o.box[axis] > t.box[axis + 2] for t in inner) for o in around)
            if low and high:
                break
        else:
            pytest.fail(caption)
    assert len(found) > 30


@pytest.mark.slow
def test_superlatives_and_comparisons_follow_the_boxes(scenes):
    for word, caption, groups, scene in captions_with(scenes, set(SUPERLATIVES)):
        if "of the" not in caption:
            ((obj,),) = groups
            assert obj.area == SUPERLATIVES[word](t.area for t in scene.objects), caption
            assert len(scene.objects) > 1
    for word, caption, (a, b), _ in captions_with(scenes, {"larger", "bigger", "smaller"}):
        assert is_larger(*((b, a) if word == "smaller" else (a, b))), caption


@pytest.mark.slow
def test_only_content_words_refer_to_objects_those_of_their_phrase(scenes):
    grouped = {word for words in WORD_GROUPS.values() for word in words}
    for scene in scenes:
        for caption in scene.captions:
            nouns = [set(word.objects) for word in caption if word.text in SINGULAR]
            assert nouns == phrases(caption, scene)
            for word in caption:
                assert bool(word.objects) == (word.text in grouped), text(caption)
                assert all(0 <= i < len(scene.objects) for i in word.objects)
                objects = [scene.objects[i] for i in word.objects]
                if word.text in COLOURS:
                    assert {obj.colour for obj in objects} == {word.text}
                elif word.text in SIZES:
                    assert {obj.size for obj in objects} == {SIZES[word.text]}
                elif word.text in TEXTURES:
                    assert {obj.texture for obj in objects} == {TEXTURES[word.text]}
                elif word.text in NUMBERS:
                    assert len(objects) == NUMBERS.index(word.text)
                elif word.text in DIRECTIONS or word.text == "between":
                    assert set(word.objects) == set().union(*nouns)


@pytest.mark.slow
def test_a_scene_has_five_captions_of_three_to_twenty_words_with_different_patterns(scenes):
    for scene in scenes:
        assert len({text(caption) for caption in scene.captions}) == CAPTIONS_PER_SCENE == 5
        assert all(3 <= len(caption) <= 20 for caption in scene.captions)
        frames = {NOUN_PHRASE.sub("X", text(caption)) for caption in scene.captions}
        assert len(frames) == 5, frames


@pytest.mark.slow
def test_two_thousand_scenes_have_a_vocabulary_of_at_least_120_words():
    many = (make_scene(index, seed=1, side=96) for index in range(2000))
    words = {word.text for scene in many for caption in scene.captions for word in caption}
    assert len(words) >= 120
    assert words >= {word for group in WORD_GROUPS.values() for word in group}


@pytest.mark.slow
def test_counts_and_relations_are_common(scenes):
    captions = [{w.text for w in caption} for scene in scenes for caption in scene.captions]
    assert sum(bool(words & set(NUMBERS[2:])) for words in captions) > 0.5 * len(captions)
    relations = set(WORD_GROUPS["relations"])
    assert sum(bool(words & set(DIRECTIONS)) for words in captions) > 0.12 * len(captions)
    assert sum(bool(words & relations) for words in captions) > 0.3 * len(captions)


@pytest.mark.slow
def test_articles_agree_with_the_next_word_and_no_caption_mentions_clutter(scenes):
    captions = [text(caption) for scene in scenes for caption in scene.captions]
    assert any(" an orange " in caption for caption in captions)
    assert not any(re.search(r"\b(a [aeiou]|an [^aeiou])", caption) for caption in captions)
    words = {word for caption in captions for word in caption.split()}
    assert not words & {*CLUTTER, *(f"{category}s" for category in CLUTTER), *MUTED}


def test_the_verb_agrees_with_its_phrase():
    boxes = ((18, 68, 42, 92), (108, 68, 132, 92))
    objects = [SceneObject("box", "red", "small", "plain", box) for box in boxes]
    seeds = map(np.random.default_rng, range(60))
    found = {text(caption) for rng in seeds for caption in generate_captions(objects, rng)}
    assert "there are two red boxes" in found
    assert not any(re.search(r"there is two|boxes (is|appears)", caption) for caption in found)


def test_captions_are_the_same_at_any_scale():
    objects = make_scene(3, seed=0, side=100).objects
    smaller, larger = (
        generate_captions([obj.scaled(factor) for obj in objects], np.random.default_rng(1))
        for factor in (1, 5)
    )
    assert smaller == larger


@pytest.mark.slow
def test_the_reversed_relation_is_the_opposite(scenes):
    opposite = {"left": "right", "right": "left", "above": "below", "below": "above", None: None}
    for scene in scenes:
        first, last = scene.objects[:1], scene.objects[-1:]
        assert relation(first, last) == opposite[relation(last, first)]
