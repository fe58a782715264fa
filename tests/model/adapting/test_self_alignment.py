"""Self-attention of vision-language models to the image's tokens: recorded, and aligned."""

import numpy as np
import pytest
import torch
from PIL import Image

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.model.adapting.adapted_attention import recording  # noqa: E402
from a2cap.model.adapting.adapted_layers import adapt_layers  # noqa: E402
from a2cap.model.adapting.adapted_losses import adapted_losses  # noqa: E402
from a2cap.model.adapting.generation import generate_captions  # noqa: E402
from a2cap.model.adapting.image_columns import image_columns  # noqa: E402
from a2cap.model.alignment import mask_parameters  # noqa: E402
from a2cap.model.alignment_config import AlignmentConfig  # noqa: E402
from a2cap.model.attention.wrapped import alignment_pass  # noqa: E402
from tests.model.adapting.vision_language import (  # noqa: E402
    BUILDERS,
    IMAGE,
    IMAGES,
    LENGTH,
    QUICK,
    build,
    inputs,
    labelled,
    teacher,
)
from tests.model.gradients import assert_each_side_learns  # noqa: E402
from tests.model.kinds import refusal  # noqa: E402
from tests.model.transcription import sigmoid  # noqa: E402
from tests.quick import some_quick  # noqa: E402

# PaliGemma's processor, with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
NONE, GATE = AlignmentConfig(fusion="none"), AlignmentConfig(fusion="gate")
EACH = pytest.mark.parametrize("name", some_quick(BUILDERS, *QUICK))


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def open_masks(model):
    """Set all masks to exactly 1."""
    with torch.no_grad():
        for parameter in mask_parameters(model):
            parameter.fill_(100.0 if parameter.ndim == 1 else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["sdpa", "eager"])
@EACH
def test_masks_that_change_nothing_leave_logits_and_captions_bit_for_bit(name, interface):
    small = build(name)
    model, prompts = small.model, inputs(small, IMAGES)
    batch, _ = teacher(small, IMAGES)
    if name != "git":  # which has no other
        model.set_attn_implementation(interface)
    before = logits(model, batch)
    words = {beams: model.generate(**prompts, **LENGTH, num_beams=beams) for beams in (1, 2)}
    # the decay begins with the attention itself; max pooling with m = 1 has it; eta may be 0
    for fusion, beams in (("decay", 2), ("max", 2), ("moving", 2), ("none", 2), ("none", 1)):
        layers = adapt_layers(model, AlignmentConfig(fusion=fusion, moving_rate=0))
        if fusion == "max":
            assert not torch.equal(logits(model, batch), before)
            open_masks(model)
        assert torch.equal(logits(model, batch), before)
        with recording():
            assert torch.equal(logits(model, batch), before)
        captions = generate_captions(model, layers, prompts, **LENGTH, num_beams=beams)
        assert torch.equal(model.generate(**prompts, **LENGTH, num_beams=beams), words[beams])
        for row, [caption] in zip(words[beams].tolist(), captions, strict=True):
            last = row[-LENGTH["max_new_tokens"] :]
            assert list(caption.tokens) == [token for token in last if token not in (0, 1, 2)]
            for step in caption.steps:
                assert torch.equal(step.original, step.aligned)


@EACH
def test_recorded_attention_is_that_of_the_eager_model_to_the_image(name):
    small = build(name)
    model, prompts = small.model, inputs(small, IMAGES)
    model.set_attn_implementation("eager")
    asked = {"output_attentions": True, "return_dict_in_generate": True}
    with torch.no_grad():
        output = model.generate(**prompts, **LENGTH, **asked)
    if name != "git":
        model.set_attn_implementation("sdpa")
    layers = adapt_layers(model, NONE)
    captions = generate_captions(model, layers, prompts, **LENGTH)
    columns = image_columns(model, prompts)
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


