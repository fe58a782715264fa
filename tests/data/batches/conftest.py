"""A small feature store and its captions."""

import pytest

from tests.data.batches.items import IDS, WIDTH
from tests.data.features.stores import write_store


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Feature store of the images of IDS."""
    path = tmp_path_factory.mktemp("store") / "features.lmdb"
    write_store(path, IDS, width=WIDTH)
    return path
