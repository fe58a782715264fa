"""Tokens that the metrics compare: PTB, as pycocoevalcap's, or Unicode words.

PTB tokens of a word rarely depend on the rest of the caption, so the tokens of each word are
computed once. PTB breaks words of many scripts, so captions of other languages can be compared as
Unicode words.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, islice, takewhile

from a2cap.data.captions.unicode_words import unicode_words
from a2cap.data.errors import InputError
from a2cap.data.tokenizers import TOKENIZERS, Tokenizer
from a2cap.pipeline.metrics.ptb_lexer import Automaton, code_units, tokens
from a2cap.pipeline.metrics.pycocoevalcap import TOKENIZER, metric_file

# COCOEvalCap removes these after tokenisation. Brackets are lower-case by then, so -lrb- stays.
_PUNCTUATION = frozenset(("''", "'", "``", "`", *".?!,:-;", "--", "..."))

_DROPPED = _PUNCTUATION | {"", "\n"}

LINE_BREAKS = re.compile("[\n\r\v\f\x85\u2028\u2029]")
"""Line separators of the tokeniser; a caption is one line."""

_MOST_WORDS = 1 << 20
"""Words whose tokens are kept."""
_MOST_LINES = 1 << 16
"""Captions that are not read word by word, and whose tokens are kept."""


def metric_tokens(tokenizer: Tokenizer) -> str:
    """Return the name of the tokens that the metrics compare."""
    if tokenizer not in TOKENIZERS:
        raise InputError(f"unknown tokenizer: {tokenizer!r}; use one of {', '.join(TOKENIZERS)}")
    return "Unicode words" if tokenizer == "unicode" else "PTB"


def tokenize(
    captions: Mapping[str, Sequence[str]], tokenizer: Tokenizer = "karpathy"
) -> dict[str, list[str]]:
    """Return the tokens of each caption, lower-case, without punctuation, joined by spaces.

    tokenizer: Unicode words for unicode, else PTB tokens.
    """
    sentences = list(chain.from_iterable(captions.values()))
    if metric_tokens(tokenizer) == "PTB":
        tokenized = list(map(ptb_tokens, sentences, [*sentences[1:], ""]))
    else:
        tokenized = [" ".join(unicode_words(sentence)) for sentence in sentences]
    lines = iter(tokenized)
    return {name: list(islice(lines, len(group))) for name, group in captions.items()}


def ptb_tokens(caption: str, following: str = "") -> str:
    """Return the PTB tokens of one caption without punctuation, joined by spaces.

    following: the next caption of a list. pycocoevalcap tokenises all captions as one text, in
    which "K." at the end of a caption keeps its point only if the next one begins in lower case.
    """
    # White space of other kinds joins the blanks around it, and is not printable.
    tokens = _word_by_word(caption.split(" ")) if caption.isprintable() else [None]
    if None not in tokens:
        return " ".join(filter(None, tokens))
    return _line_tokens(*(LINE_BREAKS.sub(" ", text) for text in (caption, following)))


@lru_cache(_MOST_LINES)
def _line_tokens(line: str, after: str) -> str:
    """Return the tokens of a line before another one, read as one text."""
    codes, end = code_units(f"{line}\n{after}\n"), len(code_units(line))
    inside = takewhile(lambda token: token.start < end, tokens(_automaton(), codes))
    # pycocoevalcap removes white space at the end, also from within the last token
    return _joined(" ".join(token.text for token in inside if token.text).rstrip().split(" "))


def _word_by_word(words: list[str]) -> list[str | None]:
    """Return the tokens of each word, None if more than two characters after it decide."""
    *inner, last = words
    tokens = [*map(_inner.__getitem__, inner), _last[last]]
    if None in tokens[:-1]:
        tokens[:-1] = [
            _wider[(after or " ")[0]][word] if texts is None else texts
            for word, texts, after in zip(inner, tokens, words[1:], strict=False)
        ]
    return tokens


class _Words(dict[str, str | None]):
    """Words -> their tokens if given characters follow.

    The value is None if more of the caption decides, as in "2 1/2" or "U.S. 5".
    """

    def __init__(self, following: str) -> None:
        self._following = following

    def __missing__(self, word: str) -> str | None:
        if len(self) == _MOST_WORDS:
            self.clear()
        self[word] = tokens = self._tokens(word)
        return tokens

    def _tokens(self, word: str) -> str | None:
        codes, end = code_units(word + self._following), len(code_units(word))
        texts: list[str] = []
        for token in tokens(_automaton(), codes):
            if token.start == end:
                break
            if token.is_open or token.end > end:
                return None
            texts.append(token.text)
        return _joined(texts)


class _WordsBySecond(dict[str, _Words]):
    """The character after a blank -> words that are followed by both."""

    def __missing__(self, character: str) -> _Words:
        self[character] = words = _Words(" " + character)
        return words


_inner, _last, _wider = _Words(" "), _Words("\n"), _WordsBySecond()


def _joined(texts: Iterable[str]) -> str:
    return " ".join(text for text in texts if text not in _DROPPED)


@cache
def _automaton() -> Automaton:
    return Automaton.read(metric_file(TOKENIZER))
