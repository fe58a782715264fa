"""Decoding of batches: independence of other images, scores and settings."""

from dataclasses import replace

import pytest
import torch

from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.features.store import FeatureStore
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.config import ModelConfig
from a2cap.model.decoding.config import DecodingConfig
from a2cap.pipeline.captioning.decoding import Beam, caption_batches, collapse_repeats

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def store(experiment):
    return experiment.directory("extract") / "features.lmdb"


@pytest.fixture(scope="module")
def image_ids(store):
    """A dozen images with different numbers of regions."""
    return list(FeatureStore(store))[:12]


@pytest.fixture(scope="module")
def vocabulary(experiment):
    return Vocabulary.load(experiment.directory("preprocess") / "vocabulary.json")


@pytest.fixture(scope="module")
def captioner(store, vocabulary):
    """An untrained captioner with sharp predictions that differ between images."""
    torch.manual_seed(0)
    made = TransformerCaptioner(
        ModelConfig(width=32, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1),
        feature_width=FeatureStore(store).feature_width,
        vocabulary_size=len(vocabulary),
    ).eval()
    with torch.no_grad():
        made.decoder.output.weight.mul_(8)
    return made


@pytest.fixture(scope="module")
def decode(store, captioner, vocabulary):
    def decode(image_ids, *, batch_size=50, beam_size=3, max_length=8, **settings):
        batches = image_batches(store, image_ids, batch_size=batch_size)
        return list(
            caption_batches(
                captioner,
                batches,
                vocabulary,
                DecodingConfig(beam_size=beam_size, max_length=max_length, **settings),
                device=CPU,
            )
        )

    return decode


def captions(decoded):
    return [(image_id, [beam.caption for beam in beams]) for image_id, beams in decoded]


def test_the_test_images_differ_in_regions_and_captions(store, image_ids, decode):
    counts = {len(FeatureStore(store)[image_id]) for image_id in image_ids}
    assert len(counts) > 1
    assert len({beams[0].caption for _, beams in decode(image_ids)}) > 3


@pytest.mark.parametrize("beam_size", [1, 3])
def test_batched_captions_equal_single_ones(image_ids, decode, beam_size):
    together = decode(image_ids, beam_size=beam_size)
    alone = [decode([image_id], beam_size=beam_size)[0] for image_id in image_ids]
    assert captions(together) == captions(alone)
    scores = [[beam.score for _, beams in found for beam in beams] for found in (together, alone)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_images_come_in_the_order_of_the_batches(image_ids, decode):
    backwards = image_ids[::-1]
    assert [image_id for image_id, _ in decode(backwards, batch_size=5)] == backwards


def test_beams_are_ranked_and_different(image_ids, decode):
    for _, beams in decode(image_ids):
        scores = [beam.score for beam in beams]
        assert scores == sorted(scores, reverse=True)
        assert len({beam.caption for beam in beams}) == len(beams) == 3
        assert all(type(score) is float for score in scores)


def test_a_score_is_the_log_probability_of_the_caption(
    store, image_ids, decode, captioner, vocabulary
):
    """Check scores by teacher forcing, which has a separate code path."""
    [(_, beams)] = decode(image_ids[:1])
    [batch] = image_batches(store, image_ids[:1], batch_size=1)
    memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
    for beam in beams:
        tokens = [*vocabulary.encode(beam.caption.split())]
        ended = tokens if len(tokens) == 8 else [*tokens, captioner.special.eos]
        scored = captioner.score(memory, torch.tensor([[ended]])).log_probs.sum().item()
        assert beam.score == pytest.approx(scored, abs=1e-4)


def test_captions_are_words_without_special_tokens(image_ids, decode, vocabulary):
    words = {word for _, beams in decode(image_ids) for word in beams[0].caption.split()}
    assert words
    assert words <= set(vocabulary.words[4:])


def test_captions_have_at_most_the_maximum_length(image_ids, decode):
    lengths = [len(b.caption.split()) for _, bs in decode(image_ids, max_length=3) for b in bs]
    assert max(lengths) <= 3


def test_repeated_words_can_be_collapsed(image_ids, decode):
    assert collapse_repeats("a a dog runs runs runs a") == "a dog runs a"
    assert collapse_repeats("") == ""
    plain, collapsed = decode(image_ids), decode(image_ids, collapse_repeats=True)
    assert [
        (image_id, [replace(beam, caption=collapse_repeats(beam.caption)) for beam in beams])
        for image_id, beams in plain
    ] == collapsed
    assert captions(plain) != captions(collapsed)


def test_a_length_penalty_ranks_by_the_mean(image_ids, decode):
    [(_, plain)] = decode(image_ids[:1], beam_size=1, max_length=4)
    [(_, mean)] = decode(image_ids[:1], beam_size=1, max_length=4, length_penalty=1.0)
    assert mean[0].caption == plain[0].caption
    length = min(len(plain[0].caption.split()) + 1, 4)
    assert mean[0] == replace(plain[0], score=pytest.approx(plain[0].score / length))


def test_blocked_trigrams_do_not_repeat(image_ids, decode):
    plain = decode(image_ids, max_length=20)
    assert any(repeats(beam.caption.split(), 3) for _, beams in plain for beam in beams)
    blocked = decode(image_ids, max_length=20, no_repeat_ngram=3)
    assert not any(repeats(beam.caption.split(), 3) for _, beams in blocked for beam in beams)


def repeats(words, length):
    runs = [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
    return len(set(runs)) < len(runs)


def test_diverse_groups_start_with_different_words(image_ids, decode):
    found = decode(image_ids, beam_size=4, groups=4, diversity=1e3)
    assert all(
        len({(beam.caption.split() or [""])[0] for beam in beams}) == 4 for _, beams in found
    )


def test_decoding_is_lazy(captioner, vocabulary):
    def broken():
        raise RuntimeError("read too early")
        yield

    found = caption_batches(captioner, broken(), vocabulary, DecodingConfig(), device=CPU)
    with pytest.raises(RuntimeError, match="read too early"):
        next(found)


def test_decoding_leaves_gradients_enabled(image_ids, decode, captioner, store):
    decode(image_ids[:2])
    assert torch.is_grad_enabled()
    [batch] = image_batches(store, image_ids[:2], batch_size=2)
    assert captioner.encode(batch.features, batch.boxes, batch.region_mask).states.requires_grad


def test_a_beam_is_a_value():
    assert Beam("a dog", -1.0) == Beam("a dog", -1.0)
