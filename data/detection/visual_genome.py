"""Labelled boxes from Visual Genome 1.2 and 1.4 (Krishna et al. 2017, arXiv:1602.07332).

Names are cleaned and mapped to the given lists as bottom-up-attention @1ba7086 does
(data/genome/setup_vg.py, lib/datasets/vg.py): the first name of an object counts, common adjectives
before its last word become attributes ("white dog" is a white dog), "red and blue" is two
attributes. Elsewhere we differ: a box ends at the image's edge, not at its last pixel; one that
has no area there is dropped, where they take the whole image; and attributes over the limit are
the last ones, theirs are any.

Each file in turn is held in memory as text, which takes twice its size, and read image by
image; of attributes.json the names stay. Images' sizes come from the headers of their files.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from PIL import Image

from a2cap.data.annotations.json_items import (
    BadItem,
    key_member,
    list_member,
    member,
    pixel_numbers,
    read_each,
)
from a2cap.data.annotations.read import SkippedItem
from a2cap.data.detection.labels import (
    WITHOUT_AREA,
    DetectionData,
    Label,
    LabelledImage,
    check_usable,
    labelled_image,
)
from a2cap.data.detection.name_list import NameList, read_name_list
from a2cap.data.errors import InputError
from a2cap.data.files.image_file import open_image
from a2cap.data.files.json_file import read_json_list
from a2cap.data.image_ids import image_id

MOST_ATTRIBUTES = 16
"""Of one box; no box of bottom-up-attention's vocabulary has more."""

UNKNOWN_OBJECT = "boxes of a name that is not in the list"
UNKNOWN_ATTRIBUTE = "attributes of a name that is not in the list"
ABOVE_MOST = "attributes above the most that a box may have"
NO_KNOWN_OBJECT = "no box of a known name"
"""Why an image is skipped though its file is there."""

_COMMON_ATTRIBUTES = frozenset(
    {"black", "blue", "brown", "dark", "gray", "green", "grey", "large", "long", "metal", "orange"}
    | {"pink", "red", "silver", "small", "tall", "white", "wooden", "yellow"}
)

_Attributes = dict[int | str, dict[int | str, list[str]]]
"""Cleaned attribute names in the file's order, by image id and object id."""


def read_visual_genome(
    objects: Path,
    attributes: Path,
    images: Path,
    *,
    object_names: Path,
    attribute_names: Path,
    only: Collection[str] | None = None,
    most_attributes: int = MOST_ATTRIBUTES,
) -> DetectionData:
    """The images of objects.json that show something of a known name.

    objects, attributes: objects.json and attributes.json. images: holds ID.jpg, or folders VG_100K*
    of them. object_names, attribute_names: lists as `read_name_list` reads them. only: ids of the
    images to take, as `read_ids` reads them.

    Skips images without a file and those without a known object. Raises InputError with the place
    of an item that cannot be read, where too many files are missing, where no object has a known
    name, and where an id of `only` is not in the file.
    """
    known = _Known(read_name_list(object_names), read_name_list(attribute_names), most_attributes)
    wanted = None if only is None else frozenset(only)
    reading = _Reading(known, _Folders(images), _read_attributes(attributes, wanted), wanted)
    read_each(read_json_list(objects), reading.add, path=objects, key="images")
    check_usable(reading.skipped, total=len(reading.seen), annotations=objects, images=images)
    if not reading.images:
        raise InputError(
            f"no object of {str(objects)!r} has a name that is in {str(object_names)!r}; "
            "check that list"
        )
    data = DetectionData(
        classes=known.objects.names,
        attributes=known.attributes.names,
        images=tuple(reading.images[identity] for identity in sorted(reading.images)),
        skipped=(*reading.skipped, *(SkippedItem(of, NO_KNOWN_OBJECT) for of in reading.unknown)),
        dropped=dict(reading.dropped),
    )
    return data if wanted is None else data.only(wanted)


def clean_name(text: str) -> str:
    """Lower case, without the space around and one full stop at the end."""
    return text.lower().strip().removesuffix(".").strip()


def split_object_name(name: str) -> tuple[str, tuple[str, ...]]:
    """What an object is called, and the common adjectives that stood before it."""
    *before, last = clean_name(name).split() or [""]
    if before and _COMMON_ATTRIBUTES.issuperset(before):
        return last, tuple(before)
    return clean_name(name), ()


def split_attribute(text: str) -> tuple[str, ...]:
    """The attributes that one text names."""
    name = clean_name(text)
    return (name,) if name == "black and white" else tuple(map(str.strip, name.split(" and ")))


