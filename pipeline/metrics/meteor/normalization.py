"""METEOR's normalisation of English (`-norm`): the words that are compared.

It separates punctuation as the tokenizer of Moses does, and further removes hyphens between words
and the points of abbreviations.
"""

import re

_LETTERS = "A-Za-zŠŽšžŸÀ-ÖØ-öø-žЀ-ӿԀ-ԧꙀ-ꙮ\ua67e-ꚗᴀ-ᵿ"
_CHARACTERS = "0-9" + _LETTERS
_BLANK = " \t\n\v\f\r"

_PLAIN = re.compile("[a-z0-9 ]*")
_OTHER = re.compile(rf"([^{_CHARACTERS}{_BLANK}.'`,\-‘’])")
_POINTS = re.compile(r"\.(\.+)")
_SINGLE_QUOTE = re.compile("[`‘’]")
_DOUBLE_QUOTE = re.compile("[“”]|''")
_HYPHEN = re.compile(f"([{_CHARACTERS}.])-([{_CHARACTERS}])")
_COMMAS = tuple(
    re.compile(f"({before}),({after})")
    for before, after in (("[^0-9]", "[^0-9]"), ("[0-9]", "[^0-9]"), ("[^0-9]", "[0-9]"))
)
_APOSTROPHES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (f"([^{_LETTERS}])'([^{_LETTERS}])", r"\1 ' \2"),
        (f"([^{_LETTERS}0-9])'([{_LETTERS}])", r"\1 ' \2"),
        (f"([{_LETTERS}])'([^{_LETTERS}])", r"\1 ' \2"),
        (f"([{_LETTERS}])'([{_LETTERS}])", r"\1 '\2"),
        ("([0-9])'(s)", r"\1 '\2"),
    )
)
_WORD_BREAK = re.compile("[ \t\n\r\f]+")
_SPACES = re.compile("[ \u2000-\u200a\u202f\u205f\u3000\xa0]+")
_ONLY_NUMBERS = "#NUMERIC_ONLY#"

_CONTROL = "".join(map(chr, range(33)))
"""Characters that Java's `trim` removes."""


def read_prefixes(text: str) -> dict[str, bool]:
    """Return the abbreviations whose point is kept; True if only before a number."""
    lines = [line.split() for line in text.splitlines()]
    return {
        line[0]: line[1:2] == [_ONLY_NUMBERS]
        for line in lines
        if line and not line[0].startswith("#")
    }


def normalized_words(text: str, prefixes: dict[str, bool]) -> list[str]:
    """Return the words of one caption in lower case."""
    if _PLAIN.fullmatch(text):
        return text.split()
    spaced = _apart(text.strip(_CONTROL))
    words = [word for word in _WORD_BREAK.split(spaced) if word]
    following = [*words[1:], ""]
    line = " ".join(_point(w, after, prefixes) for w, after in zip(words, following, strict=True))
    line = re.sub("(?:DOT)+MULTI", lambda points: "." * (len(points[0]) // 3 - 1), line)
    return [
        word for word in _WORD_BREAK.split(_SPACES.sub(" ", line).strip(_CONTROL).lower()) if word
    ]


def _apart(text: str) -> str:
    """Separate punctuation by blanks, except for points."""
    line = _OTHER.sub(r" \1 ", f" {text} ")
    # Several points become one word, which `_point` leaves alone.
    line = _POINTS.sub(lambda points: " " + "DOT" * len(points[0]) + "MULTI ", line)
    for comma in _COMMAS:
        line = comma.sub(r"\1 , \2", line)
    line = _DOUBLE_QUOTE.sub(' " ', _SINGLE_QUOTE.sub("'", line))
    line = line.replace("–", "-").replace("--", "-")
    line = _HYPHEN.sub(r"\1 \2", line)
    for apostrophe, replacement in _APOSTROPHES:
        line = apostrophe.sub(replacement, line)
    return line


def _point(word: str, following: str, prefixes: dict[str, bool]) -> str:
    """Separate the point at the end of a word, or remove it from an abbreviation."""
    if len(word) < 2 or not word.endswith("."):
        return word
    before = word[:-1]
    if "." in before and re.search(f"[{_LETTERS}]", before):
        return word.replace(".", "")  # U.S. -> US
    only_numbers = prefixes.get(before)
    is_kept = only_numbers is False or re.match("[a-z]", following)
    if is_kept or (only_numbers and re.match("[0-9]", following)):
        return word
    return before + " ."
