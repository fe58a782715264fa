"""The grammar of scene captions: counts, sizes, textures, colours, kinds and spatial relations.

A noun phrase ("two small red balls") names all things of the picture that fit its words, and its
count is theirs, so every caption is true by construction. Each word carries the things that it is
about; this is the ground truth for studies of attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from a2.data.scene_things import PLURALS, Thing

CAPTIONS_PER_SCENE = 5

NUMBERS = ("no", "a", "two", "three", "four", "five")

SIZE_WORDS = {"small": ("small", "little"), "large": ("large", "big")}
"""Size to its words; a medium thing's size goes without saying."""

# {a}, {b}, {c} are noun phrases, {be} agrees with {a}, and a word with * is about both things.
ONE = (
    "there {be} {a}",
    "{a} {be} in the picture",
    "a picture of {a}",
    "the picture shows {a}",
    "we can see {a}",
)
TWO = (
    "{a} and {b}",
    "there {be} {a} and {b}",
    "{a} together with {b}",
    "a picture of {a} and {b}",
    "the picture shows {a} and {b}",
)
THREE = (
    "{a} with {b} and {c}",
    "there {be} {a} and {b} and {c}",
)
RELATIONS = {
    "left": (
        "{a} {be} to the *left of {b}",
        "{a} *left of {b}",
        "{a} {be} on the *left side of {b}",
        "to the *left of {b} there {be} {a}",
    ),
    "right": (
        "{a} {be} to the *right of {b}",
        "{a} *right of {b}",
        "{a} {be} on the *right side of {b}",
        "to the *right of {b} there {be} {a}",
    ),
    "above": (
        "{a} {be} *above {b}",
        "{a} *above {b}",
        "{a} {be} *higher than {b}",
        "*above {b} there {be} {a}",
    ),
    "below": (
        "{a} {be} *below {b}",
        "{a} *under {b}",
        "{a} {be} *lower than {b}",
        "*below {b} there {be} {a}",
    ),
}

_LEAN = 0.7
"""Greatest offset across a relation's axis, as a share of the distance along it (35 degrees)."""


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


@dataclass(frozen=True)
class _Sentence:
    """A template and the groups for its slots."""

    template: str
    groups: tuple[_Group, ...]


def captions_of(things: Sequence[Thing], rng: np.random.Generator) -> tuple[Caption, ...]:
    """Five different captions, each of 4 to 16 words."""
    return tuple(_spoken(sentence, rng) for sentence in _sentences(things, rng))


def relation(a: Sequence[Thing], b: Sequence[Thing]) -> str | None:
    """Where the things `a` lie as seen from `b`: left, right, above, below, or None.

    All of one side's boxes lie beyond all of the other's, and more along that axis than across it.
    """
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = _around(a), _around(b)
    dx, dy = (ax1 + ax2 - bx1 - bx2) / 2, (ay1 + ay2 - by1 - by2) / 2
    if abs(dy) < _LEAN * abs(dx) and (ax2 < bx1 or bx2 < ax1):
        return "left" if dx < 0 else "right"
    if abs(dx) < _LEAN * abs(dy) and (ay2 < by1 or by2 < ay1):
        return "above" if dy < 0 else "below"
    return None


