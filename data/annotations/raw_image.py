"""Images of annotation files before they are checked, whatever the layout of the file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.errors import InputError

Skip = Callable[[str, str], None]
"""Called with the position of a bad item, such as 'images[3]', and the reason."""


@dataclass(frozen=True)
class RawImage:
    """One image of a file; only the type of `file` is checked.

    split: None if the layout does not name the splits. has_tokens: True if captions are Karpathy's
    objects of raw and tokens, False for strings. dataset: name of the data in the file, "" if none.
    own_id: id that the file gives the image beside its name, None if it gives none.
    """

    position: str
    file: str
    split: object
    captions: Sequence[object]
    has_tokens: bool = False
    dataset: str = ""
    own_id: int | str | None = None


@contextmanager
def skipping(position: str, skip: Skip) -> Iterator[str]:
    """Give the position of an item, and skip the item if it is bad."""
    try:
        yield position
    except (BadItem, InputError) as error:
        skip(position, str(error))
