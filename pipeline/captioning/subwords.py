"""Words of captions that were generated as subwords, and the attention at each word."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2cap.data.captions.attention_file import CaptionAttention


def merge_tokens(tokenizer: Any, tokens: Sequence[int]) -> tuple[list[str], NDArray[np.float32]]:
    """Return the W words of T tokens, and the share (W, T) of each token in each word.

    tokenizer: of `transformers`, of any kind of subwords. Rows sum to 1. Punctuation is part of its
    word, and a token that is only a space of the word after it.
    """
    special = set(tokenizer.all_special_ids)
    words: list[str] = []
    pairs: list[tuple[int, int]] = []
    waiting: list[int] = []  # spaces, and all but the last byte of a character
    for position, token in enumerate(tokens):
        if token in special:
            continue
        waiting.append(position)
        # decoding a prefix gives a prefix of the words, of which the last may be cut
        before = words
        words = tokenizer.decode(list(tokens[: position + 1]), skip_special_tokens=True).split()
        if words != before:
            newest = range(max(0, min(len(before), len(words) - 1)), len(words))
            pairs += [(word, at) for word in newest for at in waiting]
            waiting = []
    pairs += [(len(words) - 1, at) for at in waiting if words]
    shares = np.zeros((len(words), len(tokens)), np.float32)
    for word, position in pairs:
        shares[min(word, len(words) - 1), position] = 1
    return words, shares / shares.sum(axis=1, keepdims=True).clip(min=1)


def average_tokens(attention: CaptionAttention, shares: NDArray[np.float32]) -> CaptionAttention:
    """Average the attention of the tokens of each word; shares: of `merge_tokens`."""
    return attention.map(lambda rows: shares @ rows, lambda gate: gate @ shares.T)
