"""Caption statistics: vocabulary, lengths, repetition, and the diversity of beams."""

import numpy as np
import pytest

from a2cap.pipeline.metrics.caption_statistics import beam_diversity, caption_statistics

CAPTIONS = {"1": "a dog and a dog", "2": "a <unk> sits", "3": "a dog and a dog", "4": "dogs"}


def test_statistics_equal_those_counted_by_hand():
    assert caption_statistics([*CAPTIONS.values()]) == {
        "captions": 4,
        "vocabulary": 6,
        "words_mean": 3.5,
        "words_sd": pytest.approx(np.std([5, 3, 5, 1])),
        "words_min": 1,
        "words_max": 5,
        "distinct_1": 6 / 14,
        "distinct_2": 5 / 10,
        "distinct_3": 4 / 7,
        "distinct_captions": 3 / 4,
        "repetition": 2 / 10,  # "a dog" comes twice in two captions
        "unknown": 1 / 4,
    }


def test_captions_of_one_word_and_empty_ones_have_no_bigrams():
    stats = caption_statistics(["dog", ""])
    assert (stats["distinct_2"], stats["repetition"], stats["words_min"]) == (0, 0, 0)


REFERENCES = {"1": ["a dog", "two dogs run"], "2": ["a cat sits here"], "3": ["a bus"]}


def test_equal_beams_have_diversity_zero_and_disjoint_beams_one():
    beams = {"1": ["two dogs run"] * 3, "2": ["cat sits here", "one bus"], "3": ["a bus"]}
    diversity = beam_diversity(beams, REFERENCES)
    assert list(diversity) == ["1", "2"]  # one beam has no diversity
    assert diversity["1"] == pytest.approx(0, abs=1e-9)
    assert diversity["2"] == pytest.approx(1)


def test_diversity_equals_the_formula_of_the_paper():
    """Half of the unigrams of two beams are equal, and in the references of two images."""
    references = {"1": ["a dog", "dog"], "2": ["dogs", "dog"], "3": ["x"]}
    diversity = beam_diversity({"1": ["dog runs", "dog sits"], "2": [], "3": []}, references)["1"]
    rarity = {"dog": np.log(4 / 2), "runs": np.log(4), "sits": np.log(4)}
    first, second = (np.array([rarity[w], rarity["dog"]]) for w in ("runs", "sits"))
    cosine = first[1] * second[1] / np.linalg.norm(first) / np.linalg.norm(second)
    similarity = cosine / 2  # no bigram is common, and both orders have equal weight
    assert diversity == pytest.approx(-np.log((1 + similarity) / 2) / np.log(2))


def test_a_single_image_has_a_diversity_too():
    diversity = beam_diversity({"1": ["a dog", "a dog"]}, {"1": ["a dog"]})
    assert diversity["1"] == pytest.approx(0, abs=1e-9)
