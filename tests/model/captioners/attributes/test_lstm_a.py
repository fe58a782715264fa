"""LSTM-A (Yao et al. 2017, arXiv:1611.01646) against its equations in numpy and float64."""

import numpy as np
import pytest
import torch

from a2cap.model.captioners.attributes.lstm_a import AttributeDetector, LstmACaptioner
from a2cap.model.captioners.attributes.lstm_a_config import LstmAConfig
from a2cap.model.losses import two_losses
from tests.model.gradients import assert_slope
from tests.model.kinds import make, refusal
from tests.model.transcription import Weights, assert_equal_to_transcription, lstm, sigmoid, softmax

VARIANTS = ("a1", "a2", "a3", "a4", "a5")


def probabilities(weights, regions):
    """Compute p_i = 1 - prod_r (1 - p_ir), region by region (Fang et al. 2015, section 3)."""
    absent = 1.0
    for region in regions:
        absent = absent * (1 - sigmoid(weights.linear(region, "detector.score")))
    return 1 - absent


def log_probs(captioner, align, regions, fed):
    weights, variant, rows = Weights(captioner), captioner.config.variant, []
    # x = T_a A and x = T_v I; x^t = T_s w_t
    inputs = {"attributes": probabilities(weights, regions), "image": regions.mean(0)}

    def embedded(name):
        return weights.linear(inputs[name], f"inputs.{name}")

    words = [weights["embedding.weight"][token] for token in fed]
    if variant == "a1":  # x^-1 = T_a A
        sequence = [embedded("attributes"), *words]
    elif variant == "a2":  # x^-2 = T_v I, x^-1 = T_a A
        sequence = [embedded("image"), embedded("attributes"), *words]
    elif variant == "a3":  # x^-2 = T_a A, x^-1 = T_v I
        sequence = [embedded("attributes"), embedded("image"), *words]
    elif variant == "a4":  # x^-1 = T_v I, x^t = T_s w_t + T_a A
        sequence = [embedded("image"), *(word + embedded("attributes") for word in words)]
    else:  # x^-1 = T_a A, x^t = T_s w_t + T_v I
        sequence = [embedded("attributes"), *(word + embedded("image") for word in words)]
    state = cell = np.zeros(captioner.config.width)
    for value in sequence:
        state, cell = lstm(weights.linear(np.concatenate([value, state]), "gates"), cell)
        rows.append(np.log(softmax(weights.linear(state, "output"))))
    return np.array(rows[len(sequence) - len(fed) :])  # nothing is predicted before <bos>


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_reads_attributes_and_image_in_its_order(images, variant):
    assert_equal_to_transcription(make("lstm-a", variant=variant), images, log_probs)


def attribute_loss(captioner, images):
    return two_losses(captioner, images.encoded(captioner), images.captions).penalties["attributes"]


def test_the_detector_learns_the_words_of_all_captions_of_an_image(images):
    captioner = make("lstm-a")
    weights, expected = Weights(captioner), 0.0
    for image, captions in enumerate(images.captions.numpy()):
        regions = images.features[image, images.region_mask[image]].numpy()
        for attribute, p in enumerate(probabilities(weights, regions)):
            # 4 is the id of the most frequent word
            expected -= np.log(p if 4 + attribute in captions else 1 - p)
    expected /= (images.captions != 0).sum().item()
    assert attribute_loss(captioner, images).item() == pytest.approx(expected, abs=1e-10)
    assert_slope(
        lambda: attribute_loss(captioner, images), list(captioner.decoder.detector.parameters())
    )


def test_each_side_is_trained_by_its_own_loss(images):
    captioner = make("lstm-a")
    losses = two_losses(captioner, images.encoded(captioner), images.captions)
    detector = set(captioner.decoder.detector.parameters())
    for loss, trained in (
        (losses.caption, set(captioner.parameters()) - detector),
        (losses.penalties["attributes"], detector),
    ):
        captioner.zero_grad()
        loss.backward(retain_graph=True)
        assert {p for p in captioner.parameters() if p.grad is not None} == trained
    assert captioner.penalties_of_truth == captioner.penalty_names == ("attributes",)


def test_an_image_without_captions_teaches_the_detector_nothing(images):
    captioner = make("lstm-a")
    images.captions[1] = 0
    before = attribute_loss(captioner, images)
    images.features[1] += 3
    assert attribute_loss(captioner, images).equal(before)


@pytest.mark.parametrize("score", [-300.0, 300.0])
def test_certain_detectors_have_a_finite_loss_and_gradient(score):
    detector = AttributeDetector(feature_width=2, attributes=3)
    with torch.no_grad():
        detector.score.bias.fill_(score)
    negative_logs = detector(torch.ones(1, 4, 2), torch.ones(1, 4, dtype=torch.bool))
    for shown in (False, True):
        loss = detector.loss(negative_logs, torch.tensor([[shown] * 3]))
        (gradient,) = torch.autograd.grad(loss.sum(), detector.score.bias, retain_graph=True)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()


def test_more_attributes_than_words_are_refused():
    refused = refusal(LstmACaptioner, LstmAConfig(), feature_width=6, vocabulary_size=40)
    assert refused == (
        "attributes is 1000, but the vocabulary has 36 words; set model.attributes to at most 36"
    )
