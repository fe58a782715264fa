"""Removed tokens of an image, against slow references: the model without their columns."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs a2cap[transformers]")

from a2cap.model.adapting.adapted_layers import adapt_layers  # noqa: E402
from a2cap.model.adapting.generation import force_caption, kept_token_log_probs  # noqa: E402
from a2cap.model.adapting.image_columns import image_columns  # noqa: E402
from a2cap.model.adapting.removal import Removal, removing  # noqa: E402
from a2cap.model.alignment_config import AlignmentConfig  # noqa: E402
from tests.model.adapting import captioners, vision_language  # noqa: E402
from tests.model.adapting.vision_language import IMAGES  # noqa: E402
from tests.model.kinds import refusal  # noqa: E402
from tests.quick import some_quick  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
NONE = AlignmentConfig(fusion="none")
TOKENS = [5, 6, 7, 8]
QUICK = ("llava", "git", "blip")
NAMES = [*vision_language.BUILDERS, *captioners.BUILDERS]
EACH = pytest.mark.parametrize("name", some_quick(NAMES, *QUICK))


def prepared(name, config=NONE):
    """Return an adapted model, its layers, and the inputs of one image."""
    if name in vision_language.BUILDERS:
        small = vision_language.build(name)
        model, given = small.model, vision_language.inputs(small, IMAGES[:1])
    else:
        model, given = captioners.build(name), captioners.inputs(name, images=1)
    return model, adapt_layers(model, config), given


def subsets(model, layers, given):
    """Return random subsets of the image's tokens, (S, N), with all and with none."""
    tokens = force_caption(model, layers, given, TOKENS).steps[0].original.shape[-1]
    kept = torch.rand(5, tokens, generator=torch.Generator().manual_seed(0)) < 0.5
    kept[1] = True
    return torch.cat((kept, torch.zeros(1, tokens, dtype=torch.bool)))


@EACH
def test_removing_nothing_gives_the_logits_bit_for_bit_and_a_batch_those_of_each_alone(name):
    model, layers, given = prepared(name)
    kept = subsets(model, layers, given)
    log_probs = kept_token_log_probs(model, layers, given, TOKENS, kept)
    assert log_probs.isfinite().all()
    alone = [kept_token_log_probs(model, layers, given, TOKENS, row[None]) for row in kept]
    torch.testing.assert_close(log_probs, torch.cat(alone), rtol=1e-4, atol=1e-4)
    # words that the model generates, so that `generate` alone has their logits
    asked = {"return_dict_in_generate": True, "output_logits": True}
    output = model.generate(**given, **asked, max_new_tokens=3, do_sample=False)
    own = output.sequences[0, -len(output.logits) :].tolist()
    plain = [step[0].log_softmax(-1)[word] for step, word in zip(output.logits, own, strict=True)]
    [whole] = kept_token_log_probs(model, layers, given, own, kept[1:2])
    assert torch.equal(whole, torch.stack(plain))
    assert (log_probs[0] - log_probs[1]).abs().max() > 1e-3


