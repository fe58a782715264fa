"""Captions of scenes: each word refers to its objects; test_truth.py judges the statements."""

import re

import numpy as np
import pytest

from a2cap.data.scenes.captions import CAPTIONS_PER_SCENE, SceneCaption, generate_captions
from a2cap.data.scenes.objects import (
    CLUTTER,
    COLOURS,
    MUTED,
    OBJECT_CATEGORIES,
    PLURALS,
    SceneObject,
)
from a2cap.data.scenes.scene import Scene, make_scene
from a2cap.data.scenes.sentence_patterns import NUMBERS, SIZE_WORDS, TEXTURE_WORDS, WORD_GROUPS

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
    *("left", "right", "above", "over", "higher", "below", "beneath", "underneath", "under"),
    "lower",
}
NOUN_PHRASE = re.compile(
    rf"\b({'|'.join(COUNTS)}) ((?:(?:{'|'.join([*SIZES, *TEXTURES, *COLOURS])}) )*)"
    rf"({'|'.join(SINGULAR)})\b"
)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(index, seed=7, side=160) for index in range(600)]


def text(caption: SceneCaption) -> str:
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


def phrases(caption: SceneCaption, scene: Scene) -> list[set[int]]:
    """Return the objects of each noun phrase in the order of the caption."""
    return [named(phrase, scene.objects) for phrase in NOUN_PHRASE.finditer(text(caption))]


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
    texts = {text(caption) for rng in seeds for caption in generate_captions(objects, rng)}
    assert "there are two red boxes" in texts
    assert not any(re.search(r"there is two|boxes (is|appears)", caption) for caption in texts)


def test_captions_are_the_same_at_any_scale():
    objects = make_scene(3, seed=0, side=100).objects
    smaller, larger = (
        generate_captions([obj.scaled(factor) for obj in objects], np.random.default_rng(1))
        for factor in (1, 5)
    )
    assert smaller == larger
