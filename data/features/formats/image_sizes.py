"""Widths and heights of images, for feature formats without them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import Sizes
from a2cap.data.files.image_file import image_size
from a2cap.data.files.json_file import read_json
from a2cap.data.identities import Identities
from a2cap.data.image_ids import IdRule, find_images
from a2cap.data.image_ids import image_id as image_id_of


def sizes_in_coco(path: Path, rule: IdRule = "number") -> Sizes:
    """Read the sizes in a COCO file; raise InputError if `images` lacks a name or a size."""
    content = cast("dict[str, Any]", read_json(path))
    try:
        return {
            image_id_of(image["file_name"], rule): (int(image["width"]), int(image["height"]))
            for image in content["images"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path.name!r} lacks file_name, width or height of an image; "
            "name a COCO captions, instances or image-info file"
        ) from error


def identities_in_coco(path: Path) -> Identities:
    """Return the ids in a COCO file that `sizes_in_coco` reads, beside those of its files."""
    content = cast("dict[str, Any]", read_json(path))
    own = ((image_id_of(image["file_name"]), image.get("id")) for image in content["images"])
    return Identities(own)


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
