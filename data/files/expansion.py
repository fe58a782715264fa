"""The bound on what compressed data may expand to, so that a small file cannot fill the memory."""

from zipfile import ZipFile


def expansion_limit(stored: int) -> int:
    """Return the bytes to which `stored` bytes may expand: 100-fold, at least 256 MiB."""
    # JSON shrinks 5 to 30 times; gzip's format allows 1,032 times
    return max(1 << 28, 100 * stored)


def read_member(archive: ZipFile, name: str) -> bytes:
    """Return a file of a zip; raise ValueError if it expands too much."""
    info = archive.getinfo(name)
    if info.file_size > expansion_limit(info.compress_size):
        raise ValueError(f"{name} expands to {info.file_size:,} bytes")
    return archive.read(info)
