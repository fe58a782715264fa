"""Checksums of files."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
