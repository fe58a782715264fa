"""Image arguments of `a2 caption`: files, folders, and paths on standard input."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.image_ids import list_images
from a2cap.pipeline.captioning.given_boxes import NamedImage

STANDARD_INPUT = Path("-")
_ADDRESS = re.compile("https?:/", re.IGNORECASE)  # a path joins the two slashes


def named_images(
    arguments: Sequence[Path], standard_input: Iterable[bytes]
) -> Iterator[NamedImage]:
    """Yield the named images in order, duplicates included.

    A folder yields the images below it, sorted by path. `-` yields one image per line of standard
    input, read lazily. Raises InputError immediately for a folder without images, and at the end of
    a standard input without a path.
    """
    if arguments.count(STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, as '-'; name it once")
    # a list, so that a folder without images is an error before any caption
    sources = [_source(argument, standard_input) for argument in arguments]
    return chain.from_iterable(sources)


def may_be_many(arguments: Sequence[Path]) -> bool:
    """Return True unless the arguments name exactly one image."""
    return len(arguments) != 1 or arguments[0] == STANDARD_INPUT or arguments[0].is_dir()


def _source(argument: Path, standard_input: Iterable[bytes]) -> Iterable[NamedImage]:
    if argument == STANDARD_INPUT:
        return _lines(standard_input)
    if _ADDRESS.match(str(argument)):
        raise InputError(f"{str(argument)!r} is a web address; download the image first")
    if argument.is_dir():
        return [NamedImage(argument / inside, inside) for inside in list_images(argument)]
    return [NamedImage(argument)]


def _lines(standard_input: Iterable[bytes]) -> Iterator[NamedImage]:
    named = False
    for line in standard_input:
        # not stripped: a name may begin or end with spaces, and is not always UTF-8
        name = line.removesuffix(b"\n").removesuffix(b"\r")
        if name:
            named = True
            yield NamedImage(Path(os.fsdecode(name)))
    if not named:
        raise InputError("no images on standard input; write one path per line")
