"""Which images the arguments of `a2 caption` name: files, folders, standard input."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.image_ids import list_images
from a2cap.pipeline.captioning.named_image import NamedImage

STANDARD_INPUT = Path("-")


def named_images(
    arguments: Sequence[Path], standard_input: Iterable[bytes]
) -> Iterator[NamedImage]:
    """The images in the order of the arguments, as often as they are named.

    A folder gives the images below it in the order of their paths; `-` gives one per line of
    standard input, which is read as the images are asked for. Raises InputError at once for a
    folder without images, and where standard input ends without having named one.
    """
    if arguments.count(STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, as '-'; name it once")
    sources = [_source(argument, standard_input) for argument in arguments]
    return chain.from_iterable(sources)


def may_be_many(arguments: Sequence[Path]) -> bool:
    """Whether the arguments could name another number of images than one."""
    return len(arguments) != 1 or arguments[0] == STANDARD_INPUT or arguments[0].is_dir()


def _source(argument: Path, standard_input: Iterable[bytes]) -> Iterable[NamedImage]:
    if argument == STANDARD_INPUT:
        return _lines(standard_input)
    if argument.is_dir():
        return [NamedImage(argument / inside, inside) for inside in list_images(argument)]
    return [NamedImage(argument)]


def _lines(standard_input: Iterable[bytes]) -> Iterator[NamedImage]:
    named = False
    for line in standard_input:
        name = line.removesuffix(b"\n").removesuffix(b"\r")
        if name:
            named = True
            yield NamedImage(Path(os.fsdecode(name)))
    if not named:
        raise InputError("no images on standard input; write one path per line")
