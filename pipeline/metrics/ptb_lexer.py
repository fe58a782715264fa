"""Penn Treebank tokenizer: the automaton of Stanford CoreNLP 3.4.1, run without Java.

PTBLexer is a class that JFlex generated: its regular expressions are a deterministic automaton in
string constants. The tables are read from the jar of pycocoevalcap. What happens after a match is
written here, for the options of pycocoevalcap (`-preserveLines -lowerCase`). Positions and
characters are UTF-16 code units, as in Java.
"""

import re
import zipfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError

_CLASS = "edu/stanford/nlp/process/PTBLexer.class"
_CRC = 0x3A2D8529
"""Checksum of the class; another version numbers its rules, and places its tables, differently."""

_CLASSES, _ROWS, _ATTRIBUTES, _RULES = 598_199, 7_907, 594_279, 5_313
_FOLLOWING = (24_661, 89_563, 154_021, 217_320, 280_889, 345_530, 409_444, 473_990, 538_870)
"""Positions of the packed tables in the class, string constants (JVM specification 4.4.7)."""

_START = 2
"""State in which each token begins, for the lexical state that is not strict."""

_FINAL, _LAST = 1, 8
"""Attributes of a state: a match ends here; no longer match is possible."""


def _pairs(class_file: bytes, *positions: int) -> NDArray[np.int64]:
    """Return the code units of the strings at these positions, joined, two in each row."""
    joined = b""
    for at in positions:
        start, size = at + 2, int.from_bytes(class_file[at : at + 2])
        joined += class_file[start : start + size]
    # Java writes a zero as two bytes and surrogates one by one.
    text = joined.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return np.array(code_units(text), dtype=np.int64).reshape(-1, 2)


def _unpacked(class_file: bytes, *positions: int) -> NDArray[np.int64]:
    """Return a run-length encoded table: pairs of a count and a value."""
    count, value = _pairs(class_file, *positions).T
    return np.repeat(value, count)


@dataclass(frozen=True)
class Automaton:
    """Tables of PTBLexer.

    classes: class of each UTF-16 code unit.
    rows: start of each state's row in `following`; following[row + class]: next state, -1 for none.
    attributes, rules: of each state.
    """

    classes: list[int]
    rows: list[int]
    following: list[int]
    attributes: list[int]
    rules: list[int]

    @classmethod
    def read(cls, jar: Path) -> "Automaton":
        """Read the tables; raise InputError for a jar of another version."""
        with zipfile.ZipFile(jar) as archive:
            if archive.getinfo(_CLASS).CRC != _CRC:
                raise InputError(
                    f"{str(jar)!r} contains another PTBLexer than CoreNLP 3.4.1; "
                    'run "pip install --force-reinstall pycocoevalcap==1.2"'
                )
            code = archive.read(_CLASS)
        return cls(
            classes=_unpacked(code, _CLASSES).tolist(),
            rows=[high << 16 | low for high, low in _pairs(code, _ROWS).tolist()],
            following=(_unpacked(code, *_FOLLOWING) - 1).tolist(),
            attributes=_unpacked(code, _ATTRIBUTES).tolist(),
            rules=_unpacked(code, _RULES).tolist(),
        )

    def match(self, codes: Sequence[int], start: int) -> tuple[int, int, int]:
        """Return the rule and the end of the longest match, and how many code units were read.

        One more than their number means that the match depends on what follows the text.
        """
        state, rule, end, at = _START, 0, start, start
        while at < len(codes):
            state = self.following[self.rows[state] + self.classes[codes[at]]]
            at += 1
            if state < 0:
                return rule, end, at
            if self.attributes[state] & _FINAL:
                rule, end = self.rules[state], at
                if self.attributes[state] & _LAST:
                    return rule, end, at
        return rule, end, len(codes) + 1

    def before_context(
        self, codes: Sequence[int], start: int, end: int, forward: int, backward: int
    ) -> int:
        """Return where the token of a match with right context ends.

        forward: state that starts the expression of the token.
        backward: that of the context, reversed.
        The token is the longest one whose rest is the context.
        """
        # The match has the token and its context, and one automaton cannot tell where the first
        # ends. So one run forward notes all possible ends of the token, and one run backward from
        # the end of the match stops at the first of them where the rest is a whole context.
        ends, state = {}, forward
        for at in range(start, end + 1):
            ends[at] = bool(self.attributes[state] & _FINAL)
            if at < end:
                state = self.following[self.rows[state] + self.classes[codes[at]]]
                if state < 0:
                    break
        state, at = backward, end
        while not (ends.get(at) and self.attributes[state] & _FINAL):
            at -= 1
            state = self.following[self.rows[state] + self.classes[codes[at]]]
        return at


_FRACTIONS = str.maketrans({"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"})
_CURRENCIES = str.maketrans({"¢": "cents", "£": "#", "\x80": "$", "¤": "$", "₠": "$", "€": "$"})
_CURLY = str.maketrans(
    dict.fromkeys("\x91‘‛‹", "`")
    | dict.fromkeys("\x92’›", "'")
    | dict.fromkeys("\x93“«", "``")
    | dict.fromkeys("\x94”»", "''")
)
_PARENTHESES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
_WHITE_SPACE = frozenset(map(ord, " \t\n\v\f\r\x85"))


def _opening(text: str) -> str:
    return re.sub('"|&quot;', "``", re.sub("&apos;|'", "`", text)).translate(_CURLY)


def _closing(text: str) -> str:
    return re.sub('"|&quot;', "''", re.sub("&apos;|'", "'", text)).translate(_CURLY)


