import pytest
import torch

from a2cap.model.captioner import SpecialTokens, decoder_input
from a2cap.model.captioners.encoder_decoder import frozen
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.config import TransformerConfig
from a2cap.model.errors import ModelError
from tests.model.searching import encode_alone

FUSIONS = ["none", "max", "moving", "decay", "gate"]


def _log_probs(captioner, images):
    tokens = decoder_input(images.captions, bos=1)
    return captioner(images.encoded(captioner), tokens)


def test_forward_gives_normalised_log_probabilities_of_every_next_token(tiny, images):
    log_probs = _log_probs(tiny(), images)
    assert log_probs.shape == (3, 2, 6, 11)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones_like(log_probs[..., 0]))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_cached_steps_equal_teacher_forcing(tiny, images, fusion):
    captioner = tiny(fusion=fusion, box_geometry="linear")
    captioner.schedule_step.fill_(50_000)
    memory = images.encoded(captioner)
    expected = captioner(memory, decoder_input(images.captions, bos=1))
    state = captioner.start(memory, rows_per_image=2)
    tokens = decoder_input(images.captions, bos=1).flatten(0, 1)
    for position in range(tokens.shape[1]):
        output = captioner.step(tokens[:, position], state)
        assert output.attention is None
        assert output.log_probs.shape == (6, 11)
        torch.testing.assert_close(
            output.log_probs, expected[:, :, position].flatten(0, 1), rtol=0, atol=1e-12
        )
        state = output.state


def test_a_step_leaves_its_state_usable_for_another_token(tiny, images):
    captioner = tiny()
    state = captioner.start(images.encoded(captioner), rows_per_image=1)
    state = captioner.step(torch.tensor([1, 1, 1]), state).state
    first = captioner.step(torch.tensor([4, 5, 6]), state)
    captioner.step(torch.tensor([7, 7, 7]), state)
    assert torch.equal(captioner.step(torch.tensor([4, 5, 6]), state).log_probs, first.log_probs)


def test_reordered_rows_continue_their_source_row(tiny, images):
    captioner = tiny()
    state = captioner.start(images.encoded(captioner), rows_per_image=2)
    for tokens in ([1] * 6, [4, 5, 6, 7, 8, 9]):
        output = captioner.step(torch.tensor(tokens), state)
        state = output.state
    straight = captioner.step(torch.full((6,), 10), state).log_probs
    index = torch.tensor([1, 0, 2, 2, 5, 4])
    crossed = captioner.step(torch.full((6,), 10), state.reorder(index)).log_probs
    torch.testing.assert_close(crossed, straight[index])


@pytest.mark.parametrize("perturbed", [False, True])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_score_equals_forward_at_the_tokens_and_is_zero_on_padding(tiny, images, fusion, perturbed):
    captioner = tiny(fusion=fusion)
    memory = images.encoded(captioner)
    scored = captioner.score(memory, images.captions, perturbed=perturbed)
    expected = _log_probs(captioner, images).gather(-1, images.captions[..., None])[..., 0]
    expected = expected.masked_fill(images.captions == 0, 0)
    same = torch.allclose(scored.log_probs, expected, rtol=0, atol=1e-12)
    assert same == (not perturbed or fusion == "none")
    assert len(scored.attention) == 2
    assert scored.attention[0].used.shape == (3, 2, 12, 4)


