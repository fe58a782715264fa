"""Decoding of batches: independence of other images, scores and settings."""

from dataclasses import replace
from operator import attrgetter

import pytest
import torch

from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.pipeline.captioning.decoding import Beam, caption_batches, collapse_repeats
from tests.kernels import Casts
from tests.quick import some_quick

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def image_ids(store):
    """A dozen images with different numbers of regions."""
    return list(store)[:12]


@pytest.fixture(scope="module")
def vocabulary(trained):
    return Vocabulary.load(trained / "vocabulary.json")


@pytest.fixture(scope="module")
def captioner(store, vocabulary):
    """An untrained captioner with sharp predictions that differ between images."""
    torch.manual_seed(0)
    made = TransformerCaptioner(
        TransformerConfig(width=32, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1),
        feature_width=store.feature_width,
        vocabulary_size=len(vocabulary),
    ).eval()
    with torch.no_grad():
        made.decoder.output.weight.mul_(8)
    return made


@pytest.fixture(scope="module")
def decoded(decode, captioner, vocabulary):
    def run(image_ids, *, beam_size=3, **options):
        return decode(captioner, vocabulary, image_ids=image_ids, beam_size=beam_size, **options)

    return run


def captions(decoded):
    return [(image_id, [beam.caption for beam in beams]) for image_id, beams in decoded]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 3},
        {"length_penalty": 1.0},
        {"max_length": 20, "no_repeat_ngram": 3},
        {"beam_size": 4, "groups": 4, "diversity": 1e3},
    ],
)
def test_captions_and_scores_are_those_of_the_configured_search(
    store, image_ids, decoded, captioner, vocabulary, settings
):
    [batch] = image_batches(store.path, image_ids, batch_size=12)
    memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
    config = DecodingConfig(**{"beam_size": 3, "max_length": 8, **settings})
    assert decoded(image_ids, **settings) == [
        (image_id, [Beam(vocabulary.decode(h.tokens), h.score) for h in hypotheses])
        for image_id, hypotheses in zip(
            image_ids, beam_search(captioner, memory, config), strict=True
        )
    ]
    assert captions(decoded(image_ids, **settings)) != captions(decoded(image_ids))


