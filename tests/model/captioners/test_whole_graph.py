"""The decoding step as one graph of torch.compile, without a break."""

import pytest
import torch


@pytest.mark.slow
def test_a_step_is_one_graph_and_gives_the_same_numbers(tiny, images):
    captioner = tiny(encoder_layers=1, decoder_layers=1)
    tokens = torch.ones(6, dtype=torch.int64)
    with torch.no_grad():
        state = captioner.start(images.encoded(captioner), 2)
        compiled = torch.compile(captioner.step, fullgraph=True, backend="eager")
        for _ in range(2):  # without a cache and with one
            found, expected = compiled(tokens, state), captioner.step(tokens, state)
            assert torch.equal(found.log_probs, expected.log_probs)
            state = expected.state
