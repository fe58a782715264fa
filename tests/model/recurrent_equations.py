"""Parts of the numpy transcriptions of recurrent captioners, one image and caption at a time."""

from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest

from a2cap.model.losses import two_losses

STEP = 30_000


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def lstm(gates, cell):
    """Compute a step from the four gates before their activation: input, forget, output, new."""
    enter, forget, leave, new = np.split(gates, 4)
    cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
    return sigmoid(leave) * np.tanh(cell), cell


class Weights:
    """Parameters of a captioner by name, as numpy arrays."""

    def __init__(self, captioner):
        named = captioner.named_parameters()
        self.arrays = {name: value.detach().numpy() for name, value in named}

    def __getitem__(self, name):
        return self.arrays[f"decoder.{name}"]

    def linear(self, states, name):
        bias = self.arrays.get(f"decoder.{name}.bias")
        return states @ self[f"{name}.weight"].T + (0 if bias is None else bias)


class Aligned:
    """Eq. 2-10 of a head, with the default readings; alpha (R,), query (A,), hidden (D,)."""

    def __init__(self, captioner, *, perturbed, name):
        self.weights, self.settings = Weights(captioner), captioner.config.alignment
        self.perturbed, self.name = perturbed, name
        self.keeps = []

    def named(self, name):
        """Return the same for the alignment of another name, which collects the same masks."""
        other = copy(self)
        other.name = name
        return other

    def __call__(self, alpha, query, hidden, regions, *, head=0, heads=1):
        fusion, weights = self.settings.fusion, self.weights
        if fusion == "none":
            return alpha
        keys = np.split(weights.linear(regions, f"{self.name}.mask_network.key"), heads, axis=1)[
            head
        ]
        own = np.split(weights.linear(hidden, f"{self.name}.mask_network.query"), heads)[head]
        bias = weights[f"{self.name}.mask_network.bias"][head]
        keep = sigmoid(keys @ own / np.sqrt(len(own)) + bias)  # Eq. 2
        self.keeps.append(keep)
        if self.perturbed:
            return keep * alpha + (1 - keep) / len(alpha)  # Eq. 3
        evidence = alpha * np.exp(1 - keep)  # Eq. 5
        if fusion == "moving":
            return alpha + 0.1 * evidence  # Eq. 7
        if fusion == "max":
            return np.maximum(alpha, evidence)  # Eq. 6
        share = np.exp(-STEP / self.settings.decay_steps)  # Eq. 8
        if fusion == "gate":  # Eq. 10
            gate_weight, gate_bias = (
                weights[f"{self.name}.gate.weight"],
                weights[f"{self.name}.gate.bias"],
            )
            share = sigmoid(query @ gate_weight[head, :, 0] + gate_bias[head, 0, 0])
        return share * alpha + (1 - share) * evidence


def transcribe(captioner, images, log_probs, *, perturbed, name):
    """Return each caption's log-probabilities, their mean loss, and the penalty |1 - m|^2.

    log_probs: from (captioner, align, regions (R, F), tokens fed (L,)) to (L, V).
    """
    found, penalties = [], []
    for image, captions in enumerate(images.captions.tolist()):
        regions = images.features[image, images.region_mask[image]].numpy()
        for caption in captions:
            tokens = [token for token in caption if token]
            align = Aligned(captioner, perturbed=perturbed, name=name)
            rows = log_probs(captioner, align, regions, [1, *tokens[:-1]])
            found.append(rows[np.arange(len(tokens)), tokens])
            penalties += [((1 - keep) ** 2).sum() for keep in align.keeps]
    return SimpleNamespace(
        log_probs=found, loss=-np.concatenate(found).mean(), penalty=np.mean(penalties or [0])
    )


def assert_equal_to_transcription(captioner, images, log_probs, *, name="attention.alignment"):
    """Compare both passes and both losses to 1e-10."""
    captioner.schedule_step.fill_(STEP)
    memory = images.encoded(captioner)
    losses = two_losses(captioner, memory, images.captions)
    for perturbed in (False, True):
        expected = transcribe(captioner, images, log_probs, perturbed=perturbed, name=name)
        scored = captioner.score(memory, images.captions, perturbed=perturbed).log_probs
        for row, own in zip(scored.detach().flatten(0, 1), expected.log_probs, strict=True):
            np.testing.assert_allclose(row[: len(own)], own, rtol=0, atol=1e-10)
        if not perturbed:
            assert losses.caption.item() == pytest.approx(expected.loss, abs=1e-10)
        elif losses.mask is not None:
            assert losses.mask.item() == pytest.approx(
                0.035 * expected.penalty - expected.loss, abs=1e-10
            )