@pytest.mark.parametrize("config", [NONE, GATE], ids=["none", "gate"])
@EACH
def test_captions_and_attention_are_the_same_without_a_cache_in_beams_and_alone(name, config):
    small = build(name)
    model, layers = small.model, adapt_layers(small.model, config)
    together = generate_captions(model, layers, inputs(small, IMAGES), **LENGTH)
    for image, [caption] in enumerate(together):
        batch = inputs(small, IMAGES[image : image + 1])
        for way in ({}, {"num_beams": 3, "num_return_sequences": 2}):
            [cached] = generate_captions(model, layers, batch, **LENGTH, **way)
            [uncached] = generate_captions(model, layers, batch, **LENGTH, **way, use_cache=False)
            assert [c.tokens for c in cached] == [c.tokens for c in uncached]
            assert [c.score for c in cached] == pytest.approx([c.score for c in uncached], abs=1e-3)
            for step, same in zip(cached[0].steps, uncached[0].steps, strict=True):
                assert (step.keep is None) == (step.gate is None) == (config == NONE)
                for field in ("original", "aligned", "keep") if config == GATE else ("original",):
                    values = getattr(step, field), getattr(same, field)
                    torch.testing.assert_close(*values, rtol=1e-3, atol=1e-5)
            if way:
                assert len(cached) == 2 and cached[0].score >= cached[1].score
                assert len(cached[0].steps) == len(cached[0].tokens) and cached[1].steps is None
            elif (
                cached[0].tokens == caption.tokens
            ):  # a batch pads tiles, which may round otherwise
                for step, same in zip(cached[0].steps, caption.steps, strict=True):
                    torch.testing.assert_close(step.original, same.original, rtol=1e-2, atol=1e-4)


def test_without_attention_nothing_is_recorded():
    small = build("llava")
    layers = adapt_layers(small.model, NONE)
    prompts = inputs(small, IMAGES)
    plain = generate_captions(small.model, layers, prompts, attention=False, **LENGTH)
    shown = generate_captions(small.model, layers, prompts, **LENGTH)
    assert [caption.tokens for [caption] in plain] == [caption.tokens for [caption] in shown]
    assert all(caption.steps is None for [caption] in plain)


@pytest.mark.parametrize("name", some_quick(BUILDERS, "llava"))
def test_padding_on_the_left_changes_nothing(name):
    """A batch of prompts of two lengths."""
    small = build(name)
    if small.prompt is None:
        pytest.skip("its captions have no prompt")
    model, processor = small.model, small.processor
    adapt_layers(model, GATE)
    prompts = [small.prompt + " w1 w2 w3 w4", small.prompt]
    options = {"return_tensors": "pt", "padding": True}
    # images of one size: a batch of tiles of several sizes is padded too, and rounds otherwise
    pictures = [[IMAGES[0]], [IMAGES[0].transpose(Image.Transpose.ROTATE_180)]]
    together = processor(images=pictures, text=prompts, **options)
    assert (together["attention_mask"][1] == 0).any()
    last = generated_logits(model, together)
    for number, prompt in enumerate(prompts):
        alone = processor(images=pictures[number : number + 1], text=[prompt], **options)
        torch.testing.assert_close(
            generated_logits(model, alone)[0], last[number], rtol=1e-3, atol=1e-3
        )


