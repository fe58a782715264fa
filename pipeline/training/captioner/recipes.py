"""Recipes of `train.optim`: the optimisation of each kind's authors, and a common one of today.

A recipe gives defaults of other fields; a field that the configuration states wins. What the papers
leave open follows the authors' code. Up-Down: 60,000 updates of 100 captions are 53 epochs; their
momentum scales the rate, torch's does not. AoANet: they clip each value, not the norm. NIC:
their rate of 2.0 is without momentum, which multiplies ours by 10.
"""

from collections.abc import Mapping

Fields = Mapping[str, Mapping[str, object]]
"""Section -> field -> value."""

_ADAM = {"schedule": "constant", "betas": (0.9, 0.999)}
_SAT = {**_ADAM, "lr": 2e-4}
_AOA = {**_ADAM, "lr": 2e-4, "max_length": 16}
_M2 = {"grouping": "caption", "batch_size": 50, "patience": 5, "warmup": 10_000}

RECIPES: Mapping[str, Mapping[str, Fields]] = {
    "transformer": {"authors": {}, "modern": {}},
    "up-down": {
        "authors": {
            "model": {"dropout": 0.0},
            "train": {
                "optimiser": "sgd",
                "schedule": "linear",
                "warmup": 1,
                "lr": 0.01,
                "weight_decay": 5e-4,
                "clip_norm": 10.0,
                "epochs": 53,
                "batch_size": 100,
                "captions_per_image": 1,
            },
        },
        "modern": {
            "model": {"dropout": 0.5},
            "train": {**_ADAM, "lr": 5e-4, "clip_norm": 10.0, "batch_size": 10},
        },
    },
    "show-attend-tell": {
        "authors": {"train": {**_SAT, "grouping": "length", "batch_size": 64, "clip_norm": None}},
        "modern": {"train": {**_SAT, "clip_norm": 5.0, "batch_size": 13}},
    },
    "spatial": {
        "authors": {"train": {**_ADAM, "lr": 3e-4, "max_words": 14, "max_length": 15}},
        "modern": {"train": {**_ADAM, "lr": 3e-4}},
    },
    "gru": {
        "authors": {"train": {**_ADAM, "lr": 1e-3, "grouping": "caption", "batch_size": 64}},
        "modern": {"train": {**_ADAM, "lr": 1e-3, "batch_size": 13}},
    },
    "nic": {
        "authors": {
            "train": {
                "optimiser": "sgd",
                "schedule": "step",
                "warmup": 1,
                "lr": 0.2,
                "decay": 0.5,
                "decay_every": 8,
                "clip_norm": 5.0,
                "grouping": "caption",
                "batch_size": 32,
            }
        },
        "modern": {"train": {**_ADAM, "lr": 1e-3, "clip_norm": 5.0, "batch_size": 13}},
    },
    "aoa": {
        "authors": {
            "train": {
                **_AOA,
                "schedule": "step",
                "warmup": 1,
                "decay": 0.8,
                "decay_every": 3,
                "label_smoothing": 0.2,
                "scheduled_sampling": 0.5,
                "scheduled_sampling_epochs": 50,
                "epochs": 25,
                "clip_norm": None,
            }
        },
        "modern": {"train": _AOA},
    },
    "m2": {"authors": {"train": {**_M2, "clip_norm": None}}, "modern": {"train": _M2}},
}
"""Kind -> recipe -> its fields."""