def _around(things: Sequence[Thing]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = zip(*(thing.box for thing in things), strict=True)
    return min(x1), min(y1), max(x2), max(y2)


def _sentences(things: Sequence[Thing], rng: np.random.Generator) -> list[_Sentence]:
    """Five different sentences: up to two relations, one count, one of three groups; then pairs."""
    groups = _groups_by_colour(things)
    chosen = [
        *_some(2, _relation_sentences(things, groups), rng),
        *_some(1, [_Sentence(t, (g,)) for g in _groups_by_kind(things) for t in ONE], rng),
    ]
    if len(groups) >= 3:
        chosen += _some(1, [_Sentence(template, tuple(groups[:3])) for template in THREE], rng)
    templates = ONE if len(groups) == 1 else TWO
    plain = [_Sentence(template, tuple(groups[:2])) for template in templates]
    chosen += _some(CAPTIONS_PER_SCENE - len(chosen), plain, rng)
    return _some(len(chosen), chosen, rng)


def _some(count: int, sentences: Sequence[_Sentence], rng: np.random.Generator) -> list[_Sentence]:
    order = rng.permutation(len(sentences))[:count]
    return [sentences[i] for i in order]


def _relation_sentences(things: Sequence[Thing], groups: Sequence[_Group]) -> list[_Sentence]:
    """Every true relation between two groups."""
    sentences = []
    for a, b in permutations(groups, 2):
        name = relation([things[i] for i in a.members], [things[i] for i in b.members])
        if name is not None:
            sentences += [_Sentence(template, (a, b)) for template in RELATIONS[name]]
    return sentences


def _groups_by_colour(things: Sequence[Thing]) -> list[_Group]:
    """One group per kind and colour, those that cover the most first."""
    looks = dict.fromkeys((thing.kind, thing.colour) for thing in things)
    groups = [_group(things, kind, colour) for kind, colour in looks]
    return sorted(groups, key=lambda group: -sum(things[i].area for i in group.members))


def _groups_by_kind(things: Sequence[Thing]) -> list[_Group]:
    """One group without colour per kind that occurs more than once."""
    kinds = dict.fromkeys(thing.kind for thing in things)
    groups = [_group(things, kind, None) for kind in kinds]
    return [group for group in groups if len(group.members) > 1]


def _group(things: Sequence[Thing], kind: str, colour: str | None) -> _Group:
    members = tuple(
        i for i, t in enumerate(things) if t.kind == kind and colour in (None, t.colour)
    )
    sizes = {things[i].size for i in members}
    textures = {things[i].texture for i in members}
    return _Group(
        members=members,
        kind=kind,
        colour=colour,
        size=sizes.pop() if len(sizes) == 1 else None,
        texture=textures.pop() if len(textures) == 1 else None,
    )


def _spoken(sentence: _Sentence, rng: np.random.Generator) -> Caption:
    """The sentence's words, noun phrases filled in."""
    names = dict(zip(("{a}", "{b}", "{c}"), sentence.groups, strict=False))
    about_all = tuple(i for group in sentence.groups for i in group.members)
    # Three phrases with every adjective would be longer than 16 words.
    most_adjectives = 2 if len(sentence.groups) == 3 else 3
    words: list[Word] = []
    for slot in sentence.template.split():
        if slot in names:
            words += _noun_phrase(names[slot], rng, most_adjectives=most_adjectives)
        elif slot == "{be}":
            words.append(Word("is" if len(sentence.groups[0].members) == 1 else "are", ()))
        elif slot.startswith("*"):
            words.append(Word(slot[1:], about_all))
        else:
            words.append(Word(slot, ()))
    return tuple(words)


def _noun_phrase(group: _Group, rng: np.random.Generator, *, most_adjectives: int) -> list[Word]:
    adjectives = _adjectives(group, rng)[-most_adjectives:]
    count = len(group.members)
    noun = group.kind if count == 1 else PLURALS[group.kind]
    content = [Word(text, group.members) for text in (*adjectives, noun)]
    if count > 1:
        return [Word(NUMBERS[count], group.members), *content]
    return [Word("an" if content[0].text[0] in "aeiou" else "a", ()), *content]


def _adjectives(group: _Group, rng: np.random.Generator) -> list[str]:
    """Size, texture, colour, as far as they hold for all members and are worth saying."""
    words = []
    if group.size in SIZE_WORDS and rng.random() < 0.5:
        words.append(str(rng.choice(SIZE_WORDS[group.size])))
    if group.texture not in (None, "plain") and rng.random() < 0.4:
        words.append(str(group.texture))
    if group.colour is not None:
        words.append(group.colour)
    return words