def generated_logits(model, given):
    """Return the logits of three forced tokens, (B, 3, V)."""

    def force(rows, scores):
        scores[:] = -torch.inf
        scores[:, 60] = 0
        return scores

    names = given.keys() - {"labels"}
    output = model.generate(
        **{name: given[name] for name in names},
        max_new_tokens=3,
        logits_processor=[force],
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.stack(output.logits, dim=1)


@EACH
def test_the_caption_loss_is_the_models_and_each_loss_trains_one_side(name):
    small = build(name)
    model, batch = small.model, labelled(small, IMAGES)
    layers = adapt_layers(model, GATE)
    losses = adapted_losses(model, layers, GATE, batch, 0)
    assert losses.caption.item() == pytest.approx(model(**batch).loss.item(), rel=1e-4)
    assert_each_side_learns(model, losses)
    assert 0 < float(losses.masks.keep) < 1
    assert 0 < float(losses.masks.gate) < 1
    # theta frozen: alignment alone learns
    model.zero_grad()
    for label, parameter in model.named_parameters():
        parameter.requires_grad_(".a2." in label)
    adapted_losses(model, layers, GATE, batch, 0).total().backward()
    trained = {label for label, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {label for label, _ in model.named_parameters() if ".a2." in label}


def rotated(states):
    """Rotate (L, d) by the positions of its rows, as RoPE does."""
    half = states.shape[1] // 2
    angles = np.arange(len(states))[:, None] / 10_000 ** (np.arange(half) / half)
    cosine, sine = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
    turned = np.concatenate((-states[:, half:], states[:, :half]), axis=1)
    return states * cosine + turned * sine


def aligned_weights(alpha, average, keep, gate, config, perturbed):
    """Eq. 3 and 5-10 of one row; alpha, average, keep: (N,), of the image's tokens."""
    if perturbed:
        used = keep * alpha + (1 - keep) * average
        return used / used.sum() if config.renormalise_perturbed else used
    evidence = alpha * np.exp(1 - keep)
    share = np.exp(-7 / config.decay_steps)
    used = {
        "max": np.maximum(alpha, evidence),
        "moving": alpha + config.moving_rate * evidence,
        "decay": share * alpha + (1 - share) * evidence,
        "gate": gate * alpha + (1 - gate) * evidence,
    }[config.fusion]
    return used / used.sum() if config.renormalise_aligned else used


def reference(attention, hidden, first, columns, config, perturbed):
    """Return the states (L, D) of one prompt in float64, head by head and row by row.

    hidden: (L, D); first: position of the first token that is not padding; columns: of the image.
    """
    weights = {name: w.detach().double().numpy() for name, w in attention.named_parameters()}

    def project(name, heads):
        return np.split(hidden @ weights[f"{name}.weight"].T, heads, axis=1)

    heads, mask = 4, "a2.alignment.mask_network"
    queries = [rotated(part) for part in project("q_proj", heads)]
    keys = [rotated(part) for part in project("k_proj", 2)]
    values = project("v_proj", 2)
    mask_queries, mask_keys = project(f"{mask}.query", heads), project(f"{mask}.key", heads)
    states = np.zeros((len(hidden), heads, queries[0].shape[1]))
    for row in range(first, len(hidden)):
        rows = []
        for head in range(heads):
            scores = keys[head // 2] @ queries[head][row] / np.sqrt(queries[head].shape[1])
            scores[:first] = scores[row + 1 :] = -np.inf
            row_weights = np.exp(scores - scores.max())
            rows.append(row_weights / row_weights.sum())
        if row >= columns[-1]:
            shares = [row_weights[columns].sum() for row_weights in rows]
            alphas = [
                row_weights[columns] / share
                for row_weights, share in zip(rows, shares, strict=True)
            ]
            for head, row_weights in enumerate(rows):
                logits = mask_keys[head][columns] @ mask_queries[head][row]
                logits = logits / np.sqrt(mask_keys[head].shape[1])
                keep = sigmoid(logits + weights[f"{mask}.bias"][head])
                gate = 0
                if config.fusion == "gate":
                    product = queries[head][row] @ weights["a2.alignment.gate.weight"][head, :, 0]
                    gate = sigmoid(product + weights["a2.alignment.gate.bias"][head, 0, 0])
                average = 1 / len(columns) if config.average == "uniform" else np.mean(alphas, 0)
                used = aligned_weights(alphas[head], average, keep, gate, config, perturbed)
                row_weights[columns] = shares[head] * used  # of the image alone
        for head, row_weights in enumerate(rows):
            states[row, head] = row_weights @ values[head // 2]
    return states.reshape(len(hidden), -1) @ weights["o_proj.weight"].T


EQUATIONS = [
    ({"fusion": fusion}, perturbed)
    for fusion in ("max", "moving", "decay", "gate")
    for perturbed in (False, True)
] + [
    ({"average": "heads"}, True),
    ({"renormalise_aligned": True}, False),
    ({"renormalise_perturbed": True}, True),
]


@pytest.mark.parametrize(("fields", "perturbed"), EQUATIONS)
def test_an_aligned_layer_is_that_of_the_equations_in_float64(fields, perturbed):
    small = build("llava")
    config = AlignmentConfig(**{"fusion": "gate", "decay_steps": 10, **fields})
    adapt_layers(small.model, config)
    with torch.no_grad():
        for name, parameter in small.model.named_parameters():
            if ".a2." in name:
                parameter.normal_(std=0.5)
    attention = small.model.model.language_model.layers[1].self_attn
    seen = {}

    def keep(module, args, kwargs, output):
        seen.update(hidden=kwargs["hidden_states"].double().numpy(), states=output[0])

    attention.register_forward_hook(keep, with_kwargs=True)
    prompts = [small.prompt + " w1 w2 w3", "w4 " + small.prompt]
    given = small.processor(
        images=[[image] for image in IMAGES[:2]], text=prompts, return_tensors="pt", padding=True
    )
    with torch.no_grad(), alignment_pass(small.model, 7, perturbed=perturbed):
        small.model(**given)
    assert given["attention_mask"][1, 0] == 0
    for image, columns in enumerate(image_columns(small.model, given)):
        first = int(given["attention_mask"][image].argmax())
        expected = reference(
            attention, seen["hidden"][image], first, columns.numpy(), config, perturbed
        )
        states = seen["states"][image].double().numpy()
        np.testing.assert_allclose(states[first:], expected[first:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", QUICK)
def test_half_precision_and_dropout_give_finite_losses(name):
    small = build(name)
    model = small.model.bfloat16().train()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.2
    layers = adapt_layers(model, GATE)
    batch = labelled(small, IMAGES)
    batch["pixel_values"] = batch["pixel_values"].bfloat16()
    losses = adapted_losses(model, layers, GATE, batch, 0)
    losses.total().backward()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())
    assert all(w.grad is not None for w in mask_parameters(model))


@pytest.mark.slow
def test_dropout_keeps_the_expectation_of_what_alignment_changes():
    small = build("git")
    adapt_layers(small.model, GATE)
    attention = small.model.git.encoder.layer[0].attention.self
    states = []
    attention.register_forward_hook(lambda module, args, output: states.append(output[0][:, -1]))
    batch, _ = teacher(small, IMAGES[:1] * 200)
    logits(small.model, batch)
    attention.train()
    attention.dropout.p = 0.3
    logits(small.model, batch)
    expected, dropped = states
    error = dropped.std(dim=0) / len(dropped) ** 0.5
    assert (error > 0).all()
    assert ((dropped.mean(dim=0) - expected[0]).abs() < 5 * error).all()


def test_what_cannot_be_aligned_is_refused():
    small = build("llava")
    model = small.model
    third = AlignmentConfig(fusion="gate", aligned_layers=(1, 3))
    assert refusal(adapt_layers, model, third) == (
        "aligned_layers names layer 3, LlavaForConditionalGeneration has 2 self-attentions to the "
        'image; choose "all" or layers from 1'
    )
    model.set_attn_implementation("flex_attention")
    assert refusal(adapt_layers, model, GATE) == (
        "alignment of self-attention cannot read the mask of 'flex_attention'; call "
        'model.set_attn_implementation("sdpa")'
    )
    model.set_attn_implementation("sdpa")
    adapt_layers(model, AlignmentConfig(fusion="gate", aligned_layers=(2,)))
    batch, _ = teacher(small, IMAGES)
    words = torch.full((2, 4), 60)
    assert refusal(model, words) == (
        "no image tokens in prompt 0 of 2; alignment needs an image in each, so give each its "
        'image, or set fusion to "none"'
    )
    git = build("git").model
    adapt_layers(git, GATE)
    assert refusal(git, words).startswith("no image tokens in prompt 0 of 2; alignment needs an")
    states = torch.zeros(2, 4, 32)
    assert refusal(model, inputs_embeds=states) == (
        "alignment cannot find the image's tokens without input_ids; call the whole model, with "
        "input_ids in place of inputs_embeds"
    )
    plain = build("llava").model(**batch, use_cache=True).past_key_values
    assert refusal(model, words[:1].expand(3, -1), past_key_values=plain) == (
        "the KV cache does not hold the image of 3 rows; begin with an empty cache"
    )
    cache = model(**batch, use_cache=True).past_key_values
    later = {**batch, "past_key_values": cache}
    del later["attention_mask"]
    assert refusal(model, **later) == (
        "image tokens follow the first call of the model; give all images in one prompt, without "
        "prefill_chunk_size"
    )
    assert (batch["input_ids"] == IMAGE).any()


@pytest.mark.parametrize("name", QUICK)
def test_wrappers_that_call_forward_are_aligned_too(name):
    small = build(name)
    batch, _ = teacher(small, IMAGES)
    plain = logits(small.model, batch)
    adapt_layers(small.model, GATE)
    with torch.no_grad():
        wrapped = small.model.forward(**batch).logits
    assert torch.equal(wrapped, logits(small.model, batch))
    assert not torch.equal(wrapped, plain)


def test_unaligned_layers_stay_unaligned():
    small = build("llava")
    layers = adapt_layers(small.model, AlignmentConfig(fusion="gate", aligned_layers=(2,)))
    [[caption], *_] = generate_captions(small.model, layers, inputs(small, IMAGES), **LENGTH)
    for step in caption.steps:
        first, second = step.layers
        assert first.keep is None and torch.equal(first.original, first.used)
        assert second.keep is not None and not torch.equal(second.original, second.used)
