import torch

from a2cap.model.captioners.transformer.decoder import TokenEmbedding
from a2cap.model.layers import MAX_POSITIONS
from tests.model.kinds import refusal


def test_captions_longer_than_the_positions_are_rejected():
    embedding = TokenEmbedding(vocabulary_size=7, width=2)
    embedding(torch.zeros(1, MAX_POSITIONS, dtype=torch.int64))
    found = refusal(embedding, torch.zeros(1, 1, dtype=torch.int64), first_position=MAX_POSITIONS)
    assert found == (
        "a caption has 513 tokens, the decoder has 512 positions; shorten the captions"
    )


def test_log_probabilities_are_normalised_in_float32_under_autocast(tiny):
    captioner = tiny().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = captioner.log_probs(torch.randn(3, 16))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
