"""Images with regions and captions, and batches of them."""

from dataclasses import fields
from functools import partial

import numpy as np
import torch

from a2cap.data.batches.collate import Batch, collate
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import Batches
from tests.data.features import stores

WIDTH = 6
make_regions = partial(stores.make_regions, width=WIDTH, attributes=True)
IDS = [f"{number:012d}" for number in range(11)]
END = 2


class Captions:
    """Captions of the images of IDS; the token repeated in a caption names image and caption."""

    def __init__(self, counts=None):
        self.counts = counts or dict.fromkeys(IDS, 5)

    def image_ids(self, split):
        return list(self.counts) if split == "train" else []

    def captions(self, image_id):
        tokens = np.zeros((self.counts[image_id], 12), np.int32)
        for number in range(len(tokens)):
            length = 1 + (int(image_id) + number) % 9
            tokens[number, :length] = token_of(image_id, number)
            tokens[number, length] = END
        return tokens


def token_of(image_id, caption):
    return 100 + 10 * int(image_id) + caption


def make_dataset(store, counts=None, **options):
    return CaptionDataset(store, Captions(counts), "train", **{"seed": 7, **options})


def make_batches(dataset, *, seed=7, **options):
    return Batches(dataset, collate, seed=seed, **options)


def epoch_parts(dataset, *, epoch=0, start=0, **options):
    return make_batches(dataset, **options).epoch(epoch, start=start)


def whole_batches(dataset, **options):
    """The batches of an epoch on a single rank without gradient accumulation."""
    return (batch for [batch] in epoch_parts(dataset, **options))


def assert_all_equal(left, right):
    for actual, expected in zip(left, right, strict=True):
        assert actual.image_ids == expected.image_ids
        for field in fields(Batch)[1:]:
            mine, theirs = getattr(actual, field.name), getattr(expected, field.name)
            assert (mine is None) == (theirs is None)
            assert mine is None or torch.equal(mine, theirs), field.name
