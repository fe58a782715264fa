"""Captions of generated scenes, true by construction, with the objects of each word.

A noun phrase ("two small red balls") refers to all objects of the image that fit its words, and its
count is theirs. The objects of each word are the ground truth for studies of attention. Captions
never mention clutter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Literal, NamedTuple

import numpy as np

from a2cap.data.scenes import sentence_patterns as grammar
from a2cap.data.scenes.layout import choose
from a2cap.data.scenes.objects import PLURALS, SceneObject
from a2cap.data.scenes.relations import extremes, is_between, is_inside, is_larger, relation

CAPTIONS_PER_SCENE = 5


class SceneWord(NamedTuple):
    """A word of a caption and the indices of the objects that it refers to, none for "the"."""

    text: str
    objects: tuple[int, ...]


SceneCaption = tuple[SceneWord, ...]


@dataclass(frozen=True)
class _Group:
    """All objects of a category, or of a category and colour, to which a noun phrase can refer.

    members: their indices in the image. colour: None if the group is not restricted to one.
    """

    members: tuple[int, ...]
    objects: tuple[SceneObject, ...]
    colour: str | None

    @property
    def category(self) -> str:
        return self.objects[0].category

    def common(self, property_name: Literal["size", "texture"]) -> str | None:
        """Return the size or texture of all members, None if they differ."""
        words = {getattr(obj, property_name) for obj in self.objects}
        return words.pop() if len(words) == 1 else None


class _Sentence(NamedTuple):
    """A pattern and the groups in its slots."""

    pattern: str
    groups: tuple[_Group, ...]


def generate_captions(
    objects: Sequence[SceneObject], rng: np.random.Generator
) -> tuple[SceneCaption, ...]:
    """Generate five captions with different patterns, each of 3 to 20 words."""
    return tuple(_fill_pattern(sentence, rng) for sentence in _sentences(objects, rng))


def _sentences(objects: Sequence[SceneObject], rng: np.random.Generator) -> list[_Sentence]:
    """Sample a sentence of each type, then plain enumerations; return them in random order."""
    groups, categories = _groups_by_colour(objects), _groups_by_category(objects)
    beside = list(_relation_sentences(groups))
    sorts = (
        _enclosure_sentences(groups),
        beside,
        beside if rng.random() < 0.5 else [],  # half of the images have a second relation
        [*_comparison_sentences(objects, groups), *_part_sentences(groups, categories)],
        [sentence for category in categories for sentence in _with_patterns(grammar.ONE, category)]
        + _with_patterns(grammar.THREE if len(groups) >= 3 else (), *groups[:3]),
    )
    sentences: list[_Sentence] = []  # an empty type is replaced by plain enumerations below
    for sort in sorts:
        sentences += _sample(1, sort, sentences, rng)
    plain = _with_patterns(grammar.ONE if len(groups) == 1 else grammar.TWO, *groups[:2])
    sentences += _sample(CAPTIONS_PER_SCENE - len(sentences), plain, sentences, rng)
    return [sentences[i] for i in rng.permutation(len(sentences))]


def _sample(
    count: int,
    sentences: Iterable[_Sentence],
    before: Sequence[_Sentence],
    rng: np.random.Generator,
) -> list[_Sentence]:
    """Sample up to `count` sentences whose patterns are not in `before`."""
    used = {sentence.pattern for sentence in before}
    new = [sentence for sentence in sentences if sentence.pattern not in used]
    sampled: dict[str, _Sentence] = {}
    for i in rng.permutation(len(new)):  # the first of each pattern, so none is used twice
        sampled.setdefault(new[i].pattern, new[i])
    return list(sampled.values())[:count]


def _with_patterns(patterns: Iterable[str], *groups: _Group) -> list[_Sentence]:
    return [_Sentence(pattern, groups) for pattern in patterns]


def _enclosure_sentences(groups: Sequence[_Group]) -> Iterator[_Sentence]:
    """Yield every true "inside" and "between" of groups by colour."""
    for a, b in permutations(groups, 2):
        if is_inside(a.objects, b.objects):
            yield from _with_patterns(grammar.INSIDE, a, b)
        if len(b.members) == 2 and is_between(a.objects, b.objects[:1], b.objects[1:]):
            yield from _with_patterns(grammar.BETWEEN_ALIKE, a, b)
    for b, c in combinations(groups, 2):
        for a in groups:
            if a not in (b, c) and is_between(a.objects, b.objects, c.objects):
                yield from _with_patterns(grammar.BETWEEN, a, b, c)


def _relation_sentences(groups: Sequence[_Group]) -> Iterator[_Sentence]:
    """Yield every true left, right, above and below of two groups by colour."""
    for a, b in permutations(groups, 2):
        name = relation(a.objects, b.objects)
        if name is not None:
            yield from _with_patterns(grammar.RELATIONS[name], a, b)


def _comparison_sentences(
    objects: Sequence[SceneObject], groups: Sequence[_Group]
) -> Iterator[_Sentence]:
    """Yield the true superlatives of all objects and comparisons of two groups."""
    largest, smallest = extremes(objects)
    for group in groups:
        yield from _with_patterns(grammar.LARGEST if group.members == (largest,) else (), group)
        yield from _with_patterns(grammar.SMALLEST if group.members == (smallest,) else (), group)
    for a, b in permutations(groups, 2):
        if is_larger(a.objects, b.objects):
            yield from _with_patterns(grammar.LARGER, a, b)
            yield from _with_patterns(grammar.SMALLER, b, a)


def _part_sentences(groups: Sequence[_Group], categories: Sequence[_Group]) -> Iterator[_Sentence]:
    """Yield the numbers of a category by colour, and the colours of its largest and smallest."""
    for whole in categories:
        parts = [group for group in groups if group.category == whole.category]
        for part in parts if len(parts) > 1 else ():
            yield from _with_patterns(grammar.PARTS, whole, part)
        for position, patterns in zip(
            extremes(whole.objects), (grammar.LARGEST_OF, grammar.SMALLEST_OF), strict=True
        ):
            if position is not None:
                extreme = whole.objects[position]
                group = _Group((whole.members[position],), (extreme,), extreme.colour)
                yield from _with_patterns(patterns, whole, group)


def _groups_by_colour(objects: Sequence[SceneObject]) -> list[_Group]:
    """Return a group per category and colour, sorted by total area, the largest first."""
    styles = dict.fromkeys((obj.category, obj.colour) for obj in objects)
    groups = [_group(objects, category, colour) for category, colour in styles]
    return sorted(groups, key=lambda group: -sum(obj.area for obj in group.objects))


def _groups_by_category(objects: Sequence[SceneObject]) -> list[_Group]:
    """Return a group without colour per category that occurs more than once."""
    categories = dict.fromkeys(obj.category for obj in objects)
    groups = [_group(objects, category, None) for category in categories]
    return [group for group in groups if len(group.members) > 1]


def _group(objects: Sequence[SceneObject], category: str, colour: str | None) -> _Group:
    members = tuple(
        i for i, t in enumerate(objects) if t.category == category and colour in (None, t.colour)
    )
    return _Group(members, tuple(objects[i] for i in members), colour)


def _fill_pattern(sentence: _Sentence, rng: np.random.Generator) -> SceneCaption:
    """Return the words of a sentence."""
    # Three phrases with all adjectives would exceed 20 words.
    max_adjectives = 2 if len(sentence.groups) == 3 else 3
    groups = dict(zip("abc", sentence.groups, strict=False))
    words: list[SceneWord] = []
    for slot in sentence.pattern.split():
        if slot.startswith("{") and "|" not in slot:
            name, _, part = slot.strip("{}").partition(".")
            words += _fill_slot(groups[name], part, rng, max_adjectives=max_adjectives)
        else:
            words.append(_word(slot, groups))
    return tuple(words)


def _word(slot: str, groups: dict[str, _Group]) -> SceneWord:
    """Return a literal word of the pattern, or a verb that agrees with its group."""
    if slot.startswith("{"):
        name, _, forms = slot.strip("{}").rpartition(":")
        singular, plural = forms.split("|")
        return SceneWord(singular if len(groups[name or "a"].members) == 1 else plural, ())
    if slot.startswith("*"):
        return SceneWord(slot[1:], tuple(i for group in groups.values() for i in group.members))
    if slot.startswith("^"):
        return SceneWord(slot[1:], groups["b"].members)
    return SceneWord(slot, ())


def _fill_slot(
    group: _Group, part: str, rng: np.random.Generator, *, max_adjectives: int
) -> list[SceneWord]:
    """Return the count of a group, its colour, its count and noun, or its noun phrase."""
    if not part:
        return _noun_phrase(group, rng, max_adjectives=max_adjectives)
    if part == "colour":
        return [SceneWord(str(group.colour), group.members)]
    count = SceneWord(grammar.NUMBERS[len(group.members)], group.members)
    return [count] if part == "count" else [count, _noun(group)]


def _noun(group: _Group) -> SceneWord:
    noun = group.category if len(group.members) == 1 else PLURALS[group.category]
    return SceneWord(noun, group.members)


def _noun_phrase(
    group: _Group, rng: np.random.Generator, *, max_adjectives: int
) -> list[SceneWord]:
    # the colour is last and always kept: without it the phrase would fit other objects
    adjectives = _adjectives(group, rng)[-max_adjectives:]
    content = [*(SceneWord(text, group.members) for text in adjectives), _noun(group)]
    chance = rng.random()
    match len(group.members):
        case 1 if chance < 0.06:
            return [SceneWord("a", ()), SceneWord("single", group.members), *content]
        case 1:
            return [SceneWord("an" if content[0].text[0] in "aeiou" else "a", ()), *content]
        case 2 if chance < 0.12:
            pair = SceneWord("pair", group.members)
            return [SceneWord("a", ()), pair, SceneWord("of", ()), *content]
        case count:
            return [SceneWord(grammar.NUMBERS[count], group.members), *content]


def _adjectives(group: _Group, rng: np.random.Generator) -> list[str]:
    """Sample size and texture if all members share them, and add the colour."""
    # medium and plain are rare, as people omit them
    words = []
    size, texture = group.common("size"), group.common("texture")
    if size is not None and rng.random() < (0.12 if size == "medium" else 0.5):
        words.append(choose(grammar.SIZE_WORDS[size], rng))
    if texture is not None and rng.random() < (0.08 if texture == "plain" else 0.4):
        words.append(choose(grammar.TEXTURE_WORDS[texture], rng))
    if group.colour is not None:
        words.append(group.colour)
    return words
