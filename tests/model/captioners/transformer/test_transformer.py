from dataclasses import replace

import pytest
import torch

from a2cap.model.captioner import SpecialTokens
from a2cap.model.captioners.transformer.transformer import TokenEmbedding, TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.layers import MAX_POSITIONS
from a2cap.model.replaced_parameters import frozen
from tests.model.kinds import refusal


def test_frozen_parameters_are_trainable_again_afterwards():
    linear = torch.nn.Linear(1, 1)
    weight, bias = linear.weight, linear.bias
    values = torch.ones(1, requires_grad=True)
    with pytest.raises(KeyError), frozen(linear, [weight]):
        product = linear(values)
        raise KeyError
    assert linear.weight is weight
    product.backward()
    assert weight.grad is None
    assert bias.grad == 1
    assert values.grad == weight


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
    assert refusal(images.encoded, tiny()) == message


@pytest.mark.parametrize("wrong", [11, -1])
def test_tokens_out_of_the_vocabulary_are_rejected(tiny, images, wrong):
    captioner = tiny()
    memory = images.encoded(captioner)
    images.captions[2, 1, 0] = wrong
    state = captioner.start(memory, rows_per_image=1)
    for call, arguments in (
        (captioner.score, (memory, images.captions)),
        (captioner, (memory, images.captions)),
        (captioner.step, (images.captions[:, 1, 0], state)),
    ):
        assert refusal(call, *arguments) == (
            f"token is out of the vocabulary: {wrong}, the model has 11 tokens; encode the "
            "captions with the vocabulary of its training"
        )


def test_rows_that_do_not_match_the_images_are_rejected(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    assert refusal(captioner.score, memory, images.captions[:2]) == (
        "tokens have shape (2, 2, 6), the images need (3, 2, 6); give every image the same "
        "number of rows"
    )
    state = captioner.start(memory, rows_per_image=2)
    assert refusal(captioner.step, torch.tensor([1, 1, 1]), state) == (
        "tokens have shape (3,), the images need (6,); give every image the same number of rows"
    )


def _encode(captioner, images):
    return captioner.encoder(images.features, images.boxes, images.region_mask)


@pytest.mark.parametrize(
    ("geometry", "differs"), [("none", False), ("linear", True), ("relative", True)]
)
@pytest.mark.parametrize("blind", [False, True])
def test_only_geometry_distinguishes_left_from_right(tiny, images, geometry, differs, blind):
    captioner = tiny(box_geometry=geometry, blind=blind)
    expected = _encode(captioner, images)
    mirrored = images.boxes.clone()
    mirrored[..., 0], mirrored[..., 2] = 1 - images.boxes[..., 2], 1 - images.boxes[..., 0]
    images.boxes = mirrored
    assert torch.equal(_encode(captioner, images), expected) != differs


def test_half_precision_features_are_accepted(tiny, images):
    captioner = tiny()
    images.features = images.features.half()
    assert _encode(captioner, images).dtype == torch.float64


def test_captions_longer_than_the_positions_are_rejected(tiny, images):
    problem = "a caption has 513 tokens, the decoder has 512 positions; shorten the captions"
    embedding = TokenEmbedding(vocabulary_size=7, width=2)
    embedding(torch.zeros(1, MAX_POSITIONS, dtype=torch.int64))
    message = refusal(embedding, torch.zeros(1, MAX_POSITIONS + 1, dtype=torch.int64))
    assert message == problem
    captioner, tokens = tiny(), torch.ones(3, dtype=torch.int64)
    state = captioner.step(tokens, captioner.start(images.encoded(captioner), 1)).state
    full = replace(state, cache=replace(state.cache, tokens=MAX_POSITIONS))
    assert refusal(captioner.step, tokens, full) == problem


def test_log_probabilities_are_normalised_in_float32_under_autocast(tiny):
    captioner = tiny().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = captioner.log_probs(torch.randn(3, 16))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
