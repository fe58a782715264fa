"""Up-Down (Anderson et al. 2018, section 3.2) against its equations in numpy and float64."""

import numpy as np
import pytest

from tests.model.kinds import FUSIONS, make
from tests.model.transcription import Weights, assert_equal_to_transcription, lstm, softmax


def log_probs(captioner, align, regions, fed):
    weights, width = Weights(captioner), captioner.config.width
    first, first_cell, second, second_cell = np.zeros((4, width))
    mean, rows = regions.mean(0), []
    for token in fed:
        # h1 = LSTM([E y; mean; h2], h1): one matrix, stored in parts by its inputs
        matrix = np.concatenate(
            [weights[f"{name}.weight"] for name in ("from_token", "from_image", "from_states")], 1
        )
        inputs = np.concatenate([weights["embedding.weight"][token], mean, first, second])
        first, first_cell = lstm(matrix @ inputs + weights["from_token.bias"], first_cell)
        query = weights["attention.query.weight"] @ first
        hidden = np.tanh(regions @ weights["attention.key.weight"].T + query)
        alpha = softmax(hidden @ weights["attention.score.weight"][0])
        context = align(alpha, query, first, regions) @ regions
        gates = weights.linear(np.concatenate([first, context, second]), "language")
        second, second_cell = lstm(gates, second_cell)
        rows.append(np.log(softmax(weights.linear(second, "output"))))
    return np.array(rows)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_passes_equal_the_equations(images, fusion):
    captioner = make("up-down", alignment={"fusion": fusion})
    assert_equal_to_transcription(captioner, images, log_probs)
