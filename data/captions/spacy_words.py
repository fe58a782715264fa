"""Words of M2's captions: spaCy 2's English tokeniser, as far as COCO's captions show it.

Of the 27,321 words that M2 counted in 591,435 captions, ten have a count that differs by one
(aimagelab/meshed-memory-transformer@5d06009). Runs of white space, words in spaCy, are not here.
"""

import re
from functools import lru_cache

_PUNCTUATION = frozenset((*"'`.?!,:;-", "--", "..."))
"""Left out by M2; other marks are words."""

_CONTRACTED = {
    **dict.fromkeys(("you", "we", "they"), "ll d ve re"),
    **dict.fromkeys(("he", "she", "it"), "ll d s"),
    **dict.fromkeys(("who", "what", "when", "where", "why", "how"), "ll d s re ve"),
    **dict.fromkeys(("there", "that"), "ll d s re ve"),
    "i": "ll d m ve",
}
"""Words before an ending, with or without an apostrophe."""

_NEGATED = (
    *("ai", "are", "ca", "could", "did", "do", "does", "had", "has", "have", "is", "might"),
    *("must", "need", "sha", "should", "was", "were", "wo", "would"),
)

# "were" is not "we 're", and so on
_ORDINARY = frozenset({"ill", "its", "hell", "shell", "shed", "were", "well", "whore"})

_EXCEPTIONS = {
    **{
        a + b: (a, b)
        for a, ends in _CONTRACTED.items()
        for b in ends.split()
        if a + b not in _ORDINARY
    },
    **{f"{a}'{b}": (a, f"'{b}") for a, ends in _CONTRACTED.items() for b in ends.split()},
    **{verb + end: (verb, end) for verb in _NEGATED for end in ("nt", "n't")},
    **{f"{hour}{half}": (str(hour), half) for hour in range(1, 13) for half in ("am", "pm")},
    **{word: (word,) for word in ("'s", "o'clock", "and/or", "co.", "e.g.", "vs.", "a.m.", "p.m.")},
    **{f"{letter}.": (f"{letter}.",) for letter in "abcdefghijklmnopqrstuvwxyz"},
    **{"cannot": ("can", "not"), "gonna": ("gon", "na"), "gotta": ("got", "ta")},
}

_MARK = r"""[,:;!?()\[\]{}<>_#*&"'`$%=°]"""
_PREFIX = re.compile(rf"\.\.+|{_MARK}|\+(?![0-9])")
_SUFFIX = re.compile(
    rf"(?:\.\.+|'s|{_MARK}|(?<=[^\W_]|[,:;!?)\]\"'`*&#])\."
    r"|(?<=[0-9])(?:\+|[ck]?m|mm|k?g|ft|oz|lbs?|mph|in))$"
)
# hyphens and slashes separate letters only: "4-way" is one word
_INFIX = re.compile(
    r"(\.\.+|(?<=[0-9])[+\-*^](?=[0-9-])|(?<=[^\W\d_]),(?=[^\W\d_])"
    r"|(?<=[^\W\d_])[?\";:=,.]*(?:--|-|–|—|~)+(?=[^\W\d_])|(?<=[^\W\d_]|\")[:<>=/](?=[^\W\d_]))"
)


def spacy_words(raw: str) -> tuple[str, ...]:
    """Return the words of a caption in lower case, without M2's punctuation."""
    return tuple(word for chunk in raw.lower().split() for word in _words(chunk))


@lru_cache(1 << 16)  # chunks repeat: COCO has 44,016 different ones in six million
def _words(chunk: str) -> tuple[str, ...]:
    """Return the words of a text without white space."""
    before, after = [], []
    while chunk and chunk not in _EXCEPTIONS:
        if mark := _PREFIX.match(chunk):
            before.append(mark[0])
            chunk = chunk[mark.end() :]
        elif mark := _SUFFIX.search(chunk):
            after.append(mark[0])
            chunk = chunk[: mark.start()]
        else:
            break
    inside = _EXCEPTIONS.get(chunk) or filter(None, _INFIX.split(chunk))
    return tuple(w for w in (*before, *inside, *reversed(after)) if w not in _PUNCTUATION)
