"""Published rules that select the words of a vocabulary.

Published sizes on COCO, with special tokens:

- `neuraltalk2`: 9,487 of ImageCaptioning.pytorch, from the tokens of Karpathy's file. Karpathy's
  own prepro.py (karpathy/neuraltalk2@35d539c) splits the raw captions and gives 9,567.
- `aoanet`: 10,369 (Huang et al. 2019, arXiv:1908.06954).
- `updown`: 10,010 (Anderson et al. 2018, arXiv:1707.07998).
- `arctic`: 10,000 (Xu et al. 2015, arXiv:1502.03044), over train2014 without restval.
- `m2`: 10,201 (Cornia et al. 2020, arXiv:1912.08226).

`karpathy` counts the training split alone and is not a published list.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from a2cap.data.annotations.caption import AnnotatedCaption
from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.errors import InputError

_WORD_OR_OTHER = re.compile(r"(\W+)")
_WORD_OR_MARKS = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class VocabularyPreset:
    """A published rule: words of `tokenize` that occur at least `min_count` times in `splits`.

    per_image: number of captions of an image that are counted, all if None. most: maximum number of
    words.
    """

    min_count: int
    splits: frozenset[str]
    tokenize: Callable[[AnnotatedCaption], tuple[str, ...]]
    per_image: int | None = None
    most: int | None = None


def _file_tokens(caption: AnnotatedCaption) -> tuple[str, ...]:
    return caption.tokens


def _m2_tokens(caption: AnnotatedCaption) -> tuple[str, ...]:
    return spacy_words(caption.raw)


def _updown_tokens(caption: AnnotatedCaption) -> tuple[str, ...]:
    return tuple(w for part in _WORD_OR_OTHER.split(caption.raw) for w in _updown_words(part))


@lru_cache(1 << 16)  # parts repeat, as the chunks of spacy_words do
def _updown_words(part: str) -> tuple[str, ...]:
    word = part.strip().lower()
    # marks with a space between them and ellipses are words
    is_marks = bool(re.fullmatch(r"[^\w\s]+", word)) and set(word) != {"."}
    return tuple(w for w in (word if is_marks else [word]) if w not in ("", "."))  # "." is <eos>


def _arctic_tokens(caption: AnnotatedCaption) -> tuple[str, ...]:
    return tuple(_WORD_OR_MARKS.findall(caption.raw.lower()))


_ALL = frozenset({"train", "val", "test"})
_TRAIN = frozenset({"train"})

PRESETS: Mapping[str, VocabularyPreset] = MappingProxyType(
    {
        "karpathy": VocabularyPreset(5, _TRAIN, _file_tokens),
        "neuraltalk2": VocabularyPreset(6, _ALL, _file_tokens),
        "aoanet": VocabularyPreset(5, _ALL, _file_tokens),
        "updown": VocabularyPreset(5, _TRAIN, _updown_tokens),
        "arctic": VocabularyPreset(1, _TRAIN, _arctic_tokens, per_image=5, most=9_998),
        "m2": VocabularyPreset(5, _ALL - {"test"}, _m2_tokens, per_image=5),
    }
)


def preset_of(name: str) -> VocabularyPreset:
    """Return the preset of a name; raises InputError for an unknown one."""
    if name not in PRESETS:
        raise InputError(
            f"unknown vocabulary preset: {name!r}; use one of {', '.join(sorted(PRESETS))}"
        )
    return PRESETS[name]


def tokens_of(caption: AnnotatedCaption, preset: str) -> tuple[str, ...]:
    """Return the words of a caption by the rule of `preset`."""
    return preset_of(preset).tokenize(caption)


def count_words(images: Iterable[AnnotatedImage], preset: str) -> Counter[str]:
    """Count the words in the captions that `preset` counts."""
    rule = preset_of(preset)
    counts: Counter[str] = Counter()
    for image in images:
        if image.split in rule.splits:
            for caption in image.captions[: rule.per_image]:
                counts.update(rule.tokenize(caption))
    return counts


# Words of M2's captions: spaCy 2's English tokeniser, as far as COCO's captions show it. Of the
# 27,321 words that M2 counted in 591,435 captions, ten have a count that differs by one
# (aimagelab/meshed-memory-transformer@5d06009). Runs of white space, words in spaCy, are not here.

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
