"""The order by consensus against CIDEr-D in plain Python."""

import math
from collections import Counter

import pytest
import torch

from a2cap.model.decoding.beam_search import Hypothesis
from a2cap.model.self_critical.consensus import by_consensus, mean_similarities

EOS = 2


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def similarity(caption, other):
    """CIDEr-D of one caption with another (Vedantam et al. 2015), all n-grams of weight 1."""
    total = 0.0
    for n in range(1, 5):
        own, its = grams(caption, n), grams(other, n)
        norms = [math.sqrt(sum(count**2 for count in counts.values())) for counts in (own, its)]
        if all(norms):
            shared = sum(min(count, its[gram]) * its[gram] for gram, count in own.items())
            total += shared / norms[0] / norms[1]
    difference = max(len(caption) - 1, 0) - max(len(other) - 1, 0)
    return 10 / 4 * total * math.exp(-(difference**2) / 72)


def test_similarities_are_cider_d_of_all_pairs():
    generator = torch.Generator().manual_seed(0)
    captions = [
        torch.randint(3, 7, (length,), generator=generator).tolist()
        for length in (1, 2, 3, 5, 8, 8, 13, 0)
    ]
    expected = [sum(similarity(a, b) for b in captions) / len(captions) for a in captions]
    assert mean_similarities(captions).tolist() == pytest.approx(expected, abs=1e-12)


def test_captions_that_agree_most_come_first_and_equals_keep_their_order():
    texts = [(9, 8, 7, 6, EOS), (3, 4, 5, 6, EOS), (3, 4, 5, 7, EOS), (3, 4, 5, 6), (EOS,)]
    given = [Hypothesis(tokens, -number, -number) for number, tokens in enumerate(texts)]
    # the second and the fourth are the same words
    assert [hypothesis.tokens for hypothesis in by_consensus(given, eos=EOS)] == [
        texts[number] for number in (1, 3, 2, 0, 4)
    ]
    pair = [Hypothesis(tokens, 0, 0) for tokens in ((3, EOS), (3, 3, 3, 3, 4, EOS))]
    for few in ([], pair, pair[::-1]):  # of which none agrees more
        assert by_consensus(few, eos=EOS) == few


def test_votes_are_added_to_the_agreement():
    texts = [(3, 4, 5, 6, EOS), (3, 4, 5, 7, EOS), (3, 4, 5, 6, EOS), (9, 8, EOS)]
    given = [Hypothesis(tokens, -number, -number) for number, tokens in enumerate(texts)]
    agreement = mean_similarities([tokens[:-1] for tokens in texts])
    for votes in ([0, 0, 0, 0], [0, 1.5, 0, 0], [0, 0, 1, 9]):
        gains = (agreement + torch.tensor(votes)).tolist()
        expected = sorted(given, key=lambda caption: -gains[given.index(caption)])
        assert by_consensus(given, eos=EOS, votes=torch.tensor(votes)) == expected
    assert by_consensus(given[:2], eos=EOS, votes=torch.tensor([0, 1])) == given[1::-1]