@pytest.mark.parametrize("average", ["uniform", "heads"])
@pytest.mark.parametrize("network", ["bilinear", "linear"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_padding_regions_do_not_change_the_log_probabilities(
    tiny, images, fusion, network, average
):
    captioner = tiny(fusion=fusion, mask_network=network, average=average, box_geometry="linear")
    memory = images.encoded(captioner)
    padding = torch.full((3, 3, 6), torch.nan, dtype=torch.float64)
    padded = captioner.encode(
        torch.cat((images.features, padding), dim=1),
        torch.cat((images.boxes, padding[..., :5]), dim=1),
        torch.cat((images.region_mask, torch.zeros(3, 3, dtype=torch.bool)), dim=1),
    )
    for perturbed in (False, True):
        expected = captioner.score(memory, images.captions, perturbed=perturbed).log_probs
        actual = captioner.score(padded, images.captions, perturbed=perturbed).log_probs
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_order_of_regions_does_not_change_the_log_probabilities(tiny, images, fusion):
    captioner, order = tiny(fusion=fusion, box_geometry="linear"), torch.tensor([2, 0, 3, 1])
    expected = [
        captioner.score(images.encoded(captioner), images.captions, perturbed=perturbed)
        for perturbed in (False, True)
    ]
    permuted = captioner.encode(
        images.features[:, order], images.boxes[:, order], images.region_mask[:, order]
    )
    for perturbed in (False, True):
        actual = captioner.score(permuted, images.captions, perturbed=perturbed)
        torch.testing.assert_close(
            actual.log_probs, expected[perturbed].log_probs, rtol=0, atol=1e-12
        )


def test_a_batch_equals_single_images(tiny, images):
    captioner = tiny()
    batched = captioner.score(images.encoded(captioner), images.captions, perturbed=True)
    for number in range(3):
        alone = encode_alone(captioner, images, number)
        for caption in range(2):
            one = images.captions[number : number + 1, caption : caption + 1]
            torch.testing.assert_close(
                captioner.score(alone, one, perturbed=True).log_probs[0, 0],
                batched.log_probs[number, caption],
            )


def test_a_later_token_does_not_change_earlier_predictions(tiny, images):
    captioner = tiny()
    before = _log_probs(captioner, images)
    images.captions[..., 3] = 9
    after = _log_probs(captioner, images)
    torch.testing.assert_close(after[:, :, :4], before[:, :, :4])
    assert not torch.allclose(after[:, :, 4], before[:, :, 4])


def test_a_blind_captioner_depends_only_on_boxes(tiny, images):
    captioner = tiny(blind=True, box_geometry="linear")
    before = _log_probs(captioner, images)
    images.features = images.features + 5
    assert torch.equal(_log_probs(captioner, images), before)
    images.boxes = 1 - images.boxes
    assert not torch.allclose(_log_probs(captioner, images), before)


def test_decay_uses_the_step_of_the_checkpoint(tiny, images):
    captioner = tiny(fusion="decay", decay_steps=100)
    start = _log_probs(captioner, images)
    captioner.schedule_step.fill_(250)
    restored = tiny(fusion="decay", decay_steps=100)
    restored.load_state_dict(captioner.state_dict())
    assert restored.schedule_step.item() == 250
    assert restored.schedule_step.dtype == torch.int64
    assert torch.equal(_log_probs(restored, images), _log_probs(captioner, images))
    assert not torch.allclose(_log_probs(restored, images), start)


def test_every_parameter_belongs_to_exactly_one_side(tiny):
    captioner = tiny()
    masks, captions = set(captioner.mask_parameters()), set(captioner.caption_parameters())
    assert masks.isdisjoint(captions)
    assert masks | captions == set(captioner.parameters())
    names = {name for name, parameter in captioner.named_parameters() if parameter in masks}
    assert len(names) == 2 * 3
    assert all(".mask_network." in name for name in names)
    gates = {name for name, _ in captioner.named_parameters() if ".gate." in name}
    assert len(gates) == 2 * 2
    assert not gates & names


def test_plain_transformer_has_no_masks_and_no_gate(tiny):
    captioner = tiny(fusion="none")
    assert not captioner.has_masks
    assert not any("alignment" in name for name, _ in captioner.named_parameters())


def test_frozen_parameters_are_trainable_again_afterwards():
    weight, fixed = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    fixed.requires_grad_(False)
    values = torch.ones(1, requires_grad=True)
    with pytest.raises(KeyError), frozen([weight, fixed]):
        product = weight * values
        raise KeyError
    assert (weight.requires_grad, fixed.requires_grad) == (True, False)
    product.backward()
    assert weight.grad is None
    assert values.grad == 1


def test_dropout_is_active_in_training_only(tiny, images):
    captioner = tiny(dropout=0.5)
    assert torch.equal(_log_probs(captioner, images), _log_probs(captioner, images))
    captioner.train()
    assert not torch.allclose(_log_probs(captioner, images), _log_probs(captioner, images))


def test_equal_seeds_make_equal_captioners(tiny):
    for first, second in zip(tiny().parameters(), tiny().parameters(), strict=True):
        assert torch.equal(first, second)


def test_special_tokens_can_have_other_ids(images):
    special = SpecialTokens(pad=10, bos=9, eos=8, unk=7)
    captioner = TransformerCaptioner(
        TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1),
        feature_width=6,
        vocabulary_size=11,
        special=special,
    ).double()
    captions = torch.full((3, 1, 4), 10)
    captions[..., 0] = 8
    log_probs = captioner.score(images.encoded(captioner), captions).log_probs
    assert (log_probs[..., 0] < 0).all()
    assert not log_probs[..., 1:].any()


def _message(call) -> str:
    with pytest.raises(ModelError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        (
            "features",
            lambda features: features[..., :5],
            "region width is 5, the model expects 6; retrain, or extract with the checkpoint that "
            "it was trained on",
        ),
        (
            "boxes",
            lambda boxes: boxes[..., :4],
            "boxes have shape (3, 4, 4), the features need (3, 4, 5); give each region x1, y1, "
            "x2, y2 and its share of the area",
        ),
        (
            "region_mask",
            lambda mask: mask & torch.tensor([[True], [False], [True]]),
            "an image has no region: position 1 of the batch; leave the image out, or extract it "
            "again",
        ),
    ],
)
def test_unusable_regions_are_rejected(tiny, images, field, change, message):
    setattr(images, field, change(getattr(images, field)))
    assert _message(lambda: images.encoded(tiny())) == message


@pytest.mark.parametrize("wrong", [11, -1])
def test_tokens_out_of_the_vocabulary_are_rejected(tiny, images, wrong):
    captioner = tiny()
    memory = images.encoded(captioner)
    images.captions[2, 1, 0] = wrong
    state = captioner.start(memory, rows_per_image=1)
    for call in (
        lambda: captioner.score(memory, images.captions),
        lambda: captioner(memory, images.captions),
        lambda: captioner.step(images.captions[:, 1, 0], state),
    ):
        assert _message(call) == (
            f"token is out of the vocabulary: {wrong}, the model has 11 tokens; encode the "
            "captions with the vocabulary of its training"
        )


def test_rows_that_do_not_match_the_images_are_rejected(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    assert _message(lambda: captioner.score(memory, images.captions[:2])) == (
        "tokens have shape (2, 2, 6), the images need (3, 2, 6); give every image the same "
        "number of rows"
    )
    state = captioner.start(memory, rows_per_image=2)
    assert _message(lambda: captioner.step(torch.tensor([1, 1, 1]), state)) == (
        "tokens have shape (3,), the images need (6,); give every image the same number of rows"
    )