def _without_soft_hyphens(text: str) -> str:
    return text.replace("\xad", "") or "-"


def _unbroken(text: str) -> str:
    return text.replace(" ", "\xa0")


def _with_brackets(text: str) -> str:
    return text.translate(_PARENTHESES)


def _ampersand(text: str) -> str:
    return re.sub("(?i)&amp;", "&", text)


def _dash(text: str) -> str:
    return "--" if 3 <= len(text) <= 4 else text


def _always(token: str) -> Callable[[str], str]:
    return lambda text: token


# JFlex numbers the rules of PTBLexer.flex and drops their names. Beside a rule is a text that it
# matches, with | before the context that goes back to the text.

_SKIPPED = frozenset((1, 7, 23))
"""Rules without a token: white space, and characters that are not tokenizable."""

_CONTEXT = {
    24: (13, 14),  # y|\n
    30: (3, 4),  # it|'s
    40: (5, 6),  # do|n't
    41: (16, 17),
    43: (15, 14),
    44: (9, 10),  # Fig.| 5
    47: (7, 8),  # p.m.| The
    49: (11, 12),  # Inc.| The
}
"""Rules whose token is followed by a context of variable length: forward and backward states."""

_PUSHED_BACK = {25: 1, 26: 1, 32: 1, 34: 1, 36: 1, 42: 2, 46: 1, 48: 2, 50: 3, 51: 1, 53: 4}
"""Rules that end with a context of fixed length: "|h, e.g.|, 's|_ gon|na Jan.|_5 can|not."""

_REPEATED = frozenset((33, 47, 49))
"""Rules of abbreviations whose last point is a token once more: it ends the sentence too."""

_TEXT: dict[int, Callable[[str], str]] = {
    2: _always("<"),  # &lt;
    4: _dash,
    6: _without_soft_hyphens,  # a word
    8: _closing,
    10: _always(">"),
    11: _always("--"),  # one dash of Unicode
    12: _without_soft_hyphens,  # a number
    13: _always("..."),
    14: lambda text: text.translate(_FRACTIONS),
    15: lambda text: text.translate(_CURRENCIES),
    16: _always("-RCB-"),
    17: _always("-LRB-"),
    18: _always("-RRB-"),
    20: _always("-LCB-"),
    21: _always("-RSB-"),
    22: _always("-LSB-"),
    26: _opening,
    27: _unbroken,  # a tag: <b>
    28: _with_brackets,
    29: _without_soft_hyphens,  # well-known
    30: _without_soft_hyphens,
    32: _without_soft_hyphens,
    34: _with_brackets,  # :-)
    35: _opening,
    36: _closing,
    37: _ampersand,  # AT&T
    38: _unbroken,
    39: _unbroken,  # 3 1/2
    40: _without_soft_hyphens,
    46: _without_soft_hyphens,
    51: _ampersand,
    54: lambda text: _with_brackets(_unbroken(text)),  # (800) 555-1234
}
"""Rules whose token is not the matched text."""


@dataclass(frozen=True)
class Token:
    """A token as printed, its place, and True if text beyond the given one could change it."""

    text: str
    start: int
    end: int
    is_open: bool


def code_units(text: str) -> Sequence[int]:
    """Return the UTF-16 code units of a text."""
    units = array("H")
    units.frombytes(text.encode("utf-16-le", "surrogatepass"))
    return units.tolist()


def tokens(automaton: Automaton, codes: Sequence[int]) -> Iterator[Token]:
    """Yield the tokens of a text; a skipped match has the text ""."""
    # The automaton matches a token together with the context that decides its rule. The actions of
    # PTBLexer.flex give the context back to the text, so the next match begins at the token's end,
    # and this loop moves `end` in the order in which those actions do.
    start = 0
    while start < len(codes):
        rule, end, read = automaton.match(codes, start)
        if rule in _CONTEXT:
            end = automaton.before_context(codes, start, end, *_CONTEXT[rule])
        if rule in (44, 47) and end > start and codes[end - 1] in _WHITE_SPACE:
            end -= 1
        end -= _PUSHED_BACK.get(rule, 0)
        if rule == 35:  # of 'no, the quote alone
            end = start + 1
        stop = end
        if rule in _REPEATED:
            # of "A." only the letter is the token
            stop, end = (end - 1, end - 1) if rule == 47 and end - start == 2 else (end, end - 1)
        text = array("H", codes[start:stop]).tobytes().decode("utf-16-le", "surrogatepass")
        text = "" if rule in _SKIPPED else _TEXT.get(rule, str)(text)
        yield Token(_lower(text), start, end, read > len(codes))
        start = end


# Words of Java's BreakIterator: Chinese and Japanese characters are not joined to others.
_RUN = re.compile(r"[^\W\u3041-\u30fe\u3400-\u9fff\uf900-\ufaff]+")


def _lower(text: str) -> str:
    if "Σ" in text:
        text = _RUN.sub(lambda run: _with_final_sigma(run[0]), text)
    return text.lower()


def _with_final_sigma(run: str) -> str:
    """Return a word whose last letter, and no other one, may be a final sigma, as in Java.

    Python ends a word at a digit.
    """
    cased = [at for at, letter in enumerate(run) if letter.lower() != letter.upper()]
    is_final = len(cased) > 1 and run[cased[-1]] == "Σ"
    end = cased[-1] if is_final else len(run)
    return run[:end].replace("Σ", "σ") + ("ς" + run[end + 1 :] if is_final else "")