def language_model(name, model, given):
    """Return what a language model reads, (1, P, D), the image's positions, and how it answers.

    The function takes such states, (B, P, D), and which of them stay, (P,); it returns the
    log-probabilities of the tokens, (B, L), by one call of the language model alone.
    """
    words = torch.tensor([TOKENS])

    def chosen(logits):
        return logits.log_softmax(-1).gather(-1, words.expand(len(logits), -1)[..., None])[..., 0]

    if name == "blip":
        start = torch.tensor([[model.decoder_input_ids, *TOKENS]])

        def answer(states, stays):
            more = {"encoder_hidden_states": states[:, stays]}
            logits = model.text_decoder(input_ids=start.expand(len(states), -1), **more).logits
            return chosen(logits[:, :-1])

        states = model.vision_model(given["pixel_values"]).last_hidden_state
        return states, torch.arange(states.shape[1]), answer
    read = {}
    decoder = model.git.encoder if name == "git" else model.get_decoder()
    hook = decoder.register_forward_pre_hook(
        lambda module, args, named: read.update(named, args=args), with_kwargs=True
    )
    prompt = given.get("input_ids", torch.tensor([[1]]))
    whole = {**given, "input_ids": torch.cat((prompt, words), dim=1)}
    if name == "llava":
        whole["attention_mask"] = torch.ones_like(whole["input_ids"])
    model(**whole)
    hook.remove()

    def answer_in_prompt(states, stays):
        if name == "git":
            mask = read["args"][1] if len(read["args"]) > 1 else read["attention_mask"]
            read_states = decoder(states[:, stays], attention_mask=mask[:, :, stays][..., stays])
            logits = model.output(read_states.last_hidden_state)
        else:
            positions = stays.nonzero().T
            read_states = decoder(inputs_embeds=states[:, stays], position_ids=positions)
            logits = model.lm_head(read_states.last_hidden_state)
        return chosen(logits[:, -len(TOKENS) - 1 : -1])

    states = read["args"][0] if read["args"] else read["inputs_embeds"]
    return states, image_columns(model, given)[0], answer_in_prompt


@pytest.mark.parametrize("name", QUICK)
def test_a_removed_token_is_as_if_the_language_model_had_not_got_it(name):
    model, layers, given = prepared(name)
    kept = subsets(model, layers, given)
    rows = kept[:-1] if name == "blip" else kept  # cross-attention over nothing is undefined
    log_probs = kept_token_log_probs(model, layers, given, TOKENS, rows)
    with torch.no_grad():
        states, columns, answer = language_model(name, model, given)
        expected = []
        for row in rows:
            stays = torch.ones(states.shape[1], dtype=torch.bool)
            stays[columns] = row
            expected.append(answer(states, stays)[0])
    torch.testing.assert_close(log_probs, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_cross_attention_to_no_token_adds_the_bias_of_its_projection_alone():
    model, layers, given = prepared("blip")
    none = subsets(model, layers, given)[-1:]
    log_probs = kept_token_log_probs(model, layers, given, TOKENS, none)
    for layer in model.text_decoder.bert.encoder.layer:
        torch.nn.init.zeros_(layer.crossattention.self.value.weight)
        torch.nn.init.zeros_(layer.crossattention.self.value.bias)
    plain = kept_token_log_probs(model, layers, given, TOKENS, ~none)
    torch.testing.assert_close(log_probs, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llava", "git"])
def test_alignment_without_any_token_of_the_image_changes_nothing(name):
    model, layers, given = prepared(name)
    kept = subsets(model, layers, given)
    plain = kept_token_log_probs(model, layers, given, TOKENS, kept)
    layers = adapt_layers(model, AlignmentConfig(fusion="max"))
    aligned = kept_token_log_probs(model, layers, given, TOKENS, kept)
    torch.testing.assert_close(aligned[-1], plain[-1], rtol=1e-6, atol=1e-6)
    assert ((aligned - plain)[:-1].abs().amax(dim=1) > 1e-3).all()


@pytest.mark.parametrize("name", ["blip", "trocr", "llava", "git"])
def test_an_aligned_model_removes_tokens_too(name):
    model, _, given = prepared(name)
    layers = adapt_layers(model, AlignmentConfig(fusion="gate"))
    kept = subsets(model, layers, given)
    log_probs = kept_token_log_probs(model, layers, given, TOKENS, kept)
    assert log_probs.isfinite().all() and len(torch.unique(log_probs.sum(1))) == len(kept)


def test_a_mask_of_flash_attention_is_refused():
    removal = Removal((0,), torch.ones(1, 3, dtype=torch.bool), None)

    def mask():
        with removing(removal):
            removal.mask(0, torch.ones(1, 3), like=torch.ones(1, 2, 3, 4), keys=3, is_cross=False)

    assert refusal(mask) == (
        "flash attention takes no mask that removes tokens; load the model with "
        'attn_implementation="sdpa"'
    )