def _read_attributes(path: Path, wanted: frozenset[str] | None) -> _Attributes:
    found: _Attributes = {}

    def add(item: object) -> None:
        number, entries = key_member(item, "image_id"), list_member(item, "attributes")
        if wanted is not None and _identity(number) not in wanted:
            return
        of_image = found.setdefault(number, {})
        for entry in entries:
            number, names = key_member(entry, "object_id"), _attribute_names(entry)
            if names:
                of_image.setdefault(number, []).extend(map(sys.intern, names))

    read_each(read_json_list(path), add, path=path, key="images")
    return found


def _attribute_names(entry: object) -> list[str]:
    texts = entry.get("attributes") if isinstance(entry, dict) else None
    if texts is None:
        return []
    if not isinstance(texts, list):
        raise BadItem("'attributes' is not a list")
    return [name for text in texts if isinstance(text, str) for name in split_attribute(text)]


class _Known:
    """Names as class and attribute ids."""

    def __init__(self, objects: NameList, attributes: NameList, most_attributes: int) -> None:
        self.objects = objects
        self.attributes = attributes
        self._most = most_attributes

    def attribute_ids(self, names: Iterable[str], dropped: Counter[str]) -> tuple[int, ...]:
        names = tuple(names)
        places = [self.attributes.places[name] for name in names if name in self.attributes.places]
        ids = tuple(dict.fromkeys(places))
        dropped[UNKNOWN_ATTRIBUTE] += len(names) - len(places)
        dropped[ABOVE_MOST] += len(ids[self._most :])
        return ids[: self._most]


class _Folders:
    """Where the image of each number is: in the folder, or in one of its VG_100K*."""

    def __init__(self, images: Path) -> None:
        folders = (images, *sorted(images.glob("VG_100K*")))
        self._files = {file.stem: file for folder in folders for file in folder.glob("*.jpg")}

    def find(self, number: int | str) -> tuple[Path, tuple[int, int]]:
        """The file and its width and height; BadItem says why there is none of use."""
        name = str(number)
        if name not in self._files:
            raise BadItem(f"no file '{name}.jpg'")
        try:
            with open_image(self._files[name]) as image:
                return self._files[name], image.size
        except (OSError, Image.DecompressionBombError) as error:
            raise BadItem(f"no image: '{name}.jpg' has no header that can be read") from error


class _Reading:
    """What was collected of objects.json, image by image."""

    def __init__(
        self,
        known: _Known,
        folders: _Folders,
        attributes: _Attributes,
        wanted: frozenset[str] | None,
    ) -> None:
        self._known = known
        self._folders = folders
        self._attributes = attributes
        self._wanted = wanted
        self.seen: set[str] = set()
        self.images: dict[str, LabelledImage] = {}
        self.skipped: list[SkippedItem] = []
        self.unknown: list[str] = []
        self.dropped = Counter(
            {UNKNOWN_OBJECT: 0, WITHOUT_AREA: 0, UNKNOWN_ATTRIBUTE: 0, ABOVE_MOST: 0}
        )

    def add(self, item: object) -> None:
        """Takes one image of the file; BadItem where it cannot be read."""
        number, objects = key_member(item, "image_id"), list_member(item, "objects")
        identity = _identity(number)
        if self._wanted is not None and identity not in self._wanted:
            return
        if identity in self.seen:
            raise BadItem(f"image {identity!r} stands twice")
        self.seen.add(identity)
        try:
            file, (width, height) = self._folders.find(number)
        except BadItem as error:
            self.skipped.append(SkippedItem(identity, str(error)))
            return
        labels = self._labels(objects, self._attributes.get(number, {}))
        image = labelled_image(identity, file, width=width, height=height, labels=labels)
        self.dropped[WITHOUT_AREA] += len(labels) - len(image.boxes)
        if len(image.boxes):
            self.images[identity] = image
        else:
            self.unknown.append(identity)

    def _labels(
        self, objects: Iterable[object], attributes: Mapping[int | str, list[str]]
    ) -> list[Label]:
        labels = []
        for index, item in enumerate(objects):
            try:
                label = self._label(item, attributes)
            except BadItem as error:
                raise BadItem(f"objects[{index}]: {error}") from error
            if label is not None:
                labels.append(label)
        return labels

    def _label(self, item: object, attributes: Mapping[int | str, list[str]]) -> Label | None:
        """The object's label, None where its name is not known."""
        identity, names = key_member(item, "object_id"), list_member(item, "names")
        x, y, width, height = pixel_numbers([member(item, key) for key in "xywh"], "'x y w h'")
        first = names[0] if names and isinstance(names[0], str) else ""
        name, adjectives = split_object_name(first)
        class_id = self._known.objects.places.get(name)
        if class_id is None:
            self.dropped[UNKNOWN_OBJECT] += 1
            return None
        described = (*adjectives, *attributes.get(identity, ()))
        return Label(
            box=(x, y, x + width, y + height),
            class_id=class_id,
            attribute_ids=self._known.attribute_ids(described, self.dropped),
        )


def _identity(number: int | str) -> str:
    return image_id(f"{number}.jpg")
