"""The bound on what compressed data may expand to, so that a small file cannot fill the memory."""


def expansion_limit(stored: int) -> int:
    """Return the bytes to which `stored` bytes may expand: 100-fold, at least 256 MiB."""
    # JSON shrinks 5 to 30 times; gzip's format allows 1,032 times
    return max(1 << 28, 100 * stored)
