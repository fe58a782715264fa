"""Captured steps of decoding, on a CPU, where replaying a step computes it again."""

import pytest
import torch

from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.decoding.sampling import sample_captions
from benchmarks import gpu_decoding
from benchmarks.gpu_decoding import captured_steps
from tests.model.kinds import make

LENGTH = 24
"""Tokens: more than a first pool of keys has room for."""


@pytest.fixture
def captures(monkeypatch):
    """Return the list of captures."""
    captured, capture = [], gpu_decoding.capture

    def count(run, device):
        captured.append(run)
        return capture(run, device)

    monkeypatch.setattr(gpu_decoding, "capture", count)
    return captured


def decode(captioner, seed):
    """Return beams and samples of two images of four and two regions."""
    torch.manual_seed(seed)
    exists = torch.tensor([[True] * 4, [True, True, False, False]])
    with torch.inference_mode():
        regions = torch.rand(2, 4, 6).double(), torch.rand(2, 4, 5).double()
        memory = captioner.encode(*regions, exists)
        config = DecodingConfig(beam_size=3, max_length=LENGTH, min_length=LENGTH)
        beams = beam_search(captioner, memory, config)
        samples = sample_captions(captioner, memory, count=3, max_length=LENGTH, min_length=LENGTH)
    return [[hypothesis.tokens for hypothesis in image] for image in beams], samples.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer", "get", "m2", "spatial"])
def test_captions_of_captured_steps_equal_those_of_plain_ones(kind, captures):
    captioner = make(kind)
    expected = [decode(captioner, seed) for seed in range(3)]
    with captured_steps(captioner.decoder):
        assert [decode(captioner, seed) for seed in range(3)] == expected
    assert expected[0] != expected[1]
    # three shapes of the beams after their first token, and one of the samples
    assert len(captures) == 3 * 4
