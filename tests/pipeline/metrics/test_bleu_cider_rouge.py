"""BLEU, CIDEr and ROUGE-L equal pycocoevalcap 1.2 for any captions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.pipeline.metrics.bleu import COLUMNS, bleu_statistics, bleu_values
from a2cap.pipeline.metrics.cider import cider_values
from a2cap.pipeline.metrics.ngrams import count_pair
from a2cap.pipeline.metrics.rouge import longest_common_subsequence, rouge_values

EQUAL = {"rel": 1e-12, "abs": 1e-12}

# Words recur, so that n-grams match; one contains a no-break space, where only some scorers split.
CAPTION = st.lists(st.sampled_from(["a", "b", "dog", "1\u00a01/2"]), max_size=9).map(" ".join)
IMAGE = st.tuples(CAPTION, st.lists(CAPTION, min_size=1, max_size=4))
IMAGES = st.lists(IMAGE, min_size=1, max_size=6)


def both_sides(images):
    """Return a2's lists and pycocoevalcap's dictionaries."""
    candidates, references = map(list, zip(*images, strict=True))
    names = [str(index) for index in range(len(images))]
    targets = dict(zip(names, references, strict=True))
    return candidates, references, {n: [c] for n, c in zip(names, candidates, strict=True)}, targets


@pytest.mark.slow
@given(IMAGES)
def test_bleu_equals_that_of_pycocoevalcap(images):
    from pycocoevalcap.bleu.bleu import Bleu

    candidates, references, hypotheses, targets = both_sides(images)
    overall, values = Bleu(4).compute_score(targets, hypotheses, verbose=0)
    statistics = bleu_statistics(count_pair(candidates, references))
    assert statistics.shape == (len(images), len(COLUMNS))
    assert bleu_values(statistics.sum(axis=0)) == pytest.approx(overall, **EQUAL)
    assert pytest.approx(np.array(values), **EQUAL) == bleu_values(statistics).T


@pytest.mark.slow
@given(IMAGES)
def test_cider_equals_that_of_pycocoevalcap(images):
    from pycocoevalcap.cider.cider import Cider

    candidates, references, hypotheses, targets = both_sides(images)
    if not any(reference.split() for group in references for reference in group):
        return  # pycocoevalcap fails without any word in the references
    _, values = Cider().compute_score(targets, hypotheses)
    assert cider_values(count_pair(candidates, references)) == pytest.approx(values, **EQUAL)


@pytest.mark.slow
@given(IMAGES)
def test_rouge_equals_that_of_pycocoevalcap(images):
    from pycocoevalcap.rouge.rouge import Rouge

    candidates, references, hypotheses, targets = both_sides(images)
    _, values = Rouge().compute_score(targets, hypotheses)
    assert rouge_values(candidates, references) == pytest.approx(list(values), **EQUAL)


def test_captions_without_words_score_zero():
    pair = count_pair(["", ""], [["", ""], [""]])
    assert bleu_values(bleu_statistics(pair)) == pytest.approx(np.zeros((2, 4)), abs=1e-3)
    assert cider_values(pair).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [("a b c", "a b c", 3), ("a b c", "c b a", 1), ("a x b y c", "a b c", 3), ("a a", "a", 1)],
)
def test_a_common_subsequence_keeps_the_order_but_may_have_gaps(one, other, length):
    positions: dict[str, int] = {}
    for index, word in enumerate(one.split()):
        positions[word] = positions.get(word, 0) | 1 << index
    assert longest_common_subsequence(positions, len(one.split()), other.split()) == length
