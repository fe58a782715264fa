"""NIC (Vinyals et al. 2015, Eq. 4-12) against its equations in numpy and float64."""

import numpy as np

from a2cap.model.captioners.recurrent.nic import NicCaptioner
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from tests.model.kinds import make, refusal
from tests.model.transcription import Weights, assert_equal_to_transcription, lstm, softmax


def log_probs(captioner, align, regions, fed):
    weights, rows = Weights(captioner), []
    state = cell = np.zeros(captioner.config.width)
    image = weights["image.weight"] @ regions.mean(0)
    for inputs in (image, *(weights["embedding.weight"][token] for token in fed)):
        state, cell = lstm(weights.linear(np.concatenate([inputs, state]), "gates"), cell)
        rows.append(np.log(softmax(weights.linear(state, "output"))))
    return np.array(rows[1:])  # nothing is predicted after the image


def test_the_image_is_the_first_token_of_the_lstm(images):
    assert_equal_to_transcription(make("nic"), images, log_probs)


def log_probs_of_rnn(captioner, align, regions, fed):
    weights, rows = Weights(captioner), []
    state = np.zeros(captioner.config.width)
    for step, token in enumerate(fed):
        # Eq. 13 and 14: h_t = f(W_hx x_t + W_hh h_t-1 + b_h + 1(t = 1) b_v), b_v = W_hi CNN(I)
        inputs = np.concatenate([weights["embedding.weight"][token], state])
        first = weights["image.weight"] @ regions.mean(0) if step == 0 else 0
        state = np.maximum(weights.linear(inputs, "gates") + first, 0)
        rows.append(np.log(softmax(weights.linear(state, "output"))))  # Eq. 15
    return np.array(rows)


def test_the_image_is_a_bias_of_the_first_step_of_the_rnn(images):
    assert_equal_to_transcription(make("nic", cell="rnn"), images, log_probs_of_rnn)


def test_a_captioner_that_aligns_nothing_is_not_made_with_a_fusion():
    class WithoutMasks(NicConfig):
        @property
        def has_attention(self):
            return True

    settings = WithoutMasks()
    assert settings.alignment.fusion == "gate"
    assert refusal(NicCaptioner, settings, feature_width=6, vocabulary_size=11) == (
        "alignment.fusion is 'gate', but no attention of this captioner is aligned; set "
        "model.alignment.fusion to none, or let `has_attention` of its settings return False"
    )


def test_initial_values_are_those_of_the_authors_code():
    captioner = NicCaptioner(NicConfig(), feature_width=1024, vocabulary_size=1000)
    decoder = captioner.decoder
    for name, parameter in captioner.named_parameters():
        if name.endswith("weight"):
            assert 0.079 < parameter.abs().max().item() <= 0.08
    assert decoder.gates.bias.unflatten(0, (4, 512)).mean(1).tolist() == [0, 1, 0, 0]
    # Eq. 4-9 without biases, an embedding of the image and of the words, and the output layer
    shared = 4 * 512 * (512 + 512 + 1) + 512 * 1024
    assert sum(p.numel() for p in decoder.parameters()) == shared + 1000 * (512 + 513)
