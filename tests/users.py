"""Tests as a user without rights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def nobody() -> Iterator[None]:
    """Act as a user who owns no file, if the tests run as root, whom no permission stops."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
