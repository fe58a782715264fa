"""What a sentence says of its nouns by words of groups: (red, ball), (red ball, left, cup).

Nouns are the words of group `kinds`; a regular plural is the same noun as its singular. A noun's
colours (group `colours`) belong to it but where it is their own turn: two red balls are not two
balls, and the red one is told from the blue one. Rules:

- A word of a group other than `relations` describes the noun behind it where only such words and
  "of" stand between ("two small red balls", "a pair of balls"), else the noun before it where only
  forms of "be", "and" and such words do ("the balls are small and red").
- A relation joins the last noun before it with the first behind it ("a ball left of a cup"); where
  none is before, the second one behind it is the thing ("left of a cup there is a ball"), and where
  none is behind, the last one before it ("a cup with a ball to the left"). "between" joins three.
- A superlative describes one noun ("the largest of all is a ball"), but "of the balls" none.
- Words that mean the same are one ("tiny", "small"), and so are "a left of b" and "b right of a".
  Two things that are called the same, which cannot be told apart, are no pair.

Captions and references are read by the same rules, which are made for the captions of scenes; what
they miss in free text is no pair on either side.
"""

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from a2cap.data.annotations.word_groups import WordGroups

NOUNS, COLOURS, RELATIONS = "kinds", "colours", "relations"
"""The groups that are read otherwise than the rest."""

_BE = frozenset({"is", "are", "was", "were"})

_SAME = {
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
"""Words -> another one that says the same."""

_MIRRORED = {"right": "left", "below": "above", "around": "inside", "smaller": "larger"}
"""Relations -> what they are when their two things change places."""

_PLACES = frozenset({"left", "above"})
"""Relations of which no more than one holds between two things; the others are of another kind."""

_SUPERLATIVES = frozenset({"largest", "smallest", "highest", "lowest", "leftmost", "rightmost"})

_BETWEEN = "between"


class Pair(NamedTuple):
    """A word of a group with its nouns; equal where it says the same.

    topic: what it is about; pairs of one group and topic agree or contradict each other, as long as
    an image has no two things of that name.
    """

    word: str
    nouns: tuple[str, ...]
    topic: tuple[str, ...]


class PairReader:
    """Finds the pairs in sentences of tokens."""

    def __init__(self, groups: WordGroups) -> None:
        self._group = {word: group for group, words in groups.items() for word in words}
        self._noun = _singulars(groups.get(NOUNS, frozenset()))

    def read(self, words: Sequence[str]) -> dict[str, Counter[Pair]]:
        """Group -> its pairs in the sentence, with how often they are said."""
        found: dict[str, Counter[Pair]] = {group: Counter() for group in self._group.values()}
        for place, word in enumerate(words):
            group = self._group.get(word, NOUNS)
            if group == NOUNS:
                continue
            of = self._relation if group == RELATIONS else self._description
            pair = of(words, place)
            if pair is not None:
                found[group][pair] += 1
        return found

    def _description(self, words: Sequence[str], place: int) -> Pair | None:
        of = self._noun_behind(words, place)
        of = self._subject(words, place) if of is None else of
        if of is None:
            return None
        is_colour = self._group[words[place]] == COLOURS
        noun = self._noun[words[of]] if is_colour else self._thing(words, of)
        return Pair(_meaning(words[place]), (noun,), (noun,))

    def _noun_behind(self, words: Sequence[str], place: int) -> int | None:
        """Where the noun stands that a word describes from before it."""
        for behind in range(place + 1, len(words)):
            if words[behind] != "of" and not self._describes(words[behind]):
                return behind if words[behind] in self._noun else None
        return None

    def _subject(self, words: Sequence[str], place: int) -> int | None:
        """Where the noun stands of which a word is said behind it."""
        is_said = False
        for before in reversed(range(place)):
            if words[before] in _BE:
                is_said = True
            elif words[before] != "and" and not self._describes(words[before]):
                return before if is_said and words[before] in self._noun else None
        return None

    def _thing(self, words: Sequence[str], place: int) -> str:
        """The noun at a place, with the colours that stand before it."""
        colours = []
        for word in reversed(words[:place]):
            if not self._describes(word):
                break
            colours += [word] * (self._group[word] == COLOURS)
        return " ".join([*sorted(colours), self._noun[words[place]]])

    def _describes(self, word: str) -> bool:
        return self._group.get(word, NOUNS) not in (NOUNS, RELATIONS)

    def _relation(self, words: Sequence[str], place: int) -> Pair | None:
        word = _meaning(words[place])
        nouns = [at for at, found in enumerate(words) if found in self._noun]
        before = [self._thing(words, at) for at in nouns if at < place]
        behind = [self._thing(words, at) for at in nouns if at > place]
        if word not in _SUPERLATIVES:
            return _related(word, before, behind)
        nearest = [*behind[:1], *before[-1:]]
        if not nearest or tuple(words[place + 1 : place + 3]) == ("of", "the"):
            return None
        return Pair(word, (nearest[0],), (word,))


def _related(word: str, before: Sequence[str], behind: Sequence[str]) -> Pair | None:
    """The pair of a relation and the nouns on both sides of it; None where it says nothing."""
    joined = 2 if word == _BETWEEN else 1
    if len(before) + len(behind) < 2:
        return None
    if before and behind:
        thing, others = before[-1], behind[:joined]
    elif before:
        thing, others = before[-1], before[:-1][-joined:]
    else:
        joined = min(joined, len(behind) - 1)
        thing, others = behind[joined], behind[:joined]
    if thing in others:
        return None
    nouns = (thing, *sorted(set(others)))
    if word in _MIRRORED:
        word, nouns = _MIRRORED[word], nouns[::-1]
    return Pair(word, nouns, ("place" if word in _PLACES else word, *sorted(nouns)))


def _singulars(nouns: Set[str]) -> dict[str, str]:
    """Noun -> its singular where that is a noun too, else itself."""
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


def _meaning(word: str) -> str:
    return _SAME.get(word, word)
