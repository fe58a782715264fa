"""The files of a checkpoint directory, and what keeps them from being used."""

import json
from pathlib import Path

from a2cap.data.files.checksum import sha256_of

TENSORS, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"
FILES = (TENSORS, STATE)


def checkpoint_problem(directory: Path) -> str | None:
    """What is incomplete or damaged, found by reading every byte; None for a sound checkpoint."""
    try:
        digests = json.loads((directory / MANIFEST).read_text())["sha256"]
        damaged = [name for name in FILES if sha256_of(directory / name) != digests[name]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"checkpoint is incomplete: {str(directory)!r} ({error})"
    return f"checkpoint is damaged: {str(directory / damaged[0])!r}" if damaged else None
