"""Parts of the numpy transcriptions of captioners, one image and caption at a time, in float64.

They have no batches, padding or masks, so that agreement to 1e-10 verifies equations, layers and
padding.
"""

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


def sinusoids(count, width, *, first=0):
    """Compute positions from `first` on, (count, width), rounded to float32 as in the network."""
    angles = np.arange(first, first + count)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(count, width).astype("f")


def plain(scores, queries, head):
    """Return the weights of attention without alignment."""
    return softmax(scores)


def causal(scores, queries, head):
    """Return the weights of attention to the current and earlier tokens."""
    return softmax(np.where(np.tri(len(scores), dtype=bool), scores, -np.inf))


def attend(queries, keys, values, heads, weigh=plain, *, length=0):
    """Attend head by head; weigh: from scores (Q, R), queries (Q, d) and head to weights (Q, R)."""
    parts = (np.split(part, heads, axis=1) for part in (queries, keys, values))
    heads_out = []
    for head, (query, key, value) in enumerate(zip(*parts, strict=True)):
        scores = query @ key.T / np.sqrt(length + query.shape[1])
        heads_out.append(weigh(scores, query, head) @ value)
    return np.concatenate(heads_out, axis=1)


class Weights:
    """Parameters of the encoder or decoder of a captioner by name, as numpy arrays."""

    def __init__(self, captioner, box="decoder"):
        named = captioner.get_submodule(box).named_parameters()
        self.arrays = {name: value.detach().numpy() for name, value in named}

    def __getitem__(self, name):
        return self.arrays[name]

    def linear(self, states, name):
        return states @ self[f"{name}.weight"].T + self.arrays.get(f"{name}.bias", 0)

    def norm(self, states, name=None):
        centred = states - states.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled if name is None else scaled * self[f"{name}.weight"] + self[f"{name}.bias"]

    def self_attend(self, states, name, heads, weigh=plain, *, length=0):
        parts = np.split(self.linear(states, f"{name}.query_key_value"), 3, axis=1)
        added = self.linear(attend(*parts, heads, weigh, length=length), f"{name}.output")
        return self.norm(states + added, f"{name}_norm")

    def feed_forward(self, states, layer):
        inner = np.maximum(self.linear(states, f"{layer}.feed_forward.inner"), 0)
        added = self.linear(inner, f"{layer}.feed_forward.outer")
        return self.norm(states + added, f"{layer}.feed_forward_norm")


class Aligned:
    """Eq. 2-10 of a head; alpha (R,), query (A,), hidden (D,); boxes: (R, 5), of the image.

    mean: (R,), the average of alpha over heads, for the reading that needs it.
    """

    def __init__(self, captioner, boxes, *, perturbed, name):
        self.weights, self.settings = Weights(captioner), captioner.config.alignment
        self.boxes, self.perturbed, self.name = boxes, perturbed, name
        self.keeps = []

    def named(self, name):
        """Return the same for the alignment of another name, which collects the same masks."""
        other = copy(self)
        other.name = name
        return other

    def over(self, hidden, regions, heads, means=None):
        """Return the `weigh` of `attend` from hidden (Q, D) to regions (R, D); means: (Q, R)."""

        def weigh(scores, queries, head):
            means_of_rows = [None] * len(scores) if means is None else means
            rows = zip(softmax(scores), queries, hidden, means_of_rows, strict=True)
            return np.array(
                [
                    self(alpha, query, state, regions, head=head, heads=heads, mean=mean)
                    for alpha, query, state, mean in rows
                ]
            )

        return weigh

    def __call__(self, alpha, query, hidden, regions, *, head=0, heads=1, mean=None):
        settings = self.settings
        if settings.fusion == "none":
            return alpha
        keep = self._keep(hidden, regions, head, heads)
        self.keeps.append(keep)
        if self.perturbed:
            average = mean if settings.average == "heads" else 1 / len(alpha)
            used = keep * alpha + (1 - keep) * average  # Eq. 3
            is_renormalised = settings.renormalise_perturbed
        else:
            used = self._fused(alpha, alpha * np.exp(1 - keep), query, head)  # Eq. 5
            is_renormalised = settings.renormalise_aligned
        return used / used.sum() if is_renormalised else used

    def _keep(self, hidden, regions, head, heads):
        """Compute Eq. 2."""
        network = f"{self.name}.mask_network"
        if self.settings.mask_network == "linear":
            slots = head * self.settings.mask_slots + np.arange(len(regions))
            return sigmoid(self.weights.linear(hidden, f"{network}.score")[slots])
        keys = np.split(self.weights.linear(regions, f"{network}.key"), heads, axis=1)[head]
        own = np.split(self.weights.linear(hidden, f"{network}.query"), heads)[head]
        return sigmoid(keys @ own / np.sqrt(len(own)) + self.weights[f"{network}.bias"][head])

    def _fused(self, alpha, evidence, query, head):
        fusion, settings = self.settings.fusion, self.settings
        if fusion == "moving":
            return alpha + settings.moving_rate * evidence  # Eq. 7
        if fusion == "max":
            return np.maximum(alpha, evidence)  # Eq. 6
        share = np.exp(-STEP / settings.decay_steps)  # Eq. 8
        if fusion == "gate":  # Eq. 10
            weight, bias = (self.weights[f"{self.name}.gate.{part}"] for part in ("weight", "bias"))
            share = sigmoid(query @ weight[head, :, 0] + bias[head, 0, 0])
        return share * alpha + (1 - share) * evidence


def transcribe(captioner, images, log_probs, *, perturbed, name="attention.alignment"):
    """Return each caption's log-probabilities, their mean loss, and the penalty |1 - m|^2.

    log_probs: from (captioner, align, regions (R, F), tokens fed (L,)) to (L, V).
    """
    words, penalties = [], []
    for image, captions in enumerate(images.captions.tolist()):
        exists = images.region_mask[image]
        regions, boxes = (of[image, exists].numpy() for of in (images.features, images.boxes))
        for caption in captions:
            tokens = [token for token in caption if token]
            align = Aligned(captioner, boxes, perturbed=perturbed, name=name)
            rows = log_probs(captioner, align, regions, [1, *tokens[:-1]])
            words.append(rows[np.arange(len(tokens)), tokens])
            penalties += [((1 - keep) ** 2).sum() for keep in align.keeps]
    return SimpleNamespace(
        log_probs=words, loss=-np.concatenate(words).mean(), penalty=np.mean(penalties or [0])
    )


def assert_equal_to_transcription(captioner, images, log_probs, *, name="attention.alignment"):
    """Compare both passes and both losses to 1e-10."""
    captioner.schedule_step.fill_(STEP)
    memory = images.encoded(captioner)
    losses = two_losses(captioner, memory, images.captions)
    assert (losses.mask is None) == (captioner.config.alignment.fusion == "none")
    for perturbed in (False, True):
        expected = transcribe(captioner, images, log_probs, perturbed=perturbed, name=name)
        scored = captioner.score(memory, images.captions, perturbed=perturbed).log_probs
        for row, own in zip(scored.detach().flatten(0, 1), expected.log_probs, strict=True):
            np.testing.assert_allclose(row[: len(own)], own, rtol=0, atol=1e-10)
        if not perturbed:
            assert losses.caption.item() == pytest.approx(expected.loss, abs=1e-10)
        elif losses.mask is not None:
            weight = captioner.config.alignment.penalty_weight
            assert losses.masks.penalty.item() == pytest.approx(expected.penalty, abs=1e-10)
            assert losses.mask.item() == pytest.approx(
                weight * expected.penalty - expected.loss, abs=1e-10
            )
