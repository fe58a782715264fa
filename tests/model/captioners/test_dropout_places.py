"""Places and rates of dropout in the training pass of every kind of captioner."""

from collections import Counter

import pytest
from torch import nn
from torch.nn import functional

from a2cap.model.captioners.kinds import make_captioner
from tests.model.kinds import FEATURE_WIDTH, KINDS, VOCABULARY_SIZE

RATES = {"dropout": 0.11, "attention_dropout": 0.07, "feature_dropout": 0.03, "gate_dropout": 0.05}

LAYERS = (0, 1)
PLACES = {
    "transformer": {
        ("encoder.embedding.dropout", 0.03, 16): 1,
        ("self-attention weights", 0.07, 4): 1,
        ("encoder.layers.0.dropout", 0.11, 16): 2,  # attention, feed-forward
        ("self-attention weights", 0.07, 6): 2,
        ("attention weights", 0.07, 4): 2,
        # self-attention, cross-attention, feed-forward
        **{(f"decoder.layers.{n}.dropout", 0.11, 16): 3 for n in LAYERS},
    },
    "aoa": {
        ("encoder.dropout", 0.03, 12): 1,
        ("self-attention weights", 0.07, 4): 2,
        **{(f"encoder.layers.{n}.gate.dropout", 0.05, 24): 1 for n in LAYERS},
        **{(f"encoder.layers.{n}.dropout", 0.07, 12): 1 for n in LAYERS},
        ("attention weights", 0.07, 4): 6,  # one for each token
        ("decoder.dropout", 0.11, 12): 18,  # embedding, context, before the output layer
    },
    "gcn-lstm": {
        ("encoder.dropout", 0.03, 6): 1,
        ("decoder.dropout", 0.11, 7): 6,  # embedding
        ("attention weights", 0.07, 4): 6,
        ("decoder.dropout", 0.11, 12): 6,  # before the output layer
    },
    "get": {
        ("encoder.dropout", 0.03, 12): 1,  # regions and the global vector
        ("self-attention weights", 0.07, 5): 2,
        **{(f"encoder.layers.{n}.dropout", 0.11, 12): 2 for n in LAYERS},
        ("self-attention weights", 0.07, 6): 2,
        ("attention weights", 0.07, 4): 2,  # of the regions alone
        **{(f"decoder.layers.{n}.dropout", 0.11, 12): 3 for n in LAYERS},
    },
    "gru": {("encoder.features.dropout", 0.03, 6): 1, ("attention weights", 0.07, 4): 6},
    "lstm-a": {
        ("encoder.dropout", 0.03, 6): 1,
        ("decoder.dropout", 0.11, 7): 8,  # attributes, image and 6 tokens
        ("decoder.dropout", 0.11, 12): 6,  # before the output layer
    },
    "log-bilinear": {
        ("encoder.dropout", 0.03, 6): 1,
        ("decoder.dropout", 0.11, 12): 12,  # 6 tokens and 6 predicted representations
    },
    "m2": {
        ("encoder.dropout", 0.03, 12): 1,
        ("self-attention weights", 0.07, 7): 2,  # regions and memory
        **{(f"encoder.layers.{n}.dropout", 0.11, 12): 2 for n in LAYERS},
        **{(f"encoder.layers.{n}.feed_forward.dropout", 0.11, 10): 1 for n in LAYERS},
        ("self-attention weights", 0.07, 6): 2,
        ("attention weights", 0.07, 4): 4,  # to two encoder layers
        **{(f"decoder.layers.{n}.dropout", 0.11, 12): 4 for n in LAYERS},
        **{(f"decoder.layers.{n}.feed_forward.dropout", 0.11, 10): 1 for n in LAYERS},
    },
    "nic": {
        ("encoder.dropout", 0.03, 6): 1,
        ("decoder.dropout", 0.11, 7): 7,  # the image and 6 tokens
        ("decoder.dropout", 0.11, 12): 6,  # before the output layer
    },
    "show-attend-tell": {
        ("encoder.dropout", 0.03, 6): 1,
        ("decoder.dropout", 0.11, 6): 1,  # the hidden layer of the initial states
        ("attention weights", 0.07, 4): 6,
        ("decoder.dropout", 0.11, 12): 6,  # the state before the deep output
        ("decoder.dropout", 0.11, 7): 6,  # the deep output
    },
    "spatial": {
        ("encoder.dropout", 0.03, 12): 1,
        ("decoder.embedding.dropout", 0.11, 12): 1,
        ("self-attention weights", 0.07, 4): 1,
        ("self-attention weights", 0.07, 6): 2,
        ("attention weights", 0.07, 4): 2,
    },
    "up-down": {
        ("encoder.dropout", 0.03, 6): 1,
        ("decoder.dropout", 0.11, 7): 6,  # embedding
        ("attention weights", 0.07, 4): 6,
        ("decoder.dropout", 0.11, 12): 6,  # before the output layer
    },
}
"""Kind -> place, rate and last axis of what is dropped -> number in one pass over 6 tokens."""


@pytest.fixture
def places(monkeypatch):
    """Count the calls of dropout by place, rate and last axis of what is dropped."""
    counts: Counter[tuple[str, float, int]] = Counter()
    attend, drop = functional.scaled_dot_product_attention, functional.dropout

    def recorded_attention(queries, keys, values, *, dropout_p=0.0, **named):
        counts["self-attention weights", dropout_p, keys.shape[2]] += 1
        return attend(queries, keys, values, dropout_p=dropout_p, **named)

    def recorded_dropout(values, p=0.5, training=True, inplace=False):
        counts["attention weights", p, values.shape[-1]] += 1
        return drop(values, p, training, inplace)

    def record(name):
        def hook(module, inputs, output):
            counts[name, module.p, output.shape[-1]] += 1

        return hook

    def watch(captioner):
        for name, module in captioner.named_modules():
            if isinstance(module, nn.Dropout):
                module.register_forward_hook(record(name))
        return counts

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded_attention)
    monkeypatch.setattr(functional, "dropout", recorded_dropout)
    monkeypatch.setattr(
        nn.Dropout, "forward", lambda self, values: drop(values, self.p, self.training)
    )
    return watch


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_where_the_authors_have_it(kind, images, places):
    settings = KINDS[kind]()
    fields = {name: rate for name, rate in RATES.items() if name in type(settings).model_fields}
    captioner = make_captioner(
        settings.model_copy(update=fields),
        feature_width=FEATURE_WIDTH,
        vocabulary_size=VOCABULARY_SIZE,
    )
    counts = places(captioner.double().train())
    captioner.score(images.encoded(captioner), images.captions)
    used = {place: count for place, count in counts.items() if place[1]}
    assert used == PLACES[kind]
    counts.clear()
    captioner.eval().score(images.encoded(captioner), images.captions)
    assert not any(rate for name, rate, _ in counts if name.endswith("weights"))
