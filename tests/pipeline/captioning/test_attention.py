"""Attention at the words of captions, and their grounding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from a2cap.data.batches.loader import image_batches
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import trace_attention
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.pipeline.captioning.attention import attention_of_captions, certify_captions
from a2cap.pipeline.captioning.saved_captioner import load_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(trained):
    return load_model(trained, device=CPU)


@pytest.fixture(scope="module")
def captions(store, model):
    """Captions of one, three and no words, of images with different numbers of regions."""
    words = model.vocabulary.words[4:7]
    return dict(zip(list(store)[:4], [words[0], " ".join(words), "", words[2]], strict=True))


def attended(captioner, store, captions, model, *, batch_size=50):
    batches = image_batches(store.path, list(captions), batch_size=batch_size)
    words = model.vocabulary
    attention = attention_of_captions(captioner, batches, captions, words, device=CPU, layers=True)
    return dict(attention)


@pytest.fixture(scope="module")
def maps(model, store, captions):
    """The attention at the captions, computed in one batch."""
    return attended(model.captioner, store, captions, model)


def test_attention_has_a_row_per_word_and_a_column_per_region(maps, model, store, captions):
    assert list(maps) == list(captions)
    for image_id, attention in maps.items():
        shape = (len(captions[image_id].split()), len(store[image_id]))
        assert attention.original.shape == attention.aligned.shape == attention.keep.shape == shape
        assert attention.gate.shape == shape[:1]
        np.testing.assert_allclose(attention.original.sum(axis=1), 1, rtol=1e-5)
        assert ((attention.keep > 0) & (attention.keep < 1)).all()
        assert (attention.aligned >= attention.original).all()
        for field in ("original", "aligned", "keep", "gate"):
            layers = [getattr(layer, field) for layer in attention.layers]
            assert {len(layer) for layer in layers} == {model.description.model.heads}
            mean = np.mean(layers, axis=(0, 1))
            np.testing.assert_allclose(getattr(attention, field), mean, atol=1e-6)


def test_batches_do_not_change_the_attention(maps, model, store, captions):
    alone = attended(model.captioner, store, captions, model, batch_size=1)
    for image_id, attention in maps.items():
        for field in ("original", "aligned", "keep", "gate"):
            other = getattr(alone[image_id], field)
            np.testing.assert_allclose(getattr(attention, field), other, atol=1e-5)


def test_a_certificate_is_the_probability_without_the_region_attended_to_most(
    maps, model, store, captions
):
    batches = image_batches(store.path, list(captions), batch_size=50)
    certified = dict(
        certify_captions(model.captioner, batches, captions, maps.get, model.vocabulary, device=CPU)
    )
    assert list(certified) == [name for name, caption in captions.items() if caption]
    for image_id, rows in certified.items():
        own = maps[image_id]
        [batch] = image_batches(store.path, [image_id], batch_size=1)
        tokens = torch.tensor([[model.vocabulary.encode(captions[image_id].split())]])
        for position, row in enumerate(rows):
            for kind, probability in zip((None, own.original, own.aligned), row, strict=True):
                kept = list(range(len(store[image_id])))
                if kind is not None:
                    kept.remove(int(kind[position].argmax()))
                there = torch.ones(1, len(kept), dtype=torch.bool)
                memory = model.captioner.encode(
                    batch.features[:, kept], batch.boxes[:, kept], there
                )
                log_probs = model.captioner.score(memory, tokens).log_probs
                assert probability == pytest.approx(
                    log_probs[0, 0, position].exp().item(), rel=1e-4
                )


def test_attention_equals_the_captioners_at_each_word(maps, model, store, captions):
    image_id = list(captions)[1]
    [batch] = image_batches(store.path, [image_id], batch_size=1)
    memory = model.captioner.encode(batch.features, batch.boxes, batch.region_mask)
    tokens = torch.tensor([model.vocabulary.encode(captions[image_id].split())])
    steps = trace_attention(model.captioner, memory, tokens)
    for position, step in enumerate(steps):
        np.testing.assert_allclose(maps[image_id].aligned[position], step.aligned[0], atol=1e-5)
        np.testing.assert_allclose(maps[image_id].gate[position], step.gate[0, 0], atol=1e-5)


def test_a_captioner_without_alignment_has_only_original_attention(model, store, captions):
    plain = model.description.model.model_copy(update={"alignment": AlignmentConfig(fusion="none")})
    captioner = TransformerCaptioner(
        plain, feature_width=model.description.region_width, vocabulary_size=len(model.vocabulary)
    ).eval()
    for attention in attended(captioner, store, captions, model).values():
        assert attention.keep is None
        assert attention.gate is None
        assert (attention.aligned == attention.original).all()


def test_a_captioner_without_attention_has_none(model, store, captions):
    class Blind:
        special = model.captioner.special
        encode = model.captioner.encode
        start = model.captioner.start

        def step(self, tokens, state, *, attention=False):
            return replace(model.captioner.step(tokens, state), attention=None)

    assert attended(Blind(), store, captions, model) == {}
