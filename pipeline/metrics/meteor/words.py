"""METEOR's words: stems, synonyms of WordNet, and function words.

`stem` is the English Snowball stemmer ("Porter 2"), in the version that METEOR 1.5 contains
(snowballstem.org/algorithms/english/stemmer.html). R1 and R2 are the parts of a word after its
first and second vowel-consonant sequence.
"""

import re
import zipfile
from dataclasses import dataclass
from functools import cache

from a2cap.pipeline.metrics.meteor.normalization import read_prefixes
from a2cap.pipeline.metrics.pycocoevalcap import METEOR, metric_file

# WordNet's inflections of nouns, verbs and adjectives: an ending and its replacement, tried in this
# order.
_INFLECTIONS = (
    *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
    *(("men", "man"), ("ies", "y")),
    *(("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    *(("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
)


@dataclass(frozen=True)
class Word:
    """A word of a caption.

    key, stem: hashes of Java, by which METEOR compares words. synsets: ids in WordNet.
    """

    text: str
    key: int
    stem: int
    synsets: frozenset[str]
    is_function: bool


class Words(dict[str, Word]):
    """Words by their text, computed once; `prefixes`: as for `normalized_words`."""

    def __init__(self) -> None:
        with zipfile.ZipFile(metric_file(METEOR)) as jar:
            lines = _lines(jar, "synonym/english.synsets")
            self._synsets = dict(zip(lines[::2], lines[1::2], strict=True))
            lines = _lines(jar, "synonym/english.exceptions")
            self._bases: dict[str, list[str]] = {}
            for base, forms in zip(lines[::2], lines[1::2], strict=True):
                for form in forms.split():
                    self._bases.setdefault(form, []).append(base)
            self._function = frozenset(_lines(jar, "function/english.words"))
            self.prefixes = read_prefixes("\n".join(_lines(jar, "nonbreaking/english.prefixes")))

    def __missing__(self, text: str) -> Word:
        found = Word(
            text, java_hash(text), java_hash(stem(text)), self._ids(text), text in self._function
        )
        self[text] = found
        return found

    def _ids(self, word: str) -> frozenset[str]:
        """Return the synonym sets of a word and of its base forms."""
        bases = self._bases.get(word) or [self._base(word)]
        return frozenset(
            number for form in (word, *bases) for number in self._synsets.get(form, "").split()
        )

    def _base(self, word: str) -> str:
        """Return the base form of a regular inflection that WordNet contains."""
        if word.endswith("ss") or len(word) <= 2:
            return word
        for ending, replacement in _INFLECTIONS:
            base = word.removesuffix(ending) + replacement
            if word.endswith(ending) and base in self._synsets:
                return base
        return ""


@cache
def words() -> Words:
    """Return the words of the installed METEOR."""
    return Words()


def java_hash(text: str) -> int:
    """Return `String.hashCode` of Java, as an unsigned number."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def _lines(jar: zipfile.ZipFile, name: str) -> list[str]:
    return jar.read(name).decode().removesuffix("\n").split("\n")


_EXCEPTIONS = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}

_KEPT = frozenset(
    ("inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed")
)
"""Words that change no more after their plural has gone."""

_REGION = re.compile("[^aeiouy]*[aeiouy]+[^aeiouy]")
_LONG_PREFIX = re.compile("gener|commun|arsen")
_SHORT_SYLLABLE = re.compile("[^aeiouy][aeiouy][^aeiouywxY]$|^[aeiouy][^aeiouy]$")
_DOUBLE = re.compile("(bb|dd|ff|gg|mm|nn|pp|rr|tt)$")

_STEP_2 = {
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "abli": "able",
    "entli": "ent",
    "izer": "ize",
    "ization": "ize",
    "ational": "ate",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "aliti": "al",
    "alli": "al",
    "fulness": "ful",
    "ousli": "ous",
    "ousness": "ous",
    "iveness": "ive",
    "iviti": "ive",
    "biliti": "ble",
    "bli": "ble",
    "ogi": "og",
    "fulli": "ful",
    "lessli": "less",
    "li": "",
}
_STEP_3 = {
    "tional": "tion",
    "ational": "ate",
    "alize": "al",
    "icate": "ic",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
    "ative": "",
}
_STEP_4 = {
    **dict.fromkeys(("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment"), ""),
    **dict.fromkeys(("ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion"), ""),
}
# characters that must precede an ending
_BEFORE = {"li": "cdeghkmnrt", "ogi": "l", "ion": "st"}


def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    if len(word) < 3:
        return word
    # Y is a y that is a consonant.
    word = re.sub("^y", "Y", word.removeprefix("'"))
    word = re.sub("([aeiouy])y", r"\1Y", word)
    r1, r2 = _regions(word)
    word = _without_plural(_without_suffix(word, ("'s'", "'s", "'")))
    if word in _KEPT:
        return word
    word = _without_participle(word, r1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in "aeiouy":
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2, r1)
    word = _replaced(word, _STEP_3, r1, r2)
    word = _replaced(word, _STEP_4, r2)
    return _without_final(word, r1, r2).replace("Y", "y")


def _regions(word: str) -> tuple[int, int]:
    """Return where R1 and R2 begin."""
    found = _LONG_PREFIX.match(word) or _REGION.match(word)
    r1 = found.end() if found else len(word)
    found = _REGION.match(word, r1)
    return r1, found.end() if found else len(word)


def _without_suffix(word: str, suffixes: tuple[str, ...]) -> str:
    """Remove the first of the suffixes that the word ends with."""
    return next((word.removesuffix(end) for end in suffixes if word.endswith(end)), word)


def _without_plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and re.search("[aeiouy].", word[:-1]):
        return word[:-1]
    return word


def _without_participle(word: str, r1: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            start = len(word) - len(ending)
            return word[:start] + "ee" if start >= r1 else word
    base = _without_suffix(word, ("ingly", "edly", "ing", "ed"))
    if base == word or not re.search("[aeiouy]", base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _DOUBLE.search(base):
        return base[:-1]
    return base + "e" if len(base) == r1 and _SHORT_SYLLABLE.search(base) else base


def _replaced(word: str, endings: dict[str, str], region: int, r2: int | None = None) -> str:
    """Replace the longest of the endings if it is in the region, and `ative` if it is in R2."""
    for size in range(7, 1, -1):
        ending = word[-size:]
        if len(ending) == size and ending in endings:
            start = len(word) - size
            preceded = start > 0 and word[start - 1] in _BEFORE.get(ending, word[start - 1])
            inside = start >= (r2 if ending == "ative" and r2 is not None else region)
            return word[:start] + endings[ending] if inside and preceded else word
    return word


def _without_final(word: str, r1: int, r2: int) -> str:
    start = len(word) - 1
    if word.endswith("e"):
        is_short = _SHORT_SYLLABLE.search(word[:-1])
        return word[:-1] if start >= r2 or (start >= r1 and not is_short) else word
    return word[:-1] if word.endswith("ll") and start >= r2 else word
