"""Limits on the size of files, which stand in for a full disk."""

import resource
from contextlib import contextmanager


@contextmanager
def limited_to(count):
    """Let no file grow beyond `count` bytes inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
