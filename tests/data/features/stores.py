"""Small feature stores."""

from functools import partial

import numpy as np

from a2cap.data.errors import StoreError
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import Regions
from tests.data.messages import message_of

refusal = partial(message_of, error=StoreError)


def make_regions(image_id, *, count=None, width=8, attributes=False):
    """Return regions that depend on the id alone; count: 1 to 5 if None."""
    rng = np.random.default_rng([ord(letter) for letter in image_id])
    count = int(rng.integers(1, 6)) if count is None else count
    return Regions(
        boxes=np.sort(rng.uniform(0, 100, (count, 2, 2)), axis=1).reshape(count, 4).astype("f4"),
        features=rng.normal(size=(count, width)).astype(np.float32),
        scores=rng.uniform(size=count).astype(np.float32),
        class_ids=rng.integers(0, 1600, count).astype(np.int32),
        attribute_ids=rng.integers(0, 400, count).astype(np.int32) if attributes else None,
        attribute_scores=rng.random(count, np.float32) if attributes else None,
        width=640,
        height=480,
    )


def write_store(path, ids, *, width=8, sealed=True, **options):
    """Write a store and return its facts, None if it is not sealed."""
    with FeatureWriter(path, **options) as writer:
        for image_id in ids:
            writer.add(image_id, make_regions(image_id, width=width))
        return writer.seal() if sealed else None


def flip_byte(file, content):
    """Flip a bit in the first occurrence of `content` in a file."""
    data = bytearray(file.read_bytes())
    data[data.index(content) + 10] ^= 1
    file.write_bytes(data)


def zero_tree(file):
    """Overwrite all pages of an LMDB file except the two that name the root."""
    data = bytearray(file.read_bytes())
    data[2 * 4096 :] = bytes(len(data) - 2 * 4096)
    file.write_bytes(data)
