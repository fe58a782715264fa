"""Pairs of a word and the nouns that it describes: (red, ball), (left, red ball, cup).

Nouns are the words of group `kinds`; a regular plural equals its singular. The colours of a noun
(group `colours`) are part of it, except in pairs of group `colours`: two red balls are not two
balls, and the red ball is not the blue one. Rules:

- A word of a group other than `relations` describes the next noun if only such words and "of" are
  between them ("two small red balls", "a pair of balls"), else the previous noun if only forms of
  "be", "and" and such words are ("the balls are small and red").
- A relation joins the previous and the next noun ("a ball left of a cup"). Without a previous noun,
  its subject is the second next one ("left of a cup there is a ball"); without a next noun, the
  previous one ("a cup with a ball to the left"). "between" joins three.
- A superlative describes one noun ("the largest of all is a ball"), but none in "of the balls".
- Synonyms are equal ("tiny", "small"), and so are "a left of b" and "b right of a". Two objects of
  the same name cannot be distinguished and form no pair.

The rules are made for the captions of scenes and apply to captions and references: a pair that
they miss in free text is missing on both sides.
"""

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from a2cap.data.annotations.word_groups import WordGroups

NOUNS, COLOURS, RELATIONS = "kinds", "colours", "relations"
"""Groups with rules of their own."""

_BE = frozenset({"is", "are", "was", "were"})

_SYNONYMS = {
    "an": "a",
    "over": "above",
    "higher": "above",
    "under": "below",
    "beneath": "below",
    "underneath": "below",
    "lower": "below",
    "within": "inside",
    "bigger": "larger",
    "biggest": "largest",
    "little": "small",
    "tiny": "small",
    "big": "large",
    "huge": "large",
    "stripy": "striped",
    "spotted": "dotted",
    "single": "one",
    "pair": "two",
}

_MIRRORED = {"right": "left", "below": "above", "around": "inside", "smaller": "larger"}
"""Relation -> its inverse, with the nouns swapped."""

_POSITIONS = frozenset({"left", "above"})
"""Relations that exclude each other and share the topic "place"; any other is its own topic."""

_SUPERLATIVES = frozenset({"largest", "smallest", "highest", "lowest", "leftmost", "rightmost"})

_BETWEEN = "between"


class Pair(NamedTuple):
    """A word of a group with its nouns.

    topic: pairs of one group and topic agree or contradict each other, provided that an image has
    no two objects of that name.
    """

    word: str
    nouns: tuple[str, ...]
    topic: tuple[str, ...]


class PairReader:
    """Parser of pairs in sentences of tokens."""

    def __init__(self, groups: WordGroups) -> None:
        self.groups = groups
        self._group = {word: group for group, words in groups.items() for word in words}
        self._noun = _singulars(groups.get(NOUNS, frozenset()))

    def read(self, words: Sequence[str]) -> dict[str, Counter[Pair]]:
        """Return group -> pairs in the sentence, with their number of occurrences."""
        found: dict[str, Counter[Pair]] = {group: Counter() for group in self._group.values()}
        for position, word in enumerate(words):
            group = self._group.get(word, NOUNS)
            if group == NOUNS:
                continue
            parse = self._relation if group == RELATIONS else self._description
            pair = parse(words, position)
            if pair is not None:
                found[group][pair] += 1
        return found

    def _description(self, words: Sequence[str], position: int) -> Pair | None:
        noun_position = self._next_noun(words, position)
        if noun_position is None:
            noun_position = self._subject(words, position)
        if noun_position is None:
            return None
        if self._group[words[position]] == COLOURS:
            noun = self._noun[words[noun_position]]
        else:
            noun = self._coloured_noun(words, noun_position)
        return Pair(_canonical(words[position]), (noun,), (noun,))

    def _next_noun(self, words: Sequence[str], position: int) -> int | None:
        """Return the position of the noun in "red ball", for "red"."""
        for after in range(position + 1, len(words)):
            if words[after] != "of" and not self._describes(words[after]):
                return after if words[after] in self._noun else None
        return None

    def _subject(self, words: Sequence[str], position: int) -> int | None:
        """Return the position of the noun in "the ball is red", for "red"."""
        has_verb = False
        for before in reversed(range(position)):
            if words[before] in _BE:
                has_verb = True
            elif words[before] != "and" and not self._describes(words[before]):
                return before if has_verb and words[before] in self._noun else None
        return None

    def _coloured_noun(self, words: Sequence[str], position: int) -> str:
        """Return the noun at a position, preceded by its colours."""
        # Sorted below: "red blue ball" and "blue red ball" are the same.
        colours = []
        for word in reversed(words[:position]):
            if not self._describes(word):
                break
            colours += [word] * (self._group[word] == COLOURS)
        return " ".join([*sorted(colours), self._noun[words[position]]])

    def _describes(self, word: str) -> bool:
        return self._group.get(word, NOUNS) not in (NOUNS, RELATIONS)

    def _relation(self, words: Sequence[str], position: int) -> Pair | None:
        word = _canonical(words[position])
        nouns = [index for index, found in enumerate(words) if found in self._noun]
        before = [self._coloured_noun(words, index) for index in nouns if index < position]
        after = [self._coloured_noun(words, index) for index in nouns if index > position]
        # A superlative has one noun, a relation at least two.
        if word not in _SUPERLATIVES:
            return _related(word, before, after)
        nearest = [*after[:1], *before[-1:]]
        if not nearest or tuple(words[position + 1 : position + 3]) == ("of", "the"):
            return None
        return Pair(word, (nearest[0],), (word,))


def _related(word: str, before: Sequence[str], after: Sequence[str]) -> Pair | None:
    """Return the pair of a relation and the nouns on both sides of it, None without such nouns."""
    joined = 2 if word == _BETWEEN else 1
    if len(before) + len(after) < 2:
        return None
    if before and after:
        subject, others = before[-1], after[:joined]
    elif before:
        subject, others = before[-1], before[:-1][-joined:]
    else:
        joined = min(joined, len(after) - 1)
        subject, others = after[joined], after[:joined]
    # A red ball left of a red ball: names cannot tell which is which.
    if subject in others:
        return None
    nouns = (subject, *sorted(set(others)))
    if word in _MIRRORED:
        word, nouns = _MIRRORED[word], nouns[::-1]
    return Pair(word, nouns, ("place" if word in _POSITIONS else word, *sorted(nouns)))


def _singulars(nouns: Set[str]) -> dict[str, str]:
    """Return noun -> its singular if that is a noun too, else itself."""
    found = {noun: noun for noun in nouns}
    for noun in nouns:
        found |= {form: noun for form in plurals(noun) if form in nouns}
    return found


def plurals(word: str) -> tuple[str, ...]:
    """Return the candidate regular plurals of a noun; forms that do not exist are harmless."""
    forms = [f"{word}s", f"{word}es"]
    if word.endswith("y"):
        forms.append(f"{word[:-1]}ies")
    if word.endswith(("f", "fe")):
        forms.append(f"{word.removesuffix('e')[:-1]}ves")
    return tuple(forms)


def _canonical(word: str) -> str:
    return _SYNONYMS.get(word, word)
