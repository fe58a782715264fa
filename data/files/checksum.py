"""Checksums of files, and files that begin with the checksum of their content."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_checksum(content: bytes) -> bytes:
    """Return the content after a line of its hex SHA-256."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def without_checksum(stored: bytes) -> bytes | None:
    """Return the content that `with_checksum` was given, None if it is damaged."""
    checksum, _, content = stored.partition(b"\n")
    return content if checksum == hashlib.sha256(content).hexdigest().encode() else None
