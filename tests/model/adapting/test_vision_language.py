"""Attention of vision-language models to the image's tokens, recorded while they generate."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.model.adapting.adapted_attention import recording  # noqa: E402
from a2cap.model.adapting.adapted_layers import adapt_layers  # noqa: E402
from a2cap.model.adapting.generation import generate_captions  # noqa: E402
from a2cap.model.adapting.image_columns import image_columns  # noqa: E402
from a2cap.model.alignment_config import AlignmentConfig  # noqa: E402
from tests.model.adapting.vision_language import (  # noqa: E402
    BUILDERS,
    IMAGES,
    LENGTH,
    QUICK,
    build,
    inputs,
)
from tests.model.kinds import refusal  # noqa: E402
from tests.quick import some_quick  # noqa: E402

# PaliGemma's processor, with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
NONE = AlignmentConfig(fusion="none")
EACH = pytest.mark.parametrize("name", some_quick(BUILDERS, *QUICK))


@pytest.mark.parametrize("interface", ["sdpa", "eager"])
@EACH
def test_logits_and_captions_are_the_same_bit_for_bit(name, interface):
    small = build(name)
    model, given = small.model, inputs(small, IMAGES)
    if name != "git":  # which has no other
        model.set_attn_implementation(interface)
    start = {} if "input_ids" in given else {"input_ids": torch.ones(len(IMAGES), 1).long()}
    for way in ({}, {"num_beams": 3}):
        with torch.no_grad():
            logits = model(**given, **start).logits
            words = model.generate(**given, **LENGTH, **way)
        layers = adapt_layers(model, NONE)
        captions = generate_captions(model, layers, given, **LENGTH, **way)
        with torch.no_grad(), recording():
            assert torch.equal(model(**given, **start).logits, logits)
        assert torch.equal(model.generate(**given, **LENGTH, **way), words)
        for row, [caption] in zip(words.tolist(), captions, strict=True):
            last = row[-LENGTH["max_new_tokens"] :]
            assert list(caption.tokens) == [token for token in last if token not in (0, 1, 2)]


@EACH
def test_recorded_attention_is_that_of_the_eager_model_to_the_image(name):
    small = build(name)
    model, given = small.model, inputs(small, IMAGES)
    model.set_attn_implementation("eager")
    asked = {"output_attentions": True, "return_dict_in_generate": True}
    with torch.no_grad():
        output = model.generate(**given, **LENGTH, **asked)
    if name != "git":
        model.set_attn_implementation("sdpa")
    layers = adapt_layers(model, NONE)
    captions = generate_captions(model, layers, given, **LENGTH)
    columns = image_columns(model, given)
    for image, [caption] in enumerate(captions):
        assert len(columns[image]) > 8
        for number, step in enumerate(caption.steps):
            assert len(step.layers) == len(output.attentions[number]) == 2
            for layer, weights in zip(step.layers, output.attentions[number], strict=True):
                row = weights[image, :, -1]
                if row.shape[-1] <= columns[image].max():  # a sliding window
                    continue
                torch.testing.assert_close(
                    layer.original[0], row[:, columns[image]].float(), rtol=1e-4, atol=1e-6
                )


@EACH
def test_attention_is_the_same_without_a_cache_alone_and_in_beams(name):
    small = build(name)
    layers = adapt_layers(small.model, NONE)
    together = generate_captions(small.model, layers, inputs(small, IMAGES), **LENGTH)
    ways = ({"use_cache": False}, {"num_beams": 2, "num_return_sequences": 2})
    for image, [caption] in enumerate(together):
        batch = inputs(small, IMAGES[image : image + 1])
        [[alone]] = generate_captions(small.model, layers, batch, **LENGTH)
        [[uncached]] = generate_captions(small.model, layers, batch, **LENGTH, **ways[0])
        assert alone.tokens == uncached.tokens
        for step, same in zip(alone.steps, uncached.steps, strict=True):
            torch.testing.assert_close(step.original, same.original, rtol=1e-3, atol=1e-5)
        if alone.tokens == caption.tokens:  # a batch pads tiles, which may round otherwise
            for step, same in zip(alone.steps, caption.steps, strict=True):
                torch.testing.assert_close(step.original, same.original, rtol=1e-2, atol=1e-4)
        [beams] = generate_captions(small.model, layers, batch, **LENGTH, **ways[1])
        assert len(beams) == 2 and beams[0].score >= beams[1].score
        assert len(beams[0].steps) == len(beams[0].tokens) and beams[1].steps is None


def test_without_attention_nothing_is_recorded():
    small = build("llava")
    layers = adapt_layers(small.model, NONE)
    given = inputs(small, IMAGES)
    plain = generate_captions(small.model, layers, given, attention=False, **LENGTH)
    shown = generate_captions(small.model, layers, given, **LENGTH)
    assert [caption.tokens for [caption] in plain] == [caption.tokens for [caption] in shown]
    assert all(caption.steps is None for [caption] in plain)


def test_models_of_text_are_refused():
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}
    text = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    assert refusal(adapt_layers, text, NONE).startswith("no attention to an image in GPT2LMHead")
