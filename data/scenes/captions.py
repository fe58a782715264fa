"""Captions of scenes: counts, sizes, textures, colours, kinds and how things lie to each other.

A noun phrase ("two small red balls") names all things of the image that fit its words, and its
count is theirs, so every caption is true by construction. Each word carries the things that it is
about; this is the ground truth for studies of attention. Clutter is never spoken of.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np

from a2cap.data.scenes.grammar import (
    BETWEEN,
    BETWEEN_ALIKE,
    INSIDE,
    LARGER,
    LARGEST,
    LARGEST_OF,
    NUMBERS,
    ONE,
    PARTS,
    RELATIONS,
    SIZE_WORDS,
    SMALLER,
    SMALLEST,
    SMALLEST_OF,
    TEXTURE_WORDS,
    THREE,
    TWO,
)
from a2cap.data.scenes.objects import PLURALS, Thing
from a2cap.data.scenes.relations import is_between, is_inside, is_larger, outstanding, relation

CAPTIONS_PER_SCENE = 5


class Word(NamedTuple):
    """One word of a caption and the indices of the things that it is about, none for "the"."""

    text: str
    things: tuple[int, ...]


Caption = tuple[Word, ...]


@dataclass(frozen=True)
class _Group:
    """All things of one kind, or of one kind and colour: what a noun phrase can name.

    members: their indices. colour: None where the phrase leaves it out. size, texture: None
    where the members differ.
    """

    members: tuple[int, ...]
    kind: str
    colour: str | None
    size: str | None
    texture: str | None

    def of(self, things: Sequence[Thing]) -> list[Thing]:
        """The members themselves."""
        return [things[i] for i in self.members]


@dataclass(frozen=True)
class _Sentence:
    """A pattern and the groups for its slots."""

    pattern: str
    groups: tuple[_Group, ...]


def captions_of(things: Sequence[Thing], rng: np.random.Generator) -> tuple[Caption, ...]:
    """Five captions of different patterns, each of 3 to 20 words."""
    return tuple(_spoken(sentence, rng) for sentence in _sentences(things, rng))


def _sentences(things: Sequence[Thing], rng: np.random.Generator) -> list[_Sentence]:
    """One of each sort that there is, then plain enumerations; no pattern twice, in any order."""
    groups, kinds = _groups_by_colour(things), _groups_by_kind(things)
    beside = _relative(things, groups)
    sorts = (
        _enclosing(things, groups),
        beside,
        beside if rng.random() < 0.5 else [],
        [*_comparing(things, groups), *_parting(things, groups, kinds)],
        [_Sentence(p, (kind,)) for kind in kinds for p in ONE]
        + [_Sentence(p, tuple(groups[:3])) for p in THREE if len(groups) >= 3],
    )
    chosen: list[_Sentence] = []
    for sort in sorts:
        chosen += _some(1, sort, chosen, rng)
    plain = ONE if len(groups) == 1 else TWO
    sentences = [_Sentence(pattern, tuple(groups[:2])) for pattern in plain]
    chosen += _some(CAPTIONS_PER_SCENE - len(chosen), sentences, chosen, rng)
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _some(
    count: int,
    sentences: Sequence[_Sentence],
    before: Sequence[_Sentence],
    rng: np.random.Generator,
) -> list[_Sentence]:
    """So many random ones whose patterns are not those of the ones before."""
    used = {sentence.pattern for sentence in before}
    new = [sentence for sentence in sentences if sentence.pattern not in used]
    found: dict[str, _Sentence] = {}
    for i in rng.permutation(len(new)):
        found.setdefault(new[i].pattern, new[i])
    return list(found.values())[:count]


def _each(patterns: Iterable[str], *groups: _Group) -> list[_Sentence]:
    return [_Sentence(pattern, groups) for pattern in patterns]


def _enclosing(things: Sequence[Thing], groups: Sequence[_Group]) -> list[_Sentence]:
    """Every inside and between that is true of groups by colour."""
    sentences = []
    for a, b in permutations(groups, 2):
        first, second = a.of(things), b.of(things)
        if is_inside(first, second):
            sentences += _each(INSIDE, a, b)
        if len(second) == 2 and is_between(first, second[:1], second[1:]):
            sentences += _each(BETWEEN_ALIKE, a, b)
    for b, c in combinations(groups, 2):
        for a in groups:
            if a not in (b, c) and is_between(a.of(things), b.of(things), c.of(things)):
                sentences += _each(BETWEEN, a, b, c)
    return sentences


def _relative(things: Sequence[Thing], groups: Sequence[_Group]) -> list[_Sentence]:
    """Every true left, right, above and below between two groups by colour."""
    sentences = []
    for a, b in permutations(groups, 2):
        name = relation(a.of(things), b.of(things))
        if name is not None:
            sentences += _each(RELATIONS[name], a, b)
    return sentences


def _comparing(things: Sequence[Thing], groups: Sequence[_Group]) -> list[_Sentence]:
    """Which is the largest of all or the smallest, and which are larger than which."""
    sentences = []
    largest, smallest = outstanding(things)
    for group in groups:
        sentences += _each(LARGEST if group.members == (largest,) else (), group)
        sentences += _each(SMALLEST if group.members == (smallest,) else (), group)
    for a, b in permutations(groups, 2):
        if is_larger(a.of(things), b.of(things)):
            sentences += [*_each(LARGER, a, b), *_each(SMALLER, b, a)]
    return sentences


def _parting(
    things: Sequence[Thing], groups: Sequence[_Group], kinds: Sequence[_Group]
) -> list[_Sentence]:
    """How many of a kind have a colour, and what colour its largest and smallest have."""
    sentences = []
    for kind in kinds:
        parts = [group for group in groups if group.kind == kind.kind]
        for part in parts if len(parts) > 1 else ():
            sentences += _each(PARTS, kind, part)
        largest, smallest = outstanding(kind.of(things))
        for place, patterns in ((largest, LARGEST_OF), (smallest, SMALLEST_OF)):
            if place is not None:
                one = kind.members[place]
                sentences += _each(patterns, kind, _of_members(things, (one,), coloured=True))
    return sentences


def _groups_by_colour(things: Sequence[Thing]) -> list[_Group]:
    """One group per kind and colour, those that cover the most first."""
    looks = dict.fromkeys((thing.kind, thing.colour) for thing in things)
    groups = [_group(things, kind, colour) for kind, colour in looks]
    return sorted(groups, key=lambda group: -sum(thing.area for thing in group.of(things)))


def _groups_by_kind(things: Sequence[Thing]) -> list[_Group]:
    """One group without colour per kind that occurs more than once."""
    kinds = dict.fromkeys(thing.kind for thing in things)
    groups = [_group(things, kind, None) for kind in kinds]
    return [group for group in groups if len(group.members) > 1]


def _group(things: Sequence[Thing], kind: str, colour: str | None) -> _Group:
    members = tuple(
        i for i, t in enumerate(things) if t.kind == kind and colour in (None, t.colour)
    )
    return _of_members(things, members, coloured=colour is not None)


def _of_members(things: Sequence[Thing], members: tuple[int, ...], *, coloured: bool) -> _Group:
    sizes = {things[i].size for i in members}
    textures = {things[i].texture for i in members}
    return _Group(
        members=members,
        kind=things[members[0]].kind,
        colour=things[members[0]].colour if coloured else None,
        size=sizes.pop() if len(sizes) == 1 else None,
        texture=textures.pop() if len(textures) == 1 else None,
    )


def _spoken(sentence: _Sentence, rng: np.random.Generator) -> Caption:
    """The sentence's words, slots filled in."""
    # Three phrases with every adjective would be longer than 20 words.
    most_adjectives = 2 if len(sentence.groups) == 3 else 3
    named = dict(zip("abc", sentence.groups, strict=False))
    words: list[Word] = []
    for slot in sentence.pattern.split():
        if slot.startswith("{") and "|" not in slot:
            name, _, part = slot.strip("{}").partition(".")
            words += _filled(named[name], part, rng, most_adjectives=most_adjectives)
        else:
            words.append(_word(slot, named))
    return tuple(words)


