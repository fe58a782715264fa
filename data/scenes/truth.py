"""Truth of captions of generated scenes: each statement is judged by the objects of the image.

A caption is read by the patterns of `a2cap.data.scenes.sentence_patterns`. Its noun phrases state
category, colour, texture, size and count, its pattern a relation or comparison. Each statement is
judged on its own: "two red balls" of two blue ones has a false colour and a true count.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from a2cap.data.annotations.instances import Sides, category_names, load_instances, read_annotated
from a2cap.data.annotations.json_items import BadItem
from a2cap.data.errors import InputError
from a2cap.data.scenes import sentence_patterns as grammar
from a2cap.data.scenes.objects import CLUTTER, COLOURS, PLURALS, SIZES, TEXTURES, SceneObject
from a2cap.data.scenes.relations import extremes, is_between, is_inside, is_larger, relation

Scenes = Mapping[str, Sequence[SceneObject]]
"""Image id -> its objects, back to front, without clutter."""

Objects = Sequence[SceneObject]


class Statement(NamedTuple):
    """A statement of a caption; `words` are the positions of its words."""

    family: str
    words: tuple[int, ...]
    is_true: bool


@dataclass(frozen=True)
class Judgement:
    """The statements of one caption; `is_sentence` is False if it follows no known pattern."""

    statements: tuple[Statement, ...]
    is_sentence: bool

    @property
    def is_true(self) -> bool:
        """True if the caption is a sentence whose statements are all true."""
        return self.is_sentence and not self.false_words

    @property
    def false_words(self) -> list[int]:
        """Positions of the words of false statements."""
        return sorted({i for s in self.statements if not s.is_true for i in s.words})


def read_scenes(path: Path) -> dict[str, tuple[SceneObject, ...]]:
    """Return the objects of each image in `instances.json` of generated scenes.

    Raises InputError if the boxes have no colour, texture and size.
    """
    document = load_instances(path, required=("categories",))
    names = category_names(document)

    def read_object(item: dict[str, object], sides: Sides) -> SceneObject | None:
        identity, attributes = item.get("category_id"), item.get("attributes")
        category = names.get(identity) if isinstance(identity, int | str) else None
        if category in CLUTTER:
            return None
        match attributes:
            case [str(colour), str(texture), str(size)] if (
                category in PLURALS and colour in COLOURS and texture in TEXTURES and size in SIZES
            ):
                x, y, width, height = sides
                # The corners have two decimals in the scene; their sum here is not exact.
                box = (x, y, round(x + width, 2), round(y + height, 2))
                return SceneObject(str(category), colour, size, texture, box)
        raise BadItem(f"no object of a scene: {category!r}, attributes {attributes!r:.60}")

    entries, bad = read_annotated(path, document, image=lambda _: None, box=read_object)
    if bad:
        raise InputError(
            f"not the objects of generated scenes: {str(path)!r} ({bad[0].reason}); "
            "give instances.json of a2 scenes"
        )
    return {
        identity: tuple(obj for _, obj in sorted(entry.boxes, key=lambda box: box[0]))
        for identity, entry in entries.items()
    }


def judge(words: Sequence[str], objects: Objects) -> Judgement:
    """Judge the statements of a caption, given as lower-case words without punctuation."""
    text = " ".join(words)
    for kind, pattern in _patterns():
        if match := pattern.fullmatch(text):
            return Judgement(tuple(_statements(kind, match, objects)), is_sentence=True)
    phrases = (_judge_phrase(match, 0, objects)[0] for match in re.finditer(_PHRASE, text))
    return Judgement(tuple(s for phrase in phrases for s in phrase), is_sentence=False)


def judge_captions(captions: Mapping[str, str], scenes: Scenes) -> dict[str, Judgement]:
    """Judge one caption per image, given as PTB tokens.

    Raises InputError for an image whose objects are unknown.
    """
    unknown = [image_id for image_id in captions if image_id not in scenes]
    if unknown:
        raise InputError(
            f"truth of {len(unknown):,} captions is unknown: data.scenes has no image "
            f"{unknown[0]!r}; name instances.json of the same scenes"
        )
    return {
        image_id: judge(caption.split(), scenes[image_id]) for image_id, caption in captions.items()
    }


_CATEGORY = {form: category for category, plural in PLURALS.items() for form in (category, plural)}
_SIZE = {word: size for size, words in grammar.SIZE_WORDS.items() for word in words}
_TEXTURE = {word: texture for texture, words in grammar.TEXTURE_WORDS.items() for word in words}
_COUNT = {word: number for number, word in enumerate(grammar.NUMBERS) if number}
_COUNT |= {"a": 1, "an": 1, "single": 1, "pair": 2}


def _any(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(words)})"


_NUMBER, _COLOUR = _any(grammar.NUMBERS[1:]), _any(COLOURS)
_NOUN = _any(_CATEGORY) + r"\b"
_ADJECTIVE = _any([*COLOURS, *_SIZE, *_TEXTURE])
_PHRASE = rf"\b(?:a pair of|a single|an?|{_NUMBER}) (?:{_ADJECTIVE} )*{_NOUN}"

_SLOTS = {"": _PHRASE, "counted": f"{_NUMBER} {_NOUN}", "count": _NUMBER, "colour": _COLOUR}

_KINDS: Mapping[str, Sequence[str]] = {
    "": ("{a}", *grammar.ONE, *grammar.TWO, *grammar.THREE),
    **grammar.RELATIONS,
    "inside": grammar.INSIDE,
    "between": (*grammar.BETWEEN, *grammar.BETWEEN_ALIKE),
    "largest": grammar.LARGEST,
    "smallest": grammar.SMALLEST,
    "largest of": grammar.LARGEST_OF,
    "smallest of": grammar.SMALLEST_OF,
    "larger": grammar.LARGER,
    "smaller": grammar.SMALLER,
    "parts": grammar.PARTS,
}


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Return the kind of each pattern and its expression, whose group `key` is the marked word."""
    return [
        (kind, re.compile(" ".join(map(_expression, pattern.split()))))
        for kind, patterns in _KINDS.items()
        for pattern in patterns
    ]


