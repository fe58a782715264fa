"""Decoding and training as one graph of torch.compile each, without a break."""

from functools import partial

import pytest
import torch

from a2cap.model.captioner import Teaching
from a2cap.model.losses import two_losses

pytestmark = pytest.mark.slow
_compiled = partial(torch.compile, fullgraph=True, backend="eager")


def test_a_step_is_one_graph_and_gives_the_same_numbers(tiny, images):
    captioner = tiny(encoder_layers=1, decoder_layers=1)
    tokens = torch.ones(6, dtype=torch.int64)
    with torch.no_grad():
        state = captioner.start(images.encoded(captioner), 2)
        step = _compiled(captioner.step)
        for _ in range(2):  # without a cache and with one
            found, expected = step(tokens, state), captioner.step(tokens, state)
            assert torch.equal(found.log_probs, expected.log_probs)
            state = expected.state


def test_losses_are_one_graph_and_give_the_same_gradients(tiny, images):
    captioner = tiny(encoder_layers=1, decoder_layers=1)
    positions = (images.captions != 0).flatten().nonzero().squeeze(1)

    def cross_entropy(captions):
        teaching = Teaching(positions=positions)
        return two_losses(captioner, images.encoded(captioner), captions, teaching=teaching).total()

    def self_critical(captions):
        scored = captioner.score(images.encoded(captioner), captions)
        return scored.log_probs.sum()

    for loss in (cross_entropy, self_critical):
        found = []
        for form in (loss, _compiled(loss)):
            captioner.zero_grad()
            form(images.captions).backward()
            found.append([p.grad.clone() for p in captioner.parameters() if p.grad is not None])
        for eager, whole in zip(*found, strict=True):
            assert torch.equal(eager, whole)
