"""Sampled captions: distribution, reproducibility and greedy decoding."""

import pytest
import torch

from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.decoding.sampling import sample_captions, sample_tokens, sampled_hypotheses
from tests.model.kinds import refusal
from tests.model.searching import search

BOS, EOS, PAD = 1, 2, 0


def sample(captioner, memory, seed=0, **options):
    return sample_captions(
        captioner, memory, generator=torch.Generator().manual_seed(seed), **options
    )


def test_captions_are_tokens_then_eos_then_padding_and_the_global_rng_state_stays(tiny, images):
    captioner, before = tiny(), torch.get_rng_state()
    sampled = sample(captioner, images.encoded(captioner), count=40, max_length=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert sampled.shape[:2] == (3, 40)
    assert sampled.shape[2] <= 6
    assert sampled.dtype == torch.int64
    assert not (sampled == BOS).any()
    for caption in sampled.flatten(0, 1).tolist():
        words = caption[: caption.index(EOS)] if EOS in caption else caption
        assert PAD not in words
        assert set(caption[len(words) + 1 :]) <= {PAD}


def test_one_caption_of_20_tokens_is_sampled_unless_configured_otherwise(tiny, images):
    captioner = tiny()
    sampled = sample(captioner, images.encoded(captioner), forbidden=(EOS,))
    assert sampled.shape == (3, 1, 20)


@pytest.mark.slow
def test_a_low_temperature_is_nearly_greedy_and_a_high_one_nearly_uniform(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    greedy = sample_captions(captioner, memory, temperature=0)
    assert torch.equal(sample(captioner, memory, temperature=1e-4), greedy)
    sampled = sample(captioner, memory, count=6000, max_length=1, temperature=1e6)
    counts = torch.bincount(sampled.flatten(), minlength=captioner.vocabulary_size)
    assert counts[[PAD, BOS]].tolist() == [0, 0]
    assert counts[2:].min() > 0.9 * counts[2:].max()


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [1, 3, 12])
def test_temperature_zero_is_greedy_decoding(tiny, images, max_length):
    captioner = tiny()
    memory = images.encoded(captioner)
    drawn = sample_captions(captioner, memory, max_length=max_length, temperature=0)
    beams = search(captioner, memory, beam_size=1, max_length=max_length, forbidden=(PAD, BOS))
    for caption, (hypothesis,) in zip(drawn[:, 0].tolist(), beams, strict=True):
        padding = [PAD] * (len(caption) - len(hypothesis.tokens))
        assert caption == [*hypothesis.tokens, *padding]


def test_sampling_stops_when_all_captions_have_ended(tiny, images):
    captioner = tiny()
    with torch.no_grad():
        captioner.decoder.output.bias[EOS] = 50
    sampled = sample(captioner, images.encoded(captioner), count=4)
    assert sampled.tolist() == [[[EOS]] * 4] * 3


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.7}])
def test_only_the_most_probable_tokens_are_sampled(limits):
    log_probs = torch.tensor([0.02, 0.3, 0.1, 0.25, 0.2, 0.13]).log().repeat(3000, 1)
    counts = torch.bincount(
        sample_tokens(log_probs, generator=torch.Generator().manual_seed(0), **limits), minlength=6
    )
    # by probability: tokens 1, 3, 4 have .75 together, 1 and 3 only .55
    assert counts.nonzero().flatten().tolist() == [1, 3, 4]
    assert counts[1] / 3000 == pytest.approx(0.4, abs=0.03)


def test_the_only_token_of_a_single_row_is_the_most_probable():
    log_probs = torch.tensor([[0.3, 0.4, 0.3]]).log()
    assert {int(sample_tokens(log_probs, top_k=1)) for _ in range(20)} == {1}


def test_a_greedy_caption_is_decoded_beside_the_samples(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    sampled = sample(captioner, memory, count=2, max_length=6, greedy=True)
    for expected, captions in (
        (sample(captioner, memory, count=2, max_length=6), sampled[:, :2]),
        (sample(captioner, memory, count=1, max_length=6, temperature=0), sampled[:, 2:]),
    ):
        length = expected.shape[2]  # up to the end of the longest caption
        assert torch.equal(captions[..., :length], expected)
        assert not captions[..., length:].any()


def test_sampled_captions_have_their_log_probability_and_their_minimum_length(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    config = DecodingConfig(method="sampling", beam_size=4, min_length=3, max_length=6)
    hypotheses_of_images = sampled_hypotheses(captioner, memory, config)
    for number, hypotheses in enumerate(hypotheses_of_images):
        assert [hypothesis.score for hypothesis in hypotheses] == sorted(
            (hypothesis.log_prob for hypothesis in hypotheses), reverse=True
        )
        for hypothesis in hypotheses:
            assert len([token for token in hypothesis.tokens if token != EOS]) >= 3
            caption = torch.zeros(3, 1, len(hypothesis.tokens), dtype=torch.int64)
            caption[number, 0] = torch.tensor(hypothesis.tokens)
            scored = captioner.score(memory, caption).log_probs[number].sum().item()
            assert hypothesis.log_prob == pytest.approx(scored, abs=1e-9)


def test_beams_have_their_minimum_length(tiny, images):
    captioner = tiny()
    with torch.no_grad():
        captioner.decoder.output.bias[EOS] = 50
    memory = images.encoded(captioner)
    for minimum in (0, 4):
        searched = search(captioner, memory, beam_size=2, max_length=6, min_length=minimum)
        assert {len(beams[0].tokens) for beams in searched} == {minimum + 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "too few captions to sample: 0; choose 1 or more"),
        ({"max_length": 0}, "maximum caption length is too small: 0; choose 1 token or more"),
        ({"temperature": -1.0}, "temperature is negative: -1.0; choose 0 (greedy) or more"),
    ],
)
def test_values_out_of_range_are_rejected(tiny, images, options, message):
    captioner = tiny()
    assert refusal(sample_captions, captioner, images.encoded(captioner), **options) == message
