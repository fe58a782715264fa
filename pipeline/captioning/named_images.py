"""Images as a user named them, names for their files, and their user-supplied boxes."""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.errors import InputError
from a2cap.data.image_ids import IMAGE_SUFFIXES, image_id

_MAX_LISTED = 3  # images of the same name in a message


@dataclass(frozen=True)
class NamedImage:
    """A path to an image; `relative` is its path below the folder that was named instead."""

    path: Path
    relative: Path | None = None


class ImageNames:
    """Names for the files of images: the stem, or the whole name of images that share a stem.

    dog.jpg has "dog", and "dog.jpg" if a dog.png is beside it, whichever came first.
    """

    def __init__(self) -> None:
        self._stems: dict[Path, Counter[str]] = {}

    def of(self, image: Path) -> str:
        """Return the name of an image, without suffix."""
        if image.parent not in self._stems:
            beside: list[Path] = []
            with suppress(OSError):  # reading the image reports it
                beside = list(image.parent.iterdir())
            self._stems[image.parent] = Counter(
                path.stem for path in beside if path.suffix.lower() in IMAGE_SUFFIXES
            )
        return image.name if self._stems[image.parent][image.stem] > 1 else image.stem


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
