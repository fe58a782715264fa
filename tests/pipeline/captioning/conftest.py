"""The experiment's captioner and features; tests copy the captioner before they change it."""

import pytest
import torch

from a2cap.data.batches.loader import image_batches
from a2cap.data.features.store import FeatureStore
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.pipeline.captioning.decoding import caption_batches


@pytest.fixture(scope="module")
def trained(experiment):
    return experiment.directory("train-xe")


@pytest.fixture(scope="module")
def store(experiment):
    return FeatureStore(experiment.directory("extract") / "features.lmdb")


@pytest.fixture(scope="module")
def decode(store):
    """Return a function that captions images of the store, by default the first dozen."""

    def run(
        captioner,
        vocabulary,
        *,
        image_ids=None,
        batch_size=50,
        vote=None,
        precision="fp32",
        **settings,
    ):
        image_ids = image_ids or list(store)[:12]
        batches = image_batches(store.path, image_ids, batch_size=batch_size)
        config = DecodingConfig(**{"beam_size": 2, "max_length": 8, **settings})
        return list(
            caption_batches(
                captioner,
                batches,
                vocabulary,
                config,
                device=torch.device("cpu"),
                precision=precision,
                vote=vote,
            )
        )

    return run
