"""Training and decoding as one graph of torch.compile each, without a break, for all shapes."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.functional import pad

from a2cap.model.captioners.compile import compile_captioner
from a2cap.model.losses import two_losses
from a2cap.model.self_critical.rollouts import generate_rollouts, self_critical_loss
from tests.model.searching import search

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # raised inside torch
]

GRAPHS = 6
"""Encoding, both passes, and steps without a cache, with one of a token, and with a longer one."""


def update(captioner, images):
    """Return captions, beams and gradients of an update of both training tasks."""
    captioner.zero_grad()
    two_losses(captioner, images.encoded(captioner), images.captions).total().backward()
    memory = images.encoded(captioner)
    generator = torch.Generator().manual_seed(0)
    options = {"baseline": "greedy", "samples": 2, "max_length": 5, "generator": generator}
    rollouts = generate_rollouts(captioner, memory, lambda rows: rows.double().sum(-1), **options)
    scored = captioner.score(memory, rollouts.captions)
    self_critical_loss(scored.log_probs, rollouts.advantages).backward()
    beams = search(captioner, memory, max_length=4)
    gradients = [p.grad.clone() for p in captioner.parameters() if p.grad is not None]
    return rollouts.captions, beams, gradients


def shapes_of(images):
    """Yield batches of other numbers of images, regions and tokens."""
    yield images
    regions = (0, 0, 0, 16)
    yield replace(
        images,
        features=pad(images.features, regions),
        boxes=pad(images.boxes, regions),
        region_mask=pad(images.region_mask, (0, 16)),
        captions=pad(images.captions, (0, 2)),
    )
    yield replace(images, **{name: values[:2] for name, values in vars(images).items()})


def test_all_shapes_share_few_graphs_that_give_the_same_captions_and_gradients(tiny, images):
    eager, compiled = (tiny(encoder_layers=1, decoder_layers=1) for _ in range(2))
    torch._dynamo.reset()
    counters.clear()
    compile_captioner(compiled, "reduce-overhead", warn=pytest.fail, backend="eager")
    for batch in shapes_of(images):
        expected, found = update(eager, batch), update(compiled, batch)
        assert torch.equal(found[0], expected[0])
        assert [[one.tokens for one in beams] for beams in found[1]] == [
            [one.tokens for one in beams] for beams in expected[1]
        ]
        torch.testing.assert_close(found[2], expected[2], rtol=0, atol=1e-10)
        assert counters["stats"]["unique_graphs"] == GRAPHS
    assert not counters["graph_break"]
