"""Reference captions as PTB tokens, computed once so that training and scoring need no JVM."""

from pathlib import Path
from typing import cast

from a2cap.data.files.json_file import read_json


def load_reference_tokens(path: Path) -> dict[str, list[str]]:
    """Load the PTB-tokenized captions of each image by id, tokens joined by spaces."""
    return cast("dict[str, list[str]]", read_json(path))
