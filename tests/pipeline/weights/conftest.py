"""A local web server for the tests of downloads."""

import pytest

from tests.data.sources.web import serving


@pytest.fixture
def host():
    with serving({}) as server:
        yield server
