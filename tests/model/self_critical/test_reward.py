"""CIDEr-D and BLEU-4 of a batch, compared with coco-caption."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu_scorer import BleuScorer

from a2cap.model.self_critical.reward import CaptionReward, ReferenceTokens
from tests.cider_of_coco import cider_of_coco
from tests.model.kinds import refusal
from tests.model.self_critical.test_ngrams import document_counts, table

PAD, EOS, UNK = 0, 2, 3
SENTENCE = st.lists(st.integers(3, 9), max_size=9)
REFERENCE = st.lists(st.integers(4, 11), max_size=12)
CORPUS = st.lists(st.lists(REFERENCE, min_size=1, max_size=5), min_size=1, max_size=5)


def text(sentence):
    # <unk> of a caption matches no token of a reference
    return " ".join("<unk>" if word == UNK else str(word) for word in sentence)


def weights_of(documents):
    """Return the weights of documents, groups of sentences."""
    return table(document_counts(documents), len(documents))


def captions(rows, longest):
    """Pad captions to (B, K, L) int64 of tokens, <eos>, <pad>."""
    return torch.tensor(
        [[[*c, EOS, *[PAD] * (longest - len(c))][:longest] for c in row] for row in rows]
    )


def texts(sentences):
    return [text(sentence) for sentence in sentences]


def cider_d(pairs, documents):
    """Score (caption, references) by coco-caption with the frequencies of other documents."""
    images = [(text(caption), texts(references)) for caption, references in pairs]
    return cider_of_coco(images, [texts(group) for group in documents])


def bleu_4(pairs):
    scorer = BleuScorer()
    for caption, references in pairs:
        scorer += (text(caption), texts(references))
    return scorer.compute_score(option="closest", verbose=0)[1][3]


@pytest.mark.slow
@settings(deadline=None)
@given(CORPUS, st.data(), st.booleans(), st.booleans())
def test_rewards_equal_coco_caption(corpus, data, eos, by_caption):
    assume(any(sentence for group in corpus for sentence in group))
    rows = data.draw(
        st.lists(
            st.lists(SENTENCE, min_size=2, max_size=2), min_size=len(corpus), max_size=len(corpus)
        )
    )
    end = [EOS] if eos else []
    ended = [[[*sentence, *end] for sentence in group] for group in corpus]
    documents = [[s] for group in ended for s in group] if by_caption else ended
    pairs = [
        ([*caption, *end], group) for row, group in zip(rows, ended, strict=True) for caption in row
    ]
    everything = captions(rows, 10)
    images = torch.arange(len(corpus))
    frequencies = weights_of(documents)
    plain = CaptionReward(frequencies, ReferenceTokens.from_sentences(corpus), eos=eos)(
        images, everything
    )
    assert plain.shape == (len(corpus), 2)
    assert plain.dtype == torch.float64
    expected = np.array(cider_d(pairs, documents))
    np.testing.assert_allclose(plain.flatten(), expected, atol=1e-9)
    mixed = CaptionReward(
        frequencies, ReferenceTokens.from_sentences(corpus), eos=eos, bleu_weight=0.5
    )
    if all(caption and all(group) for caption, group in pairs):
        np.testing.assert_allclose(
            mixed(images, everything).flatten(), expected + 0.5 * np.array(bleu_4(pairs)), atol=1e-9
        )


def test_a_caption_equal_to_its_only_reference_has_reward_ten():
    corpus = [[[4, 5, 6, 7, 8]], [[9, 10]]]
    reward = CaptionReward(weights_of(corpus), ReferenceTokens.from_sentences(corpus), eos=False)
    rewards = reward(torch.tensor([0]), captions([[[4, 5, 6, 7, 8], [9, 10], []]], 6))
    assert rewards.tolist() == [[pytest.approx(10), 0, 0]]


def test_a_missing_end_lowers_the_reward_only_with_eos():
    corpus = [[[4, 5, 6]], [[7, 8]]]
    whole = torch.tensor([[[4, 5, 6, EOS], [4, 5, 6, PAD]]])
    for eos in (False, True):
        documents = [[[*s, EOS] for s in group] for group in corpus] if eos else corpus
        reward = CaptionReward(
            weights_of(documents), ReferenceTokens.from_sentences(corpus), eos=eos
        )
        ended, cut = reward(torch.tensor([0]), whole)[0].tolist()
        assert (ended > cut) == eos
        assert (ended == cut) == (not eos)


def test_images_may_come_in_any_order():
    corpus = [[[4, 5]], [[6, 7], [8, 9, 4]], [[5, 5, 5, 6]]]
    reward = CaptionReward(weights_of(corpus), ReferenceTokens.from_sentences(corpus), eos=False)
    candidates = [[[6, 7]], [[8, 9]], [[5, 5]]]
    together = reward(torch.arange(3), captions(candidates, 5))
    order = torch.tensor([2, 0, 1])
    assert torch.equal(reward(order, captions(candidates, 5)[order]), together[order])
    alone = [reward(torch.tensor([b]), captions([candidates[b]], 5)) for b in range(3)]
    assert torch.allclose(torch.cat(alone), together)


def test_counts_above_255_are_correct():
    corpus = [[[4] * 400], [[5]]]
    reward = CaptionReward(weights_of(corpus), ReferenceTokens.from_sentences(corpus), eos=False)
    rewards = reward(torch.tensor([0]), captions([[[4] * 300]], 301))
    assert rewards.item() == pytest.approx(cider_d([([4] * 300, corpus[0])], corpus)[0])


def test_empty_references_are_rejected():
    none, weights = ReferenceTokens.from_sentences([[[]], [[], []]]), weights_of([[[4]]])
    message = refusal(CaptionReward, weights, none, eos=True)
    assert message == "all references are empty; give each image captions"
