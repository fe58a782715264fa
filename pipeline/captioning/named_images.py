"""Images as a user named them, names for their files, and their user-supplied boxes."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.errors import InputError
from a2cap.data.image_ids import image_id, is_image_name, list_images
from a2cap.data.sources.location import require_local

STANDARD_INPUT = Path("-")
_MAX_LISTED = 3  # images of the same name in a message


@dataclass(frozen=True)
class NamedImage:
    """A path to an image; `relative` is its path below the folder that was named instead."""

    path: Path
    relative: Path | None = None


def named_images(
    arguments: Sequence[Path], standard_input: Iterable[bytes]
) -> Iterator[NamedImage]:
    """Yield the named images in order, duplicates included.

    A folder yields the images below it, sorted by path. `-` yields one image per line of standard
    input, read lazily. Raises InputError immediately for a folder without images, and for a
    standard input with a NUL or without a path.
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
    require_local(str(argument))
    if argument.is_dir():
        return [NamedImage(argument / inside, inside) for inside in list_images(argument)]
    return [NamedImage(argument)]


def _lines(standard_input: Iterable[bytes]) -> Iterator[NamedImage]:
    has_lines = False
    for line in standard_input:
        # not stripped: a name may begin or end with spaces, and is not always UTF-8
        name = line.removesuffix(b"\n").removesuffix(b"\r")
        if b"\0" in name:
            raise InputError(
                f"standard input has a NUL: {name[:20]!r}, as an image or find -print0; "
                "write one path per line"
            )
        if name:
            has_lines = True
            yield NamedImage(Path(os.fsdecode(name)))
    if not has_lines:
        raise InputError("no images on standard input; write one path per line")


class ImageNames:
    """Names for the files of images: the stem, or the whole name of images that share a stem.

    dog.jpg has "dog", and "dog.jpg" if a dog.png is beside it, whichever came first. The names of a
    folder are decided together, so that no two images have one name, also where capitals do not
    count. An image that a listing would not find has its whole name, which is made longer if that
    is the stem of another one.
    """

    def __init__(self) -> None:
        self._names: dict[Path, dict[str, str]] = {}

    def of(self, image: Path) -> str:
        """Return the name of an image, without suffix."""
        if image.parent not in self._names:
            with suppress(OSError):  # reading the image reports it
                self._names[image.parent] = _names_in(image.parent)
        names, name = self._names.get(image.parent, {}), image.name
        while image.name not in names and name in names.values():
            name += "_"
        return names.get(image.name, name)


def _names_in(folder: Path) -> dict[str, str]:
    """Return the name without suffix of each image of a folder."""
    names = {path.name: path.stem for path in folder.iterdir() if is_image_name(path)}
    while True:
        counts = Counter(name.casefold() for name in names.values())
        shared = [
            file for file, name in names.items() if counts[name.casefold()] > 1 and name != file
        ]
        if not shared:
            return names
        # a whole name may be the stem of another image: a.jpg and a.jpg.png
        names |= {file: file for file in shared}


class GivenBoxes:
    """Boxes of a COCO instances file, found by file name.

    An image in a named folder is found by its path in that folder, any other by the end of its
    path: "pets/dog.jpg" in the file matches "photos/pets/dog.jpg". COCO's numbers match anywhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._boxes = read_instances(path)

    def find(self, image: NamedImage) -> Instances:
        """Return the boxes of an image; raise InputError for no match or several."""
        if image.relative is not None:
            exact = image_id(image.relative.as_posix())
            if exact in self._boxes:
                return self._boxes[exact]
        matches = self._matches(image.path)
        if len(matches) > 1:
            raise InputError(
                f"unclear which boxes belong to {str(image.path)!r}: {str(self.path)!r} has "
                f"{' and '.join(map(repr, matches))}; "
                "name the folder that these are relative to instead of the image"
            )
        if not matches:
            raise InputError(self._no_match_message(image.path))
        return self._boxes[matches[0]]

    def _matches(self, path: Path) -> list[str]:
        """Return the ids in the file that `path` ends with, the shortest first."""
        parts = Path(os.path.normpath(path.absolute())).parts[1:]
        matches: dict[str, None] = {}
        for count in range(1, len(parts) + 1):
            try:
                identity = image_id("/".join(parts[-count:]))
            except InputError:
                if count == 1:
                    raise
                break  # longer ones are not ids either
            if identity in self._boxes:
                matches[identity] = None
        return list(matches)

    def _no_match_message(self, path: Path) -> str:
        stem = image_id(path.name)
        same_name = [identity for identity in self._boxes if identity.rpartition("/")[2] == stem]
        problem = f"no boxes for image {str(path)!r} in {str(self.path)!r}"
        if not same_name:
            return f"{problem}; add it to 'images' there, by its file name"
        return (
            f"{problem}, which has {', '.join(map(repr, same_name[:_MAX_LISTED]))}; "
            "name the image by the path that it has there"
        )
