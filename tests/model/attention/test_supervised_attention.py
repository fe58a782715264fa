"""Rivals of alignment: their penalties against numpy and finite differences, in float64."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from a2cap.model.attention.supervised_attention import ProphetAttention, mean_attention
from a2cap.model.captioner import Teaching
from a2cap.model.losses import two_losses
from tests.model.gradients import assert_slope
from tests.model.kinds import KINDS, has_attention, make, refusal

PLAIN = {"fusion": "none"}


def targets_of(images):
    """Draw a distribution over the regions of every other word, 0 at the others."""
    torch.manual_seed(1)
    drawn = torch.rand(3, 12, 4, dtype=torch.float64) * images.region_mask[:, None]
    targets = drawn / drawn.sum(-1, keepdim=True) * (images.captions != 0).flatten(1)[..., None]
    targets[:, ::2] = 0
    return targets


def penalties(captioner, images, teaching):
    return two_losses(
        captioner, images.encoded(captioner), images.captions, teaching=teaching
    ).penalties


@pytest.mark.parametrize("kind", ["transformer", "up-down"])
def test_supervision_is_the_cross_entropy_of_the_mean_attention(kind, images):
    captioner, targets = make(kind, alignment=PLAIN), targets_of(images)
    teaching = Teaching(targets=targets, supervision=0.5)
    layers = captioner.score(images.encoded(captioner), images.captions).attention
    mean = np.mean([layer.original.detach().numpy().mean(1) for layer in layers], axis=0)
    expected, tokens = 0.0, int((images.captions != 0).sum())
    for beta, alpha in zip(targets.numpy().reshape(-1, 4), mean.reshape(-1, 4), strict=True):
        expected -= sum(b * np.log(a) for b, a in zip(beta, alpha, strict=True) if b)
    penalty = penalties(captioner, images, teaching)["supervision"]
    assert penalty.item() == pytest.approx(0.5 * expected / tokens, rel=1e-12)
    assert_slope(
        lambda: penalties(captioner, images, teaching)["supervision"], [*captioner.parameters()]
    )


def test_supervision_needs_attention(images):
    message = refusal(
        penalties, make("nic"), images, Teaching(targets=targets_of(images), supervision=1)
    )
    assert message == ("captioner has no attention to supervise; set train.supervision to 0")


def test_prophet_attention_is_learned_from_its_word_and_moves_attention_alone(images):
    captioner = make("transformer", alignment=PLAIN, prophet=0.3)
    assert captioner.penalty_names == ProphetAttention.names
    values = penalties(captioner, images, Teaching())
    decoder, prophet = ([*part.parameters()] for part in (captioner.decoder, captioner.prophet))
    for name in ("prophet", "prophet_distance"):  # the second has no gradient through its target
        own = [*captioner.encoder.parameters(), *prophet] if name == "prophet" else decoder
        assert_slope(lambda name=name: penalties(captioner, images, Teaching())[name], own)
    assert all(
        gradient is None
        for gradient in torch.autograd.grad(
            values["prophet_distance"], prophet, allow_unused=True, retain_graph=True
        )
    )
    assert all(
        gradient is None
        for gradient in torch.autograd.grad(values["prophet"], decoder, allow_unused=True)
    )


NO_PROPHET = {
    "m2": "Prophet Attention reads one state of each region, and the decoder of m2 those of every",
    **dict.fromkeys(
        (kind for kind in KINDS if not has_attention(kind)),
        "prophet is 0.3, but this captioner has no attention that it could train; set prophet",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_prophet_attention_trains_each_kind_or_is_refused_with_the_reason(kind, images):
    if kind in NO_PROPHET:
        with pytest.raises(ValidationError, match=NO_PROPHET[kind]):
            make(kind, alignment=PLAIN, prophet=0.3)
        return
    captioner = make(kind, alignment=PLAIN, prophet=0.3)
    losses = penalties(captioner, images, Teaching())
    assert {"prophet", "prophet_distance"} <= set(captioner.penalty_names)
    own, decoder = [*captioner.prophet.parameters()], [*captioner.decoder.parameters()]
    for name, parameters in (("prophet", own), ("prophet_distance", decoder)):
        gradients = torch.autograd.grad(
            losses[name], parameters, allow_unused=True, retain_graph=True
        )
        assert max(g.abs().max() for g in gradients if g is not None) > 0
        assert losses[name].item() > 0


def test_prophet_attention_of_a_gru_without_attention_is_refused():
    with pytest.raises(ValidationError, match="this captioner has no attention that it could"):
        make("gru", attention="none", prophet=0.3)


def test_the_prophets_penalties_equal_their_equations(images):
    captioner = make("transformer", alignment=PLAIN, prophet=0.3)
    memory = images.encoded(captioner)
    weights = {name: p.detach().numpy() for name, p in captioner.prophet.named_parameters()}
    scored = captioner.score(memory, images.captions)
    alpha = mean_attention(scored.attention).detach().numpy()
    states, words = memory.states.detach().numpy(), images.captions.flatten(1).numpy()
    predicted = distance = 0.0
    for image, position in zip(*np.nonzero(words), strict=True):
        regions = states[image, images.region_mask[image].numpy()]
        query = weights["query.weight"][words[image, position]]
        scores = regions @ weights["key.weight"].T @ query / np.sqrt(len(query))
        ideal = np.exp(scores) / np.exp(scores).sum()
        logits = weights["output.weight"] @ (ideal @ regions) + weights["output.bias"]
        predicted -= logits[words[image, position]] - np.log(np.exp(logits).sum())
        distance += np.abs(alpha[image, position, : len(ideal)] - ideal).sum()
    count = np.count_nonzero(words)
    assert scored.penalties["prophet"].item() == pytest.approx(predicted / count, rel=1e-10)
    assert scored.penalties["prophet_distance"].item() == pytest.approx(
        0.3 * distance / count, rel=1e-10
    )
    plain = make("transformer", alignment=PLAIN)
    plain.load_state_dict(captioner.state_dict(), strict=False)
    expected = plain.score(images.encoded(plain), images.captions).log_probs
    assert torch.equal(scored.log_probs, expected)
