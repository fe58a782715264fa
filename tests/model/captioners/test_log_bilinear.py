"""The log-bilinear captioner (Kiros et al. 2014) against its equations in numpy and float64."""

import numpy as np
import pytest

from tests.model.kinds import make
from tests.model.transcription import Weights, assert_equal_to_transcription, softmax


def log_probs(captioner, align, regions, fed):
    weights, rows = Weights(captioner), []
    words, context = weights["output.weight"], captioner.config.context
    # C_1 of the oldest word to C_(n-1) of the previous one
    matrices = np.split(weights["words.weight"], context, axis=1)
    for position in range(len(fed)):
        predicted = weights["image.weight"] @ regions.mean(0)
        previous = fed[: position + 1][-context:]
        for matrix, token in zip(matrices[-len(previous) :], previous, strict=True):
            predicted = predicted + matrix @ words[token]
        rows.append(np.log(softmax(words @ predicted + weights["output.bias"])))
    return np.array(rows)


@pytest.mark.parametrize("context", [1, 2, 5])
def test_a_word_depends_on_the_image_and_the_words_before_it(images, context):
    assert_equal_to_transcription(make("log-bilinear", context=context), images, log_probs)