# Patterns use some of these; "a red ball larger than ..." is none, but as clear as with "bigger".
_SYNONYMS = (
    ("larger", "bigger"),
    ("largest", "biggest"),
    ("inside", "within"),
    ("above", "over"),
    ("below", "under", "beneath", "underneath"),
)


def _expression(slot: str) -> str:
    if slot.startswith(("*", "^")):
        alike = next((words for words in _SYNONYMS if slot[1:] in words), (slot[1:],))
        return f"(?P<key>{_any(alike)})"
    if not slot.startswith("{"):
        return slot
    name, _, part = slot.strip("{}").partition(".")
    if "|" in name:  # either form: agreement is not judged
        return _any(name.rpartition(":")[2].split("|"))
    return f"(?P<{name}{part}>{_SLOTS[part]})"


def _statements(kind: str, match: re.Match[str], objects: Objects) -> Iterator[Statement]:
    """Yield the judged statements of a sentence."""
    referents: dict[str, Objects] = {}
    for name in match.groupdict().keys() & {"a", "acounted", "b", "c"}:
        judged, referents[name[0]] = _judge_phrase(match, name, objects)
        yield from judged
    key = _positions(match, "key") if "key" in match.groupdict() else ()
    if "bcolour" in match.groupdict():
        colours = _positions(match, "bcolour")
        part = [obj for obj in referents["a"] if obj.colour == match["bcolour"]]
        if kind == "parts":
            count = _COUNT[match["bcount"]]
            yield Statement("count", _positions(match, "bcount"), len(part) == count)
        else:
            extreme = _extreme(kind.removesuffix(" of"), referents["a"])
            yield Statement("comparison", key, bool(extreme))
            part = [obj for obj in part if obj in extreme]
        yield Statement("colour", colours, bool(part))
    elif kind:
        family = (
            "comparison" if kind in ("largest", "smallest", "larger", "smaller") else "relation"
        )
        holds = all(referents.values()) and _holds(kind, objects, **referents)
        yield Statement(family, key, holds)


def _holds(kind: str, objects: Objects, a: Objects, b: Objects = (), c: Objects = ()) -> bool:
    """Judge the relation or comparison of the objects in a sentence's slots."""
    match kind:
        case "inside":
            return is_inside(a, b)
        case "between":
            b, c = (b, c) if c else (b[:1], b[1:])
            return len(c) > 0 and is_between(a, b, c)
        case "larger" | "smaller":
            return is_larger(*((a, b) if kind == "larger" else (b, a)))
        case "largest" | "smallest":
            return list(a) == _extreme(kind, objects)
    return relation(a, b) == kind


def _extreme(kind: str, objects: Objects) -> list[SceneObject]:
    """Return the clearly largest or smallest object, none without one."""
    position = extremes(objects)[kind == "smallest"]
    return [] if position is None else [objects[position]]


_MEANINGS = {"category": _CATEGORY, "colour": {colour: colour for colour in COLOURS}}
_MEANINGS |= {"texture": _TEXTURE, "size": _SIZE}


def _judge_phrase(
    match: re.Match[str], group: str | int, objects: Objects
) -> tuple[list[Statement], Objects]:
    """Return the statements of a noun phrase, and the objects that it refers to.

    A false adjective does not narrow the objects, so that what else it states of them is judged.
    """
    words = dict(zip(_positions(match, group), match[group].split(), strict=True))
    judged, meant = [], list(objects)
    for family, meanings in _MEANINGS.items():
        for position in (position for position, word in words.items() if word in meanings):
            fitting = [obj for obj in meant if getattr(obj, family) == meanings[words[position]]]
            judged.append(Statement(family, (position,), bool(fitting)))
            if fitting or family == "category":
                meant = fitting
    # the last: "a" before "pair" and "single" is no count
    position = [position for position, word in words.items() if word in _COUNT][-1]
    count = _COUNT[words[position]]
    return [*judged, Statement("count", (position,), len(meant) == count)], meant


def _positions(match: re.Match[str], group: str | int) -> tuple[int, ...]:
    """Return the positions of a group's words in the caption."""
    first = match.string.count(" ", 0, match.start(group))
    return tuple(range(first, first + match[group].count(" ") + 1))
