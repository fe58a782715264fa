import pytest
import torch

from a2cap.model.captioners.transformer.decoder import TokenEmbedding
from a2cap.model.errors import ModelError
from a2cap.model.layers.positions import MAX_POSITIONS, sinusoidal_positions


def test_embedding_is_the_scaled_word_plus_its_position():
    embedding = TokenEmbedding(vocabulary_size=7, width=16)
    tokens = torch.tensor([[3, 5], [5, 0]])
    expected = embedding.words.weight[tokens] * 4 + sinusoidal_positions(5, 16)[3:5]
    assert embedding(tokens, first_position=3).shape == (2, 2, 16)
    torch.testing.assert_close(embedding(tokens, first_position=3), expected)


def test_captions_longer_than_the_positions_are_rejected():
    embedding = TokenEmbedding(vocabulary_size=7, width=2)
    embedding(torch.zeros(1, MAX_POSITIONS, dtype=torch.int64))
    with pytest.raises(ModelError) as raised:
        embedding(torch.zeros(1, 1, dtype=torch.int64), first_position=MAX_POSITIONS)
    assert str(raised.value) == (
        "a caption has 513 tokens, the decoder has 512 positions; shorten the captions"
    )


def test_only_configured_layers_are_aligned(tiny):
    captioner = tiny(decoder_layers=3, aligned_layers=(2,))
    alignments = [attention.alignment for attention in captioner.decoder.cross_attentions()]
    assert [alignment is not None for alignment in alignments] == [False, True, False]


def test_log_probabilities_are_normalised_in_float32_under_autocast(tiny):
    captioner = tiny().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = captioner.decoder.log_probs(torch.randn(3, 16))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
