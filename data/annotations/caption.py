"""Captions: their text, their tokens, and what a caption must be."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern

from a2cap.data.annotations.json_items import BadItem, keys_of, list_member

CheckedCaption = tuple[str, str | None]
"""Caption as written, and the tokens of its file with spaces between, None if it has none."""
LONGEST_CAPTION = 10_000
"""Characters; COCO's longest captions have a few hundred."""

_RAW_TEXTS = ("raw", "caption", "sentence", "text")
_LIST_AS_TEXT = re.compile(r"\[\s*['\"]")

# recovered from the published vocabularies, character by character: & # $ : ) stay in their word
_KARPATHY_PUNCTUATION = str.maketrans(",-/", "   ", ".';\"!?(")
_HAS_WORD = re.compile(r"[^\s,\-/.';\"!?(]")


@dataclass(frozen=True, slots=True)
class AnnotatedCaption:
    """One caption as written, and its tokens."""

    raw: str
    tokens: tuple[str, ...]

    @classmethod
    def of(cls, raw: str, tokens: str | None) -> "AnnotatedCaption":
        """Return a checked caption with its tokens, those of its file or by Karpathy's rule."""
        # interned: captions have few different words
        return cls(raw, tokenize(raw) if tokens is None else tuple(map(intern, tokens.split())))


def tokenize(raw: str) -> tuple[str, ...]:
    """Return the tokens of a caption by the rule of Karpathy's file.

    On all captions of COCO 2014, the words that occur more than five times are the 9,486 of the
    vocabulary that ImageCaptioning.pytorch and others publish, in the same order.
    """
    # interned: captions have few different words
    return tuple(map(intern, raw.lower().translate(_KARPATHY_PUNCTUATION).split()))


def checked_caption(item: object, *, may_be_empty: bool = False) -> CheckedCaption:
    """Return a caption, a text or a mapping of raw and tokens; BadItem for another one."""
    listed, text = None, item
    if isinstance(item, Mapping):
        texts = (item[name] for name in _RAW_TEXTS if item.get(name) is not None)
        listed, text = item.get("tokens"), next(texts, item)
    raw = "" if listed is not None and text is item else _checked_text(text)
    tokens = None if listed is None else _file_tokens(list_member(item, "tokens"))
    if not may_be_empty and not (_HAS_WORD.search(raw) if tokens is None else tokens):
        raise BadItem("empty")
    return raw or tokens or "", tokens


def _file_tokens(words: list[object]) -> str:
    """Return the tokens of a file in lower case, as the rule of Karpathy's file has them."""
    text = _checked_text(" ".join(map(str, words)))
    if text.split() != words:
        raise BadItem("'tokens' is not a list of words without white space")
    return text.lower()


def _checked_text(text: object) -> str:
    """Return a caption; raise BadItem for another type, a list as text, and one too long."""
    if isinstance(text, Mapping):
        raise BadItem(f"an object of {keys_of(text) or 'nothing'}, not a text")
    if not isinstance(text, str):
        raise BadItem(f"{type(text).__name__}, not a string")
    if len(text) > LONGEST_CAPTION:
        raise BadItem(f"{len(text):,} characters, at most {LONGEST_CAPTION:,} are read")
    try:
        text.encode()  # JSON may escape half of a surrogate pair
    except UnicodeEncodeError as error:
        raise BadItem("not valid Unicode") from error
    if _LIST_AS_TEXT.match(text):
        raise BadItem(f"a list that was written as text: {text!r:.40}")
    return text
