"""Widths and heights of images, for feature formats without them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import Sizes
from a2cap.data.files.image_file import image_size
from a2cap.data.files.json_file import read_json
from a2cap.data.identities import Identities
from a2cap.data.image_ids import IdRule, find_images, image_id


def read_coco_sizes(path: Path, rule: IdRule = "number") -> tuple[Sizes, Identities]:
    """Read the sizes in a COCO file, and the ids that it gives to images beside those of files.

    Raises InputError if `images` lacks a name or a size.
    """
    sizes, own = {}, []
    try:
        for image in cast("dict[str, Any]", read_json(path))["images"]:
            identity = image_id(image["file_name"], rule)
            sizes[identity] = int(image["width"]), int(image["height"])
            own.append((identity, image.get("id")))
        return sizes, Identities(own, rule=rule)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path.name!r} lacks file_name, width or height of an image; "
            "name a COCO captions, instances or image-info file"
        ) from error


class ImageSizes(Mapping[str, tuple[int, int]]):
    """The sizes of the images in a folder, read from their headers on demand."""

    def __init__(self, folder: Path, rule: IdRule = "number") -> None:
        self._images = find_images(folder, rule)

    def __getitem__(self, image_id: str) -> tuple[int, int]:
        return image_size(self._images[image_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._images)

    def __len__(self) -> int:
        return len(self._images)
