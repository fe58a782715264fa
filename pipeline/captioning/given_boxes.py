"""The boxes that somebody gives with single images: which of a file belong to which image."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import read_boxes
from a2cap.data.errors import InputError
from a2cap.data.image_ids import image_id
from a2cap.pipeline.captioning.named_image import NamedImage

_NAMED = 3
"""How many images of the same name a message names."""


class GivenBoxes:
    """The boxes of a COCO instances file, found by the names that images have there.

    An image below a folder that was named is looked for by its path in that folder. Any other
    belongs to the name in which its own path ends: "pets/dog.jpg" in the file fits
    "photos/pets/dog.jpg", but not "dog.jpg" elsewhere. COCO's numbers fit in any folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._boxes = read_boxes(path)

    def of(self, image: NamedImage) -> NDArray[np.float32]:
        """(R, 4) float32 x1 y1 x2 y2; InputError where no name in the file fits, or several do."""
        if image.relative is not None:
            exact = image_id(image.relative.as_posix())
            if exact in self._boxes:
                return self._boxes[exact]
        fitting = self._fitting(image.path)
        if len(fitting) > 1:
            raise InputError(
                f"unclear which boxes belong to {str(image.path)!r}: {str(self.path)!r} has "
                f"{' and '.join(map(repr, fitting))}; "
                "name the folder that these are relative to instead of the image"
            )
        if not fitting:
            raise InputError(self._nothing_for(image.path))
        return self._boxes[fitting[0]]

    def _fitting(self, path: Path) -> list[str]:
        """The ids in the file that end `path`, the shortest first."""
        parts = Path(os.path.normpath(path.absolute())).parts[1:]
        fitting: dict[str, None] = {}
        for count in range(1, len(parts) + 1):
            try:
                identity = image_id("/".join(parts[-count:]))
            except InputError:
                if count == 1:
                    raise
                break  # longer ones are no ids either
            if identity in self._boxes:
                fitting[identity] = None
        return list(fitting)

    def _nothing_for(self, path: Path) -> str:
        stem = image_id(path.name)
        alike = [identity for identity in self._boxes if identity.rpartition("/")[2] == stem]
        what = f"no boxes for image {str(path)!r} in {str(self.path)!r}"
        if not alike:
            return f"{what}; add it to 'images' there, by its file name"
        return (
            f"{what}, which has {', '.join(map(repr, alike[:_NAMED]))}; "
            "name the image by the path that it has there"
        )
