"""Eq. 2-11 in the whole network, compared with a numpy transcription of the paper in float64.

The transcription takes one image and one caption at a time, without batches, padding or masks, so
that agreement to 1e-10 verifies equations, layers and padding.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from a2cap.model.losses import two_losses
from tests.model.recurrent_equations import STEP, sigmoid, softmax

FUSIONS = ["none", "max", "moving", "decay", "gate"]
READINGS = [
    {"average": "heads", "renormalise_perturbed": True},
    {"average": "heads"},
    {"renormalise_perturbed": True},
    {"aligned_layers": (2,)},
    {"box_geometry": "linear", "penalty_weight": 0.3},
    {"box_geometry": "relative"},
    {"fusion": "moving", "moving_rate": 0.4},
    {"fusion": "decay", "decay_steps": 2e4},
]


def sinusoids(length, width):
    """Compute positions, rounded to float32 as in the network."""
    found = np.zeros((length, width))
    for position in range(length):
        for pair in range(width // 2):
            angle = position / 10_000 ** (2 * pair / width)
            found[position, 2 * pair : 2 * pair + 2] = np.sin(angle), np.cos(angle)
    return found.astype(np.float32)


class Network:
    """Transcription of the A2 Transformer for one image, (R, F) features and (R, 5) boxes."""

    def __init__(self, captioner, *, perturbed):
        self.config, self.alignment = captioner.config, captioner.config.alignment
        self.perturbed = perturbed
        self.heads = captioner.config.heads
        self.weights = {
            name: value.detach().numpy() for name, value in captioner.named_parameters()
        }
        self.keeps = []

    def linear(self, states, name, part=slice(None)):
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        return states @ weight[part].T + (0 if bias is None else bias[part])

    def norm(self, states, name):
        centred = states - states.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(states.var(-1, keepdims=True) + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def feed_forward(self, states, name):
        inner = np.maximum(self.linear(states, f"{name}.inner"), 0)
        return self.linear(inner, f"{name}.outer")

    def head(self, number):
        """Return the columns of a head."""
        width = self.config.width // self.heads
        return np.arange(number * width, (number + 1) * width)

    def self_attention(self, states, name, *, causal, pairs=None):
        width, outputs = self.config.width, []
        for number in range(self.heads):
            query, key, value = (
                self.linear(states, f"{name}.query_key_value", part * width + self.head(number))
                for part in range(3)
            )
            scores = query @ key.T / np.sqrt(query.shape[1])
            if causal:
                scores[np.triu_indices(len(states), 1)] = -np.inf
            if pairs is None:
                outputs.append(softmax(scores) @ value)
                continue
            scores += self.linear(pairs, f"{name}.pair_score", slice(number, number + 1))[..., 0]
            # a key and a value of zeros come last
            attention = softmax(np.concatenate([scores, np.zeros((len(scores), 1))], axis=1))
            values = value + pairs @ self.weights[f"{name}.pair_value"][number]
            outputs.append((attention[:, :-1, None] * values).sum(1))
        return self.linear(np.concatenate(outputs, axis=1), f"{name}.output")

    def encode(self, features, boxes):
        states = np.maximum(self.linear(features, "encoder.embedding.feature"), 0)
        if self.config.box_geometry == "linear":
            states = states + self.linear(boxes, "encoder.embedding.box")
        if self.config.box_geometry == "relative":
            inner = np.maximum(self.linear(boxes, "encoder.embedding.box.0"), 0)
            states = states + self.linear(inner, "encoder.embedding.box.2")
        states = self.norm(states, "encoder.embedding.norm")
        pairs = self.pairs(boxes) if self.config.box_geometry == "relative" else None
        for number in range(self.config.encoder_layers):
            layer = f"encoder.layers.{number}"
            attended = self.self_attention(states, f"{layer}.attention", causal=False, pairs=pairs)
            states = self.norm(states + attended, f"{layer}.attention_norm")
            fed = self.feed_forward(states, f"{layer}.feed_forward")
            states = self.norm(states + fed, f"{layer}.feed_forward_norm")
        return states

    def pairs(self, boxes):
        """Embed how the second box of each pair lies to the first, (R, R, G)."""
        size = len(boxes)
        values = np.empty((size, size, 8))
        for first, second in np.ndindex(size, size):
            x, y, right, bottom = boxes[first, :4]
            other_x, other_y, other_right, other_bottom = boxes[second, :4]
            width, height = max(right - x, 1e-3), max(bottom - y, 1e-3)
            other_width = max(other_right - other_x, 1e-3)
            other_height = max(other_bottom - other_y, 1e-3)
            overlap_x = max(0, min(right, other_right) - max(x, other_x))
            overlap = overlap_x * max(0, min(bottom, other_bottom) - max(y, other_y))
            union = width * height + other_width * other_height - overlap
            moved_x = (other_x + other_right) / 2 - (x + right) / 2
            moved_y = (other_y + other_bottom) / 2 - (y + bottom) / 2
            values[first, second] = [
                *(4 * moved_x, 4 * moved_y, np.sign(moved_x), np.sign(moved_y)),
                *(np.log(other_width / width), np.log(other_height / height)),
                *(overlap / union, overlap / (width * height)),
            ]
        return np.maximum(self.linear(values, "encoder.pairs.inner"), 0)

    def keep(self, hidden, regions, name, number):
        """Compute Eq. 2, (L, R) of one head."""
        if self.alignment.mask_network == "linear":
            slots = number * self.alignment.mask_slots + np.arange(len(regions))
            return sigmoid(self.linear(hidden, f"{name}.score", slots))
        query = self.linear(hidden, f"{name}.query", self.head(number))
        key = self.linear(regions, f"{name}.key", self.head(number))
        bias = self.weights[f"{name}.bias"][number]
        return sigmoid(query @ key.T / np.sqrt(query.shape[1]) + bias)

    def aligned(self, attention, keep, query, name, number):
        """Compute Eq. 5-10, (L, R) of one head."""
        evidence = attention * np.exp(1 - keep)
        if self.alignment.fusion == "max":
            fused = np.maximum(attention, evidence)
        elif self.alignment.fusion == "moving":
            fused = attention + self.alignment.moving_rate * evidence
        else:
            if self.alignment.fusion == "decay":
                share = np.exp(-STEP / self.alignment.decay_steps)
            else:
                weight, bias = (self.weights[f"{name}.gate.{part}"] for part in ("weight", "bias"))
                share = sigmoid(query @ weight[number] + bias[number])
            fused = share * attention + (1 - share) * evidence
        if self.alignment.renormalise_aligned:
            fused = fused / fused.sum(-1, keepdims=True)
        return fused

    def perturb(self, attention, keep, mean_of_heads):
        """Compute Eq. 3, (L, R) of one head."""
        average = 1 / attention.shape[1]
        if self.alignment.average == "heads":
            average = mean_of_heads
        perturbed = keep * attention + (1 - keep) * average
        if self.alignment.renormalise_perturbed:
            perturbed = perturbed / perturbed.sum(-1, keepdims=True)
        return perturbed

    def cross_attention(self, hidden, regions, name, *, aligned):
        width, heads = self.config.width, range(self.heads)
        queries = [self.linear(hidden, f"{name}.query", self.head(number)) for number in heads]
        keys, values = (
            [
                self.linear(regions, f"{name}.key_value", part * width + self.head(number))
                for number in heads
            ]
            for part in range(2)
        )
        used = [
            softmax(query @ key.T / np.sqrt(query.shape[1]))
            for query, key in zip(queries, keys, strict=True)
        ]
        if aligned:
            mean, name_of_masks = sum(used) / len(used), f"{name}.alignment.mask_network"
            keeps = [self.keep(hidden, regions, name_of_masks, number) for number in heads]
            self.keeps.append(keeps)
            used = [
                self.perturb(attention, keep, mean)
                if self.perturbed
                else self.aligned(attention, keep, queries[number], f"{name}.alignment", number)
                for number, (attention, keep) in enumerate(zip(used, keeps, strict=True))
            ]
        outputs = [attention @ value for attention, value in zip(used, values, strict=True)]
        return self.linear(np.concatenate(outputs, axis=1), f"{name}.output")

    def log_probs(self, regions, tokens):
        """Compute log p(y_t | y_<t, x) of Eq. 11, (L,), of the tokens after <bos>."""
        fed = np.array([1, *tokens[:-1]])
        states = self.weights["decoder.embedding.words.weight"][fed] * np.sqrt(self.config.width)
        states = states + sinusoids(len(fed), self.config.width)
        for number in range(self.config.decoder_layers):
            layer = f"decoder.layers.{number}"
            attended = self.self_attention(states, f"{layer}.self_attention", causal=True)
            states = self.norm(states + attended, f"{layer}.self_attention_norm")
            is_aligned = self.config.alignment.includes(number + 1)
            attended = self.cross_attention(
                states, regions, f"{layer}.cross_attention", aligned=is_aligned
            )
            states = self.norm(states + attended, f"{layer}.cross_attention_norm")
            fed_forward = self.feed_forward(states, f"{layer}.feed_forward")
            states = self.norm(states + fed_forward, f"{layer}.feed_forward_norm")
        probabilities = softmax(self.linear(states, "decoder.output"))
        return np.log(probabilities[np.arange(len(tokens)), tokens])


def transcribe(captioner, images, *, perturbed):
    """Return caption loss in nats per token, penalty |1 - m|^2 and log_probs by caption."""
    found, penalties = [], []
    for image, captions in enumerate(images.captions.tolist()):
        exists = images.region_mask[image]
        for caption in captions:
            network = Network(captioner, perturbed=perturbed)
            regions = network.encode(
                images.features[image, exists].numpy(), images.boxes[image, exists].numpy()
            )
            found.append(network.log_probs(regions, [token for token in caption if token]))
            if network.keeps:
                masks = np.array(network.keeps)  # (layers, H, L, R)
                penalties.extend(((1 - masks) ** 2).sum(-1).mean((0, 1)))
    return SimpleNamespace(
        log_probs=found,
        loss=-np.concatenate(found).mean(),
        penalty=np.mean(penalties) if penalties else None,
    )


def assert_equal_to_transcription(captioner, images):
    captioner.schedule_step.fill_(STEP)
    memory = images.encoded(captioner)
    losses = two_losses(captioner, memory, images.captions)
    expected = transcribe(captioner, images, perturbed=False)
    scored = captioner.score(memory, images.captions).log_probs.detach().flatten(0, 1)
    for row, own in zip(scored, expected.log_probs, strict=True):
        np.testing.assert_allclose(row[: len(own)], own, rtol=0, atol=1e-10)
    assert losses.caption.item() == pytest.approx(expected.loss, abs=1e-10)
    if captioner.config.alignment.fusion == "none":
        assert losses.mask is None
        return
    harmed = transcribe(captioner, images, perturbed=True)
    assert losses.statistics.penalty.item() == pytest.approx(harmed.penalty, abs=1e-10)
    expected_mask = -harmed.loss + captioner.config.alignment.penalty_weight * harmed.penalty
    assert losses.mask.item() == pytest.approx(expected_mask, abs=1e-10)


@pytest.mark.parametrize("renormalised", [False, True])
@pytest.mark.parametrize("network", ["bilinear", "linear"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_both_losses_equal_an_independent_transcription_of_the_paper(
    tiny, images, fusion, network, renormalised
):
    options = {"mask_network": network, "mask_slots": 5, "renormalise_aligned": renormalised}
    assert_equal_to_transcription(tiny(fusion=fusion, **options), images)


@pytest.mark.parametrize("reading", READINGS, ids="-".join)
def test_every_reading_of_open_points_equals_its_transcription(tiny, images, reading):
    assert_equal_to_transcription(tiny(**reading), images)


def test_the_passes_of_the_transcription_differ(tiny, images):
    """Check that agreement with the transcription distinguishes the equations."""
    losses = {
        fusion: transcribe(tiny(fusion=fusion), images, perturbed=False).loss for fusion in FUSIONS
    }
    losses["perturbed"] = transcribe(tiny(), images, perturbed=True).loss
    assert min(np.diff(sorted(losses.values()))) > 1e-6
