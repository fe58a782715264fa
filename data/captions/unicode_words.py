"""Words of captions in any script: runs of letters, their marks and digits, in lower case.

After Unicode's word boundaries (Unicode Standard Annex 29): vowel signs and other marks stay with
their letter, which Python's `\\w` does not do, and an apostrophe between letters is in the word.
Scripts without spaces between words (Han, Hiragana, Thai, Lao, Burmese, Khmer) give characters.
Turkish "İ" becomes "i", and "I" becomes "ı" in a text that has an "ı".
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice

_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u309f"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
)
_JOINERS = "'\u2019\u200c\u200d"  # "l'eau", and the spelling of Persian and Indic words

_SAMPLE = 2000
"""Captions whose letters tell the script."""

# over the classes of characters, because a regular expression has none for marks
_WORD = re.compile("CM*|L(?:M|'*L)*")


class _Classes(dict[int, str]):
    """Class of each code point: letter or digit, character that is a word, mark, joiner, other."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if unicodedata.category(char).startswith("M"):
            letter = "M"
        elif char.isalnum():
            letter = "C" if _WITHOUT_SPACES.match(char) else "L"
        else:
            letter = "'" if char in _JOINERS else " "
        self[code] = letter
        return letter


_CLASSES = _Classes()


def unicode_words(text: str) -> tuple[str, ...]:
    """Return the words of a text; punctuation and symbols are left out."""
    text = _lower(unicodedata.normalize("NFC", text))
    return tuple(text[m.start() : m.end()] for m in _WORD.finditer(text.translate(_CLASSES)))


def _lower(text: str) -> str:
    if "ı" in text:  # no other languages than Turkish and its relatives have it
        text = text.replace("I", "ı")
    return text.lower().replace("i\u0307", "i")  # what Python makes of "İ"


def script_of(texts: Iterable[str]) -> tuple[str, float]:
    """Return the script of most letters of the first texts, as Unicode names it, and its share."""
    letters = Counter(c for text in islice(texts, _SAMPLE) for c in text if c.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[_script(letter)] += count
    [(script, count)] = scripts.most_common(1) or [("LATIN", 0)]
    return script, count / max(scripts.total(), 1)


def breaks_words(script: str) -> bool:
    """Return True for a script, as `script_of` names it, that has no spaces between words."""
    return script in _SPACELESS


def without_false_spaces(text: str) -> str:
    """Return words joined by spaces, without those beside characters that are words.

    Spaces beside words of scripts that have some, and beside digits, stay.
    """
    return _FALSE_SPACE.sub("", text)


_SPACELESS = frozenset(("CHINESE OR JAPANESE", "THAI", "LAO", "MYANMAR", "KHMER"))
_JAPANESE = ("CJK", "HIRAGANA", "KATAKANA")
_CHARACTER, _KATAKANA = _WITHOUT_SPACES.pattern, "[\u30a0-\u30ff\uff66-\uff9f]"
# a run of katakana is one word, and two of them would become one
_FALSE_SPACE = re.compile(
    f"(?<={_CHARACTER}) (?={_CHARACTER}|{_KATAKANA})|(?<={_KATAKANA}) (?={_CHARACTER})"
)


@lru_cache(1 << 12)
def _script(letter: str) -> str:
    name = unicodedata.name(letter, "OTHER").split()[0].partition("-")[0]
    return "CHINESE OR JAPANESE" if name in _JAPANESE else name