def _word(slot: str, named: dict[str, _Group]) -> Word:
    """A word of the pattern itself, or a verb that agrees with its group."""
    if slot.startswith("{"):
        name, _, forms = slot.strip("{}").rpartition(":")
        one, many = forms.split("|")
        return Word(one if len(named[name or "a"].members) == 1 else many, ())
    if slot.startswith("*"):
        return Word(slot[1:], tuple(i for group in named.values() for i in group.members))
    if slot.startswith("^"):
        return Word(slot[1:], named["b"].members)
    return Word(slot, ())


def _filled(
    group: _Group, part: str, rng: np.random.Generator, *, most_adjectives: int
) -> list[Word]:
    """What a slot says of a group: its count, its colour, both count and noun, or all."""
    if part == "count":
        return [Word(NUMBERS[len(group.members)], group.members)]
    if part == "colour":
        return [Word(str(group.colour), group.members)]
    if part == "counted":
        return _counted(group)
    return _noun_phrase(group, rng, most_adjectives=most_adjectives)


def _counted(group: _Group) -> list[Word]:
    return [Word(NUMBERS[len(group.members)], group.members), _noun(group)]


def _noun(group: _Group) -> Word:
    return Word(group.kind if len(group.members) == 1 else PLURALS[group.kind], group.members)


def _noun_phrase(group: _Group, rng: np.random.Generator, *, most_adjectives: int) -> list[Word]:
    adjectives = _adjectives(group, rng)[-most_adjectives:]
    content = [*(Word(text, group.members) for text in adjectives), _noun(group)]
    lots = rng.random()
    match len(group.members):
        case 1 if lots < 0.06:
            return [Word("a", ()), Word("single", group.members), *content]
        case 1:
            return [Word("an" if content[0].text[0] in "aeiou" else "a", ()), *content]
        case 2 if lots < 0.12:
            return [Word("a", ()), Word("pair", group.members), Word("of", ()), *content]
        case count:
            return [Word(NUMBERS[count], group.members), *content]


def _adjectives(group: _Group, rng: np.random.Generator) -> list[str]:
    """Size, texture, colour, as far as they hold for all members and are worth saying."""
    words = []
    if group.size is not None and rng.random() < (0.12 if group.size == "medium" else 0.5):
        words.append(_said(SIZE_WORDS[group.size], rng))
    if group.texture is not None and rng.random() < (0.08 if group.texture == "plain" else 0.4):
        words.append(_said(TEXTURE_WORDS[group.texture], rng))
    if group.colour is not None:
        words.append(group.colour)
    return words


def _said(forms: Sequence[str], rng: np.random.Generator) -> str:
    return forms[int(rng.integers(len(forms)))]
