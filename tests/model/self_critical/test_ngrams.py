"""N-gram counts and weights of a batch, compared with plain Python."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from a2cap.model.self_critical.document_frequencies import InverseDocumentFrequencies
from a2cap.model.self_critical.ngrams import (
    END_OF_CAPTION,
    END_OF_REFERENCE,
    count_occurrences,
    ngram_exists,
)
from tests.model.kinds import refusal

SENTENCES = st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=1, max_size=4)


def batch(sentences, end, longest=8):
    """Pad sentences to (L, N) int32."""
    return torch.tensor(
        [[*sentence, *[end] * (longest - len(sentence))] for sentence in sentences],
        dtype=torch.int32,
    ).T


def ngrams(sentence, size):
    return [tuple(sentence[start : start + size]) for start in range(len(sentence) - size + 1)]


@pytest.mark.parametrize("xp", [torch, np])
@given(sentences=SENTENCES, other=st.lists(st.integers(0, 3), max_size=8))
def test_counts_equal_counting_each_ngram(xp, sentences, other):
    words = xp.asarray(batch(sentences, END_OF_CAPTION))
    others = xp.asarray(batch([other] * len(sentences), END_OF_REFERENCE))
    counted = list(zip(count_occurrences(xp, words, others), ngram_exists(words), strict=True))
    assert [len(counts) for counts, _ in counted] == [8, 7, 6, 5]
    for size, (counts, valid) in enumerate(counted, start=1):
        expected = Counter(ngrams(other, size))
        for column, sentence in enumerate(sentences):
            here = ngrams(sentence, size)
            assert valid[:, column].sum() == len(here)
            assert counts[: len(here), column].tolist() == [expected[ngram] for ngram in here]


def document_counts(documents):
    """Count the documents of each n-gram; documents: groups of sentences."""
    return Counter(
        ngram
        for group in documents
        for ngram in {n for s in group for size in (1, 2, 3, 4) for n in ngrams(s, size)}
    )


def table(counts, documents):
    """Return the weights of n-grams that are in so many of the documents."""
    rows = [[*ngram, *[-1] * (4 - len(ngram))] for ngram in counts]
    return InverseDocumentFrequencies(
        torch.tensor(rows, dtype=torch.int32).reshape(-1, 4),
        torch.tensor(list(counts.values()), dtype=torch.int32),
        documents=documents,
    )


@pytest.mark.slow
@given(st.lists(SENTENCES, min_size=1, max_size=4), SENTENCES)
def test_weights_are_log_inverse_document_frequencies(corpus, asked):
    counts = document_counts(corpus)
    weights = table(counts, len(corpus))(batch(asked, END_OF_CAPTION))
    for size, weight in enumerate(weights, start=1):
        for column, sentence in enumerate(asked):
            here = ngrams(sentence, size)
            expected = [math.log(len(corpus) / max(1, counts[ngram])) for ngram in here]
            assert weight[: len(here), column].tolist() == pytest.approx(expected)


def test_unknown_ngrams_have_the_weight_of_one_document():
    weights = table({(1,): 2, (1, 2): 1, (2,): 4}, 4)(torch.tensor([[1], [9], [2], [-1]]))
    assert next(weights).flatten().tolist() == pytest.approx(
        [math.log(2), math.log(4), 0, math.log(4)]
    )
    assert next(weights).flatten().tolist() == pytest.approx([math.log(4)] * 3)


def test_an_ngram_without_its_prefix_is_rejected():
    assert refusal(table, {(1, 2): 1, (2,): 4}, 4) == (
        "document frequencies lack the prefix of an n-gram; count them again"
    )


def test_zero_documents_are_rejected():
    message = refusal(table, {(1,): 1}, 0)
    assert message == "too few documents: 0; count over one image or more"
