"""BLEU, CIDEr and ROUGE-L equal pycocoevalcap 1.2 for any captions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.pipeline.metrics import cider
from a2cap.pipeline.metrics.bleu import COLUMNS, bleu_statistics, bleu_values
from a2cap.pipeline.metrics.cider import CorpusFrequencies, cider_values, coco_frequencies
from a2cap.pipeline.metrics.ngrams import count_pairs
from a2cap.pipeline.metrics.pycocoevalcap import coco_captions
from a2cap.pipeline.metrics.rouge import rouge_values
from a2cap.pipeline.metrics.tokenization import tokenize
from tests.cider_of_coco import cider_of_coco

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


@given(IMAGES)
def test_bleu_equals_that_of_pycocoevalcap(images):
    from pycocoevalcap.bleu.bleu import Bleu

    candidates, references, hypotheses, targets = both_sides(images)
    overall, values = Bleu(4).compute_score(targets, hypotheses, verbose=0)
    statistics = bleu_statistics(count_pairs(candidates, references))
    assert statistics.shape == (len(images), len(COLUMNS))
    assert bleu_values(statistics.sum(axis=0)) == pytest.approx(overall, **EQUAL)
    assert pytest.approx(np.array(values), **EQUAL) == bleu_values(statistics).T


@given(IMAGES)
def test_cider_equals_that_of_pycocoevalcap(images):
    from pycocoevalcap.cider.cider import Cider

    candidates, references, hypotheses, targets = both_sides(images)
    if not any(reference.split() for group in references for reference in group):
        return  # pycocoevalcap fails without any word in the references
    _, values = Cider().compute_score(targets, hypotheses)
    frequencies = CorpusFrequencies.count(references)
    ours = cider_values(count_pairs(candidates, references), frequencies)
    assert ours == pytest.approx(values, **EQUAL)


@pytest.mark.slow
@given(IMAGES, st.lists(st.lists(CAPTION, max_size=3), min_size=1, max_size=6))
def test_cider_with_frequencies_of_a_corpus_equals_that_of_pycocoevalcap(images, corpus):
    candidates, references, *_ = both_sides(images)
    counted = CorpusFrequencies.count(corpus)
    loaded = CorpusFrequencies.from_bytes(counted.to_bytes())
    ours = cider_values(count_pairs(candidates, references), loaded)
    assert ours == pytest.approx(cider_of_coco(images, corpus), **EQUAL)


def test_frequencies_of_coco_are_counted_once(monkeypatch, tmp_path):
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    reads = []

    def captions(part):
        reads.append(part)
        return {1: ["A dog runs.", "A dog."], 2: ["The dog!"], 3: ["a cat"]}

    monkeypatch.setattr(cider, "coco_captions", captions)
    coco_frequencies.cache_clear()
    first = coco_frequencies()
    coco_frequencies.cache_clear()
    second = coco_frequencies()
    coco_frequencies.cache_clear()
    assert reads == ["train"]
    for frequencies in (first, second):
        assert (frequencies.documents, frequencies.words) == (3, ["a", "dog"])
        # "a dog" is in captions of one image, so it is left out
        assert [counts.tolist() for counts in frequencies.counts] == [[2, 2, 1], [1], [1], [1]]
    weights = next(first.weights(np.array([[0, 1, 2, -1]]).T))
    assert weights[:, 0] == pytest.approx(np.log([3 / 2, 3 / 2, 3, 3]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_frequencies_of_coco_equal_those_of_pycocoevalcap(monkeypatch, users_cache):
    monkeypatch.setenv("A2_CACHE", str(users_cache))  # counted by an earlier run or now
    coco_frequencies.cache_clear()
    counted = coco_frequencies()
    coco_frequencies.cache_clear()
    captions = coco_captions("train")
    assert counted.documents == len(captions) == 82_783
    tokens = [tokenize({"": group})[""] for group in captions.values()]
    chosen = [(group[0], group[1:]) for group in tokens[:50]]
    pair = count_pairs([first for first, _ in chosen], [rest for _, rest in chosen])
    assert cider_values(pair, counted) == pytest.approx(cider_of_coco(chosen, tokens), **EQUAL)


@given(IMAGES)
def test_rouge_equals_that_of_pycocoevalcap(images):
    from pycocoevalcap.rouge.rouge import Rouge

    candidates, references, hypotheses, targets = both_sides(images)
    _, values = Rouge().compute_score(targets, hypotheses)
    assert rouge_values(candidates, references) == pytest.approx(list(values), **EQUAL)


def test_captions_without_words_score_zero():
    pair = count_pairs(["", ""], [["", ""], [""]])
    assert bleu_values(bleu_statistics(pair)) == pytest.approx(np.zeros((2, 4)), abs=1e-3)
    assert cider_values(pair, CorpusFrequencies.count([[""], [""]])).tolist() == [0, 0]
