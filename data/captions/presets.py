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

from a2cap.data.annotations.read import AnnotatedImage, Caption
from a2cap.data.captions.spacy_words import spacy_words
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
    tokenize: Callable[[Caption], tuple[str, ...]]
    per_image: int | None = None
    most: int | None = None


def _file_tokens(caption: Caption) -> tuple[str, ...]:
    return caption.tokens


def _m2_tokens(caption: Caption) -> tuple[str, ...]:
    return spacy_words(caption.raw)


def _updown_tokens(caption: Caption) -> tuple[str, ...]:
    return tuple(w for part in _WORD_OR_OTHER.split(caption.raw) for w in _updown_words(part))


@lru_cache(1 << 16)  # parts repeat, as the chunks of spacy_words do
def _updown_words(part: str) -> tuple[str, ...]:
    word = part.strip().lower()
    # marks with a space between them and ellipses are words
    is_marks = bool(re.fullmatch(r"[^\w\s]+", word)) and set(word) != {"."}
    return tuple(w for w in (word if is_marks else [word]) if w not in ("", "."))  # "." is <eos>


def _arctic_tokens(caption: Caption) -> tuple[str, ...]:
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


def tokens_of(caption: Caption, preset: str) -> tuple[str, ...]:
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
