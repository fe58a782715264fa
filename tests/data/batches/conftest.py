"""A small feature store and its captions."""

import pytest

from a2cap.data.features.writer import FeatureWriter
from tests.data.batches.items import IDS, make_regions


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Feature store of the images of IDS."""
    path = tmp_path_factory.mktemp("store") / "features.lmdb"
    with FeatureWriter(path) as writer:
        for image_id in IDS:
            writer.add(image_id, make_regions(image_id))
        writer.seal()
    return path
