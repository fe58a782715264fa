"""Recording and alignment of the cross-attention of each class of captioners of `transformers`."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

from tests.quick import some_quick

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.model.adapting.adapted_attention import recording  # noqa: E402
from a2cap.model.adapting.adapted_layers import adapt_layers  # noqa: E402
from a2cap.model.adapting.adapted_losses import adapted_losses  # noqa: E402
from a2cap.model.adapting.generation import generate_captions  # noqa: E402
from a2cap.model.alignment import mask_parameters  # noqa: E402
from a2cap.model.alignment_config import AlignmentConfig  # noqa: E402
from tests.model.adapting.captioners import BUILDERS, build, inputs, labelled, teacher  # noqa: E402
from tests.model.gradients import assert_each_side_learns  # noqa: E402
from tests.model.kinds import refusal  # noqa: E402

NONE, GATE = AlignmentConfig(fusion="none"), AlignmentConfig(fusion="gate")
# in the quick tests, one class of each mechanism
QUICK = ("gpt2", "blip")
EACH = pytest.mark.parametrize("name", some_quick(BUILDERS, *QUICK))
# a trained captioner predicts no padding and no second start
LENGTH = {"max_new_tokens": 7, "min_new_tokens": 4, "suppress_tokens": [0, 1]}


def logits(model, name, **options):
    with torch.no_grad():
        return model(**teacher(name, **options)).logits


@pytest.mark.parametrize("interface", ["sdpa", "eager"])
@EACH
def test_without_fusion_logits_and_captions_are_the_same_bit_for_bit(name, interface):
    model = build(name)
    if name not in ("blip", "trocr"):
        model.set_attn_implementation(interface)
    before, words = logits(model, name), model.generate(**inputs(name), **LENGTH, num_beams=3)
    adapt_layers(model, NONE)
    with recording():
        assert torch.equal(logits(model, name), before)
    layers = adapt_layers(model, NONE)
    captions = generate_captions(model, layers, inputs(name), **LENGTH, num_beams=3)
    assert torch.equal(model.generate(**inputs(name), **LENGTH, num_beams=3), words)
    for row, [caption] in zip(words.tolist(), captions, strict=True):
        assert list(caption.tokens) == [token for token in row[-7:] if token not in (0, 1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILDERS if not name.startswith("blip")])
def test_recorded_weights_are_those_of_the_eager_model(name):
    model = build(name)
    if name != "trocr":
        model.set_attn_implementation("eager")
    layers = adapt_layers(model, NONE)
    with recording() as recorded, torch.no_grad():
        output = model(**teacher(name), output_attentions=True)
    assert len(output.cross_attentions) == len(layers.images)
    for layer, weights in zip(layers.images, output.cross_attentions, strict=True):
        [record] = recorded.layers[layer]
        torch.testing.assert_close(record.original, weights, rtol=0, atol=1e-6)


@EACH
def test_open_masks_change_nothing(name):
    """With m = 1, max pooling of evidence and attention is the attention."""
    model = build(name)
    before = logits(model, name)
    adapt_layers(model, AlignmentConfig(fusion="max"))
    assert (logits(model, name) - before).abs().max() > 1e-3
    with torch.no_grad():
        for parameter in mask_parameters(model):
            if parameter.ndim == 1:
                parameter.fill_(100.0)
    torch.testing.assert_close(logits(model, name), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [{}, {"num_beams": 3, "num_return_sequences": 2}])
@EACH
def test_aligned_captions_are_the_same_with_a_cache_and_in_a_batch(name, way):
    model = build(name)
    layers = adapt_layers(model, GATE)
    together = generate_captions(model, layers, inputs(name), **LENGTH, **way)
    uncached = generate_captions(model, layers, inputs(name), **LENGTH, **way, use_cache=False)
    for image, (captions, others) in enumerate(zip(together, uncached, strict=True)):
        batch = {key: values[image : image + 1] for key, values in inputs(name).items()}
        [alone] = generate_captions(model, layers, batch, **LENGTH, **way)
        for other in (others, alone):
            assert [c.tokens for c in other] == [c.tokens for c in captions]
            assert [c.score for c in other] == pytest.approx([c.score for c in captions], abs=1e-4)
            for step, same in zip(other[0].steps, captions[0].steps, strict=True):
                torch.testing.assert_close(step.aligned, same.aligned, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert", "trocr", "florence2", "blip"])
def test_attention_of_a_beam_is_that_of_its_tokens(name):
    """Recorded while beams are reordered, and in one pass over the tokens of the best."""
    model = build(name)
    layers = adapt_layers(model, GATE)
    batch_of_images = inputs(name)
    captions = generate_captions(model, layers, batch_of_images, **LENGTH, num_beams=4)
    for image, [caption] in enumerate(captions):
        tokens = torch.tensor([[1, *caption.tokens]])
        batch = {key: values[image : image + 1] for key, values in batch_of_images.items()}
        text = {"input_ids" if name == "blip" else "decoder_input_ids": tokens}
        with recording() as recorded, torch.no_grad():
            log_probs = model(**batch, **text).logits.log_softmax(-1)
        count = len(caption.tokens)
        score = log_probs[0, range(count), caption.tokens].sum()
        ended = log_probs[0, count, 2] if count < LENGTH["max_new_tokens"] else 0
        assert caption.score == pytest.approx((score + ended).item(), abs=1e-4)
        cells = caption.steps[0].aligned.shape[-1]
        used = torch.stack([recorded.layers[layer][0].used for layer in layers.images])
        if name == "florence2":  # five states of the image, two of the prompt
            used = used[..., :5]
        expected = used.mean(dim=(0, 2))[0, :count, -cells:]
        aligned = torch.cat([step.aligned for step in caption.steps])
        torch.testing.assert_close(aligned, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_words_of_blip2_see_the_image_through_the_queries():
    model = build("blip2_opt")
    layers = adapt_layers(model, NONE)
    batch_of_images = inputs("blip2_opt", images=1)
    [[caption]] = generate_captions(model, layers, batch_of_images, **LENGTH)
    # independent: attention of the eager language model, times that of the Q-Former
    model.set_attn_implementation("eager")
    tokens = torch.cat((batch_of_images["input_ids"], torch.tensor([caption.tokens])), dim=1)
    plain = {**batch_of_images, "input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad(), recording() as recorded:
        states = model(**plain, output_attentions=True).language_model_outputs.attentions
    first = batch_of_images["input_ids"].shape[1] - 1
    share = torch.stack(states).mean(dim=(0, 2))[0, first : first + len(caption.tokens), :3]
    share = share / share.sum(dim=1, keepdim=True)
    of_queries = torch.stack([recorded.layers[i][0].original[0] for i in layers.images])
    expected = share @ of_queries.mean(dim=(0, 1))
    original = torch.cat([step.original for step in caption.steps])
    torch.testing.assert_close(original, expected, rtol=1e-3, atol=1e-5)


@EACH
def test_the_caption_loss_is_the_loss_of_the_model_and_each_loss_trains_one_side(name):
    model = build(name)
    layers = adapt_layers(model, GATE)
    batch = labelled(name)
    losses = adapted_losses(model, layers, GATE, batch, 0)
    if name != "blip":  # whose own loss smooths labels
        assert losses.caption.item() == pytest.approx(model(**batch).loss.item(), abs=1e-5)
    assert_each_side_learns(model, losses)
    assert 0 < float(losses.masks.keep) < 1


def test_a_plain_loss_of_others_gives_the_mask_network_no_gradient():
    model = build("gpt2")
    adapt_layers(model, GATE)
    model(**labelled("gpt2")).loss.backward()
    assert all(parameter.grad is None for parameter in mask_parameters(model))


def test_layers_can_be_chosen_and_the_decay_knows_its_step():
    model = build("bert")
    config = AlignmentConfig(fusion="decay", aligned_layers=(2,), decay_steps=10)
    layers = adapt_layers(model, config)
    with recording() as recorded:
        first = logits(model, "bert")
    assert [recorded.layers[layer][0].keep is None for layer in layers.images] == [True, False]
    adapted_losses(model, layers, config, labelled("bert"), 20)
    assert not torch.equal(logits(model, "bert"), first)
    assert [float(v) for k, v in model.state_dict().items() if "schedule_step" in k] == [20]


@pytest.mark.parametrize("name", some_quick(("gpt2", "blip"), "gpt2"))
def test_adapted_models_are_copied_pickled_and_run_in_threads(name):
    model = build(name)
    layers = adapt_layers(model, GATE)
    expected = logits(model, name)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(twin, name), expected)
    batches = [inputs(name, images) for images in (1, 3)]
    alone = [generate_captions(model, layers, batch, **LENGTH) for batch in batches]
    threaded = [None, None]

    def work(number):
        for _ in range(2):
            threaded[number] = generate_captions(model, layers, batches[number], **LENGTH)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for captions, others in zip(alone, threaded, strict=True):
        assert [c[0].tokens for c in captions] == [c[0].tokens for c in others]
        for step, other in zip(captions[0][0].steps, others[0][0].steps, strict=True):
            assert torch.equal(step.aligned, other.aligned)


class Strange(nn.Module):
    def __init__(self):
        super().__init__()
        self.crossattention = nn.ModuleDict({part: nn.Linear(4, 4) for part in "qkv"})


def test_a_model_that_cannot_be_adapted_is_refused():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes))
    text = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=9, n_embd=8, n_head=2))
    for model in (encoder, text):
        assert refusal(adapt_layers, model, NONE) == (
            f"no attention to an image in {type(model).__name__}; a2 adapts captioners whose "
            "decoder attends to the image, such as BLIP, LLaVA or VisionEncoderDecoderModel"
        )
    strange = Strange()
    for part, layer in strange.crossattention.items():
        setattr(strange.crossattention, part, layer)
    assert refusal(adapt_layers, strange, NONE) == (
        "cannot adapt ModuleDict: it does not use the attention interface of transformers; update "
        "transformers, or choose another model"
    )
    model = build("gpt2")
    third = AlignmentConfig(fusion="gate", aligned_layers=(1, 3))
    assert refusal(adapt_layers, model, third) == (
        "aligned_layers names layer 3, VisionEncoderDecoderModel has 2 cross-attentions to the "
        'image; choose "all" or layers from 1'
    )
    layers = adapt_layers(model, GATE)
    message = refusal(adapted_losses, model, layers, GATE, teacher("gpt2"), 0)
    assert message == "no labels to learn from; give labels=, as to the model's forward"
    model.decoder.transformer.gradient_checkpointing = True
    batch = labelled("gpt2")
    assert refusal(adapted_losses, model, layers, GATE, batch, 0) == (
        "gradient checkpointing is on, which computes a pass again after its end; turn it off"
    )