@pytest.mark.parametrize("beam_size", some_quick((1, 3), 3))
def test_batched_captions_equal_single_ones(store, image_ids, decoded, beam_size):
    together = decoded(image_ids, beam_size=beam_size)
    alone = [decoded([image_id], beam_size=beam_size)[0] for image_id in image_ids]
    assert captions(together) == captions(alone)
    assert len({beams[0].caption for _, beams in together}) > 3
    assert len({len(store[image_id]) for image_id in image_ids}) > 1
    scores = [[beam.score for _, beams in lines for beam in beams] for lines in (together, alone)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("has_another", [True, False])
def test_an_empty_caption_comes_after_the_others_and_is_counted(
    image_ids, decoded, captioner, caplog, has_another
):
    plain = decoded(image_ids)
    with torch.no_grad():
        # the end at once is likeliest; other first tokens remain for the other beams
        before = captioner.decoder.output.bias.clone()
        captioner.decoder.output.bias[2] += 60.0
        beams_of_images = decoded(image_ids, beam_size=3 if has_another else 1)
        captioner.decoder.output.bias.copy_(before)
    assert plain == decoded(image_ids)
    firsts = [beams[0].caption for _, beams in beams_of_images]
    lasts = [beams[-1].caption for _, beams in beams_of_images]
    assert all(firsts) == has_another
    assert not any(lasts)
    named = ", ".join(image_ids[:5])
    assert caplog.messages == [
        "the best caption of 12 images is empty, the next beam that is not is taken: "
        f"{named} and 7 more"
    ]


def test_repeated_words_can_be_collapsed(image_ids, decoded):
    assert collapse_repeats("a a dog runs runs runs a") == "a dog runs a"
    assert collapse_repeats("") == ""
    plain, collapsed = decoded(image_ids), decoded(image_ids, collapse_repeats=True)
    assert [
        (image_id, [replace(beam, caption=collapse_repeats(beam.caption)) for beam in beams])
        for image_id, beams in plain
    ] == collapsed
    assert captions(plain) != captions(collapsed)


@pytest.mark.parametrize("method", ["beam-search", "sampling"])
def test_consensus_orders_the_same_captions_by_agreement(image_ids, decoded, method):
    how = {"beam_size": 6, "method": method}
    plain, agreed = (decoded(image_ids, consensus=on, **how) for on in (False, True))
    key = attrgetter("caption", "score")
    assert [(name, sorted(beams, key=key)) for name, beams in plain] == [
        (name, sorted(beams, key=key)) for name, beams in agreed
    ]
    assert captions(plain) != captions(agreed)


def test_votes_decide_where_the_consensus_asks_for_them(image_ids, decoded):
    asked = []

    def last_wins(image_id, hypotheses):
        asked.append(image_id)
        return 100 * torch.arange(len(hypotheses))

    plain = decoded(image_ids, beam_size=4)
    assert decoded(image_ids, beam_size=4, vote=last_wins) == plain and not asked
    voted = decoded(image_ids, beam_size=4, consensus=True, vote=last_wins)
    assert voted == [(image_id, beams[::-1]) for image_id, beams in plain]
    assert asked == list(image_ids)


@pytest.fixture
def small_gpu(captioner, monkeypatch):
    """Let the captioner have memory for so many images."""

    def limit(most):
        encode = captioner.encode

        def encode_few(features, *others):
            if len(features) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return encode(features, *others)

        monkeypatch.setattr(captioner, "encode", encode_few)

    return limit


def test_without_memory_for_a_batch_halves_of_it_are_captioned(
    image_ids, decoded, small_gpu, caplog
):
    expected = decoded(image_ids)
    small_gpu(3)
    assert captions(decoded(image_ids)) == captions(expected)
    assert caplog.messages == [
        f"out of memory with {count} images at once; captioning {half} at a time; begin so with a "
        f"batch size of {half}"
        for count, half in ((12, 6), (6, 3))
    ]


def test_without_memory_for_one_image_captioning_ends_with_one_line(image_ids, decoded, small_gpu):
    small_gpu(0)
    with pytest.raises(A2Error) as error:
        decoded(image_ids[:2])
    assert str(error.value) == (
        "out of memory with one image on cpu; lower beam_size, or use a larger GPU"
    )


def test_decoding_is_lazy(captioner, vocabulary):
    def broken():
        raise RuntimeError("read too early")
        yield

    batches = caption_batches(captioner, broken(), vocabulary, DecodingConfig(), device=CPU)
    with pytest.raises(RuntimeError, match="read too early"):
        next(batches)


def test_bfloat16_casts_each_weight_once_for_all_batches(captioner, decoded, image_ids):
    weights = [m.weight for m in captioner.modules() if isinstance(m, torch.nn.Linear)]
    with Casts() as casts:
        assert len(decoded(image_ids, batch_size=5, precision="bf16")) == len(image_ids)
    assert {casts.counts[weight.data_ptr()] for weight in weights} == {1}


def test_bfloat16_rounds_the_scores_and_leaves_the_captioner_as_it_was(decoded, image_ids):
    exact, rounded, again = (
        decoded(image_ids, beam_size=1, precision=precision)
        for precision in ("fp32", "bf16", "fp32")
    )
    assert again == exact
    assert rounded != exact
    for (_, (expected,)), (_, (beam,)) in zip(exact, rounded, strict=True):
        if beam.caption == expected.caption:
            assert beam.score == pytest.approx(expected.score, rel=0.05)
    alike = [
        line
        for line, line_rounded in zip(exact, rounded, strict=True)
        if line[1][0].caption == line_rounded[1][0].caption
    ]
    assert len(alike) > len(exact) / 2
