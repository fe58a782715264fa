"""The contract of every captioner, for each kind and fusion; a new kind adds itself to kinds.py."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import pad

from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import FUSIONS as ALIGNMENT_FUSIONS
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import Teaching, decoder_input, trace_attention
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.faithfulness import differentiable_masks, region_gradients
from a2cap.model.losses import caption_loss, mask_loss, mask_penalty, two_losses
from a2cap.model.scheduled_sampling import scheduled_inputs
from tests.model.gradients import assert_slope
from tests.model.kinds import FUSIONS, KINDS, VARIANTS, has_attention, make
from tests.model.searching import encode_alone

STEP = 50_000
"""Schedule step at which every fusion differs from the others."""


def initial_spread(kind, name, parameter):
    """Return the standard deviation of a weight in the authors' code, None if it is torch's."""
    if name == "decoder.embedding.words.weight":
        return parameter.shape[1] ** -0.5
    if kind in ("up-down", "show-attend-tell"):
        is_orthogonal = parameter.shape[0] == parameter.shape[1] or name == "decoder.gates.weight"
        return 0.01 if kind == "up-down" or not is_orthogonal else None
    if kind == "aoa":  # uniform up to D^-0.5
        return (12 * 3) ** -0.5 if name == "decoder.gates.weight" else None
    parts = 3 if "query_key_value" in name else 2 if "key_value" in name else 1
    return (2 / (parameter.shape[0] // parts + parameter.shape[1])) ** 0.5  # Xavier


@pytest.mark.parametrize("kind", ["up-down", "show-attend-tell"])
def test_the_score_of_attention_starts_as_in_the_authors_code(kind):
    torch.manual_seed(0)
    settings = KINDS[kind](attention_width=512, alignment=AlignmentConfig(fusion="none"))
    named = make_captioner(settings, feature_width=6, vocabulary_size=11).named_parameters()
    [weight] = [weight for name, weight in named if name.endswith("attention.score.weight")]
    assert weight.std().item() == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize("kind", ["transformer", "m2", "up-down", "show-attend-tell", "aoa"])
def test_initial_values_are_those_of_the_authors_code(kind):
    torch.manual_seed(0)
    settings = KINDS[kind](alignment=AlignmentConfig(fusion="none"))
    captioner = make_captioner(settings, feature_width=6, vocabulary_size=11)
    for name, parameter in captioner.named_parameters():
        if "norm" in name:
            continue
        if parameter.ndim == 1 and kind != "aoa":
            forget = kind == "up-down" and name in (
                "decoder.from_token.bias",
                "decoder.language.bias",
            )
            expected = torch.tensor([0.0, 1, 0, 0] if forget else [0.0]).repeat_interleave(12)
            assert parameter.equal(expected) if forget else not parameter.any(), name
        elif parameter.ndim == 2 and parameter.numel() > 24:
            spread = initial_spread(kind, name, parameter)
            deviation = parameter.square().mean().sqrt().item()
            assert spread is None or deviation == pytest.approx(spread, rel=0.3), name
            if kind == "show-attend-tell" and spread is None:
                squares = [parameter]
                if name == "decoder.gates.weight":
                    squares = [gate[:, 7:19] for gate in parameter.chunk(4)]
                for square in squares:
                    torch.testing.assert_close(square @ square.T, torch.eye(len(square)))


@pytest.mark.parametrize("kind", ["up-down", "show-attend-tell"])
def test_uniform_initial_values_are_within_the_root_of_the_inputs(kind):
    torch.manual_seed(0)
    made = make_captioner(KINDS[kind](initial="uniform"), feature_width=6, vocabulary_size=11)
    for parameter in made.decoder.attention.query.parameters():
        bound = parameter.shape[1] ** -0.5
        assert 0.9 * bound < parameter.abs().max().item() <= bound
    assert any(p.any() for name, p in made.named_parameters() if name.endswith("bias"))


@pytest.fixture(params=[*KINDS, *VARIANTS])
def kind(request):
    return request.param


# each kind is compared with its equations for every fusion; all parts take part in a gate
PAIRS = [
    *(pytest.param(("transformer", fusion), marks=pytest.mark.slow) for fusion in FUSIONS[:-1]),
    *((kind, FUSIONS[-1] if has_attention(kind) else "none") for kind in (*KINDS, *VARIANTS)),
]


@pytest.fixture(params=PAIRS, ids="-".join)
def captioner(request):
    kind, fusion = request.param
    made = make(kind, alignment={"fusion": fusion})
    made.schedule_step.fill_(STEP)
    return made


def scores(captioner, memory, captions):
    """Return the log-probabilities of both passes."""
    return torch.stack(
        [captioner.score(memory, captions, perturbed=p).log_probs for p in (False, True)]
    )


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_steps_equal_teacher_forcing_and_its_attention(captioner, images):
    memory = images.encoded(captioner)
    tokens = decoder_input(images.captions, bos=1)
    expected = captioner(memory, tokens)
    scored = captioner.score(memory, images.captions)
    assert_close(expected.exp().sum(-1), torch.ones_like(expected[..., 0]))
    at_tokens = expected.gather(-1, images.captions[..., None])[..., 0]
    assert_close(scored.log_probs, at_tokens.masked_fill(images.captions == 0, 0))
    state = captioner.start(memory, rows_per_image=2)
    for position, column in enumerate(tokens.flatten(0, 1).unbind(1)):
        output = captioner.step(column, state, attention=True)
        state = output.state
        assert_close(output.log_probs, expected[:, :, position].flatten(0, 1))
        layers = output.attention.layers if scored.attention else ()
        for step, layer in zip(layers, scored.attention, strict=True):
            by_caption = layer.used.unflatten(2, (2, -1))[:, :, :, position].transpose(1, 2)
            assert_close(step.used, by_caption.flatten(0, 1))


def test_reordered_rows_continue_their_source_row_and_the_old_state_stays(captioner, images):
    state = captioner.start(images.encoded(captioner), rows_per_image=2)
    for tokens in ([1] * 6, [4, 5, 6, 7, 8, 9]):
        state = captioner.step(torch.tensor(tokens), state).state
    straight = captioner.step(torch.full((6,), 10), state).log_probs
    index = torch.tensor([1, 0, 2, 2, 5, 4])
    crossed = captioner.step(torch.full((6,), 10), state.reorder(index)).log_probs
    assert_close(crossed, straight[index])
    kept_state = state.select(torch.tensor([0, 2]))
    assert_close(captioner.step(torch.full((4,), 10), kept_state).log_probs, straight[[0, 1, 4, 5]])
    assert torch.equal(captioner.step(torch.full((6,), 10), state).log_probs, straight)


@pytest.mark.slow
def test_a_batch_equals_single_images_in_both_passes(captioner, images):
    batched = scores(captioner, images.encoded(captioner), images.captions)
    for number in range(3):
        alone = encode_alone(captioner, images, number)
        for caption in range(2):
            caption_of_image = images.captions[number : number + 1, caption : caption + 1]
            alone_scores = scores(captioner, alone, caption_of_image)
            assert_close(alone_scores[:, 0, 0], batched[:, number, caption])


def test_standardised_features_have_mean_0_and_deviation_1(kind, images):
    regions = images.features[images.region_mask]
    features = (100 + 7 * regions, 100 + 7 * images.features)
    captioner = make(kind, standardise=True)
    captioner.standardisation.measure(iter([features[0][:2], features[0][2:]]))
    standard = captioner.standardisation(features[0])
    assert_close(standard.mean(0), torch.zeros(6, dtype=torch.float64))
    assert_close(standard.std(0, correction=0), torch.ones(6, dtype=torch.float64))

    plain = make(kind)
    plain.load_state_dict(captioner.state_dict(), strict=False)
    expected = plain.encode(
        captioner.standardisation(features[1]), images.boxes, images.region_mask
    )
    memory = captioner.encode(features[1], images.boxes, images.region_mask)
    assert_close(memory.states, expected.states)


def test_padding_and_order_of_regions_change_nothing_in_both_passes(captioner, images):
    expected = scores(captioner, images.encoded(captioner), images.captions)
    order = torch.tensor([2, 0, 3, 1] if captioner.regions_are_a_set else [0, 1, 2, 3])
    padding = torch.full((3, 2, 6), torch.nan, dtype=torch.float64)
    changed = captioner.encode(
        torch.cat((images.features[:, order], padding), dim=1),
        torch.cat((images.boxes[:, order], padding[..., :5]), dim=1),
        torch.cat((images.region_mask[:, order], torch.zeros(3, 2, dtype=torch.bool)), dim=1),
    )
    assert_close(scores(captioner, changed, images.captions), expected)


@pytest.mark.parametrize("mask_network", ["bilinear", "linear"])
def test_the_order_of_regions_matters_unless_they_are_stated_to_be_a_set(
    kind, mask_network, images
):
    made = make(kind, alignment={"mask_network": mask_network})
    is_set = made.config.grid_cells is None and (
        mask_network == "bilinear" or not has_attention(kind)
    )
    assert made.regions_are_a_set == is_set
    tokens = decoder_input(images.captions, bos=1)[:1]
    rows = (images.features[:1], images.boxes[:1], images.region_mask[:1])
    log_probs, reversed_log_probs = (
        made(made.encode(*regions), tokens) for regions in (rows, [row.flip(1) for row in rows])
    )
    assert torch.allclose(log_probs, reversed_log_probs, rtol=0, atol=1e-10) == is_set


def test_padding_to_a_common_shape_changes_neither_losses_nor_gradients(captioner, images):
    def measured(images, positions):
        captioner.zero_grad()
        teaching = Teaching(label_smoothing=0.1, positions=positions)
        encoded = images.encoded(captioner)
        losses = two_losses(captioner, encoded, images.captions, teaching=teaching)
        losses.total().backward()
        gradients = [p.grad for p in captioner.parameters() if p.grad is not None]
        return [losses.caption.detach(), losses.tokens, *gradients]

    padded = replace(
        images,
        features=pad(images.features, (0, 0, 0, 3)),
        boxes=pad(images.boxes, (0, 0, 0, 3)),
        region_mask=pad(images.region_mask, (0, 3)),
        captions=pad(images.captions, (0, 2)),
    )
    shifted = measured(padded, torch.arange(padded.captions.numel()))
    for a, b in zip(shifted, measured(images, None), strict=True):
        assert_close(a, b)


def test_attention_is_a_distribution_and_its_fields_depend_on_the_fusion(captioner, images):
    fusion = captioner.config.alignment.fusion
    steps = trace_attention(captioner, images.encoded(captioner), images.captions[:, 0])
    assert len(steps) == (images.captions.shape[2] if captioner.config.has_attention else 0)
    for step in steps:
        assert step.original.shape == step.aligned.shape == (3, 4)
        assert_close(step.original.sum(1), torch.ones(3, dtype=torch.float64))
        assert not step.aligned[~images.region_mask].any()
        assert (step.keep is None) == (fusion == "none")
        assert (step.gate is not None) == ALIGNMENT_FUSIONS[fusion].learned


def test_gradients_are_zero_on_padding_alone(captioner, images):
    arguments = (images.features, images.boxes, images.region_mask, images.captions[:, 0])
    gradients = region_gradients(captioner, *arguments)
    # after a ReLU all values of a region may be 0, and their product with the gradient is 0 too
    attended = images.encoded(captioner).states.any(dim=-1)[images.region_mask]
    for measure in (gradients.importance.transpose(1, 2), gradients.product.transpose(1, 2)):
        assert not measure[~images.region_mask].any()  # (B, R, L)
        assert measure[images.region_mask][:, :2][attended].all()


def test_a_loaded_captioner_equals_the_saved_one(captioner, images):
    loaded = make_captioner(captioner.config, feature_width=6, vocabulary_size=11).double().eval()
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(captioner.state_dict())
    expected, loaded_scores = (
        scores(c, images.encoded(c), images.captions) for c in (captioner, loaded)
    )
    assert torch.equal(loaded_scores, expected)


def test_each_loss_gives_its_parameters_a_gradient_and_no_others(captioner, images):
    losses = two_losses(captioner, images.encoded(captioner), images.captions)
    masks, others = list(mask_parameters(captioner)), list(caption_parameters(captioner))
    assert {*masks, *others} == set(captioner.parameters())
    sum(losses.penalties.values(), losses.caption).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in others)
    assert all(parameter.grad is None for parameter in masks)
    if losses.mask is not None:
        captioner.zero_grad()
        losses.mask.backward()
        assert all(parameter.grad.any() for parameter in masks)
        assert all(parameter.grad is None for parameter in others)
    assert (losses.mask is None) == (captioner.config.alignment.fusion == "none")


def test_the_gradient_of_each_loss_is_its_slope(captioner, images):
    def losses():
        return two_losses(captioner, images.encoded(captioner), images.captions)

    with differentiable_masks(captioner):
        assert_slope(lambda: losses().caption, list(caption_parameters(captioner)))
    if captioner.has_masks:
        assert_slope(lambda: losses().mask, list(mask_parameters(captioner)))


def test_both_losses_equal_those_of_each_pass(captioner, images):
    memory, is_token = images.encoded(captioner), images.captions != 0
    losses = two_losses(captioner, memory, images.captions)
    aligned = caption_loss(captioner.score(memory, images.captions).log_probs, is_token)
    assert_close(losses.caption, aligned)
    if losses.mask is not None:
        perturbed = captioner.score(memory, images.captions, perturbed=True)
        penalty = mask_penalty([layer.keep for layer in perturbed.attention], is_token)
        harmed = caption_loss(perturbed.log_probs, is_token)
        assert not torch.isclose(harmed, aligned)
        assert_close(losses.mask, mask_loss(harmed, penalty, penalty_weight=0.035))


@pytest.mark.parametrize("perturbed", [False, True])
def test_captions_of_padding_alone_have_no_loss(captioner, images, perturbed):
    nothing = torch.zeros_like(images.captions)
    scored = captioner.score(images.encoded(captioner), nothing, perturbed=perturbed)
    assert torch.equal(scored.log_probs, torch.zeros(3, 2, 6, dtype=torch.float64))


def test_label_smoothing_is_cross_entropy_against_a_smoothed_target(kind, images):
    captioner = make(kind, alignment={"fusion": "none"})
    memory, captions = images.encoded(captioner), images.captions
    log_probs = captioner(memory, decoder_input(captions, bos=1))
    target = torch.full_like(log_probs, 0.2 / 11).scatter_add_(
        -1, captions[..., None], torch.full_like(log_probs[..., :1], 0.8)
    )
    expected = -(target * log_probs).sum(-1)[captions != 0].mean()
    losses = two_losses(captioner, memory, captions, teaching=Teaching(label_smoothing=0.2))
    loss = losses.caption + losses.penalties["label_smoothing"]
    assert_close(loss, expected)
    weight = captioner.decoder.output.weight
    gradients = [
        torch.autograd.grad(value, weight, retain_graph=True)[0] for value in (loss, expected)
    ]
    assert_close(*gradients)
    assert_close(losses.caption, two_losses(captioner, memory, captions).caption)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["feature_dropout", "attention_dropout"])
def test_dropout_of_features_and_attention_acts_in_training_alone(kind, images, option):
    if option == "attention_dropout" and not has_attention(kind):
        with pytest.raises(ValidationError, match="but this captioner has no attention; set"):
            make(kind, attention_dropout=0.5)
        return
    if (kind, option) == ("hard attention", "attention_dropout"):
        message = (
            "attention_dropout is 0.5, but hard attention has no weights to drop; set "
            "attention_dropout to 0, or attention to soft"
        )
        with pytest.raises(ValidationError, match=message):
            make(kind, attention_dropout=0.5)
        return
    plain, dropped = make(kind, **{option: 0}), make(kind, **{option: 0.5})
    expected = scores(plain, images.encoded(plain), images.captions)
    assert_close(scores(dropped, images.encoded(dropped), images.captions), expected)
    dropped.train()
    torch.manual_seed(1)
    draws = [scores(dropped, images.encoded(dropped), images.captions) for _ in range(2)]
    torch.manual_seed(1)
    again = scores(dropped, images.encoded(dropped), images.captions)
    assert torch.equal(draws[0], again)
    assert not torch.allclose(draws[0], draws[1])
    assert not torch.allclose(draws[0], expected)


def test_scheduled_sampling_replaces_inputs_by_likely_tokens(kind, images):
    captioner = make(kind)
    memory, captions = images.encoded(captioner), images.captions
    inputs = decoder_input(captions, bos=1)
    assert torch.equal(scheduled_inputs(captioner, memory, captions, rate=0), inputs)
    with torch.no_grad():
        captioner.decoder.output.weight.zero_()
        if captioner.decoder.output.bias is not None:
            captioner.decoder.output.bias.zero_()
    inputs, captions = inputs.repeat(1, 40, 1), captions.repeat(1, 40, 1)
    sampled, is_read = scheduled_inputs(captioner, memory, captions, rate=0.5), captions != 0
    assert torch.equal(sampled[..., 0], inputs[..., 0])
    assert torch.equal(sampled[~is_read], inputs[~is_read])
    assert sampled[..., 1:][is_read[..., 1:]].unique().tolist() == list(range(3, 11))
    changed = (sampled != inputs)[..., 1:][is_read[..., 1:]].double().mean()
    assert changed.item() == pytest.approx(0.5 * 7 / 8, abs=0.08)  # one in eight samples is equal


def test_mask_gradients_pass_through_later_tokens_and_layers(kind, images):
    if not has_attention(kind):
        pytest.skip("no attention")
    captioner = make(kind)
    [weight, *_] = [p for name, p in captioner.named_parameters() if "mask_network.bias" in name]

    def mask():
        return two_losses(captioner, images.encoded(captioner), images.captions).mask

    (gradient,) = torch.autograd.grad(mask(), weight)
    with torch.no_grad():
        values = []
        for change in (1e-5, -2e-5):
            weight[0] += change
            values.append(mask().item())
    assert gradient[0].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)


def test_a_later_token_does_not_change_earlier_predictions(kind, images):
    captioner = make(kind)
    memory, tokens = images.encoded(captioner), decoder_input(images.captions, bos=1)
    before = captioner(memory, tokens)
    tokens[..., 3] = 9
    after = captioner(memory, tokens)
    assert_close(after[:, :, :3], before[:, :, :3])
    assert not torch.allclose(after[:, :, 3], before[:, :, 3])


def test_a_blind_captioner_ignores_the_features(kind, images):
    captioner = make(kind, blind=True)
    expected = scores(captioner, images.encoded(captioner), images.captions)
    images.features = images.features + 5
    assert torch.equal(scores(captioner, images.encoded(captioner), images.captions), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if has_attention(kind)])
def test_masks_learn_to_harm_a_captioner_that_overfits_one_tiny_batch(kind):
    """Start from the initial values that users get, in float32."""
    torch.manual_seed(0)
    config = KINDS[kind](alignment=AlignmentConfig(fusion="gate"))
    captioner = make_captioner(config, feature_width=6, vocabulary_size=11)
    features, region_mask = torch.randn(6, 3, 6), torch.ones(6, 3, dtype=torch.bool)
    captions = torch.randint(4, 11, (6, 1, 5))
    captions[..., -1] = 2
    sides = (caption_parameters(captioner), mask_parameters(captioner))
    optimisers = [torch.optim.Adam(side, lr=0.02) for side in sides]
    for _ in range(250):
        memory = captioner.encode(features, torch.zeros(6, 3, 5), region_mask)
        losses = two_losses(captioner, memory, captions)
        if losses.caption.item() < 0.1 and losses.masks.harm.item() > 0.2:
            break
        losses.total().backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    assert losses.caption.item() < 0.1
    assert losses.masks.harm.item() > 0.2
