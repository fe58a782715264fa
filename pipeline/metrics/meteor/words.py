"""METEOR's words: stems, synonyms of WordNet, and function words.

`stem` is the English Snowball stemmer ("Porter 2") in the version that METEOR 1.5 contains, which
is that of snowballstemmer 2; version 3 differs on words such as those in -ologist.
"""

import zipfile
from dataclasses import dataclass
from functools import cache

# not snowballstemmer.stemmer("english"), which prefers PyStemmer in whatever version is installed
from snowballstemmer.english_stemmer import EnglishStemmer

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
class MeteorWord:
    """A word of a caption.

    key, stem: hashes of Java, by which METEOR compares words. synsets: ids in WordNet.
    """

    text: str
    key: int
    stem: int
    synsets: frozenset[str]
    is_function: bool


class Words(dict[str, MeteorWord]):
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

    def __missing__(self, text: str) -> MeteorWord:
        word = MeteorWord(
            text, java_hash(text), java_hash(stem(text)), self._ids(text), text in self._function
        )
        self[text] = word
        return word

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


_stemmer = EnglishStemmer()


def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    return str(_stemmer.stemWord(word))
