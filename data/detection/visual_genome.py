"""Labelled boxes from Visual Genome 1.2 and 1.4 (Krishna et al. 2017, arXiv:1602.07332).

Names are cleaned and mapped to the given lists as in bottom-up-attention @1ba7086
(data/genome/setup_vg.py, lib/datasets/vg.py). Three things differ: boxes are clipped to the image's
edge, not to its last pixel; boxes without area are dropped, not replaced by the whole image; of too
many attributes the last are dropped, not arbitrary ones.
"""

import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.data.annotations.json_items import (
    BadItem,
    key_member,
    list_member,
    member,
    pixel_numbers,
)
from a2cap.data.detection.labels import (
    WITHOUT_AREA,
    DetectionData,
    Label,
    LabelledImage,
    check_usable,
    labelled_image,
    names_no_image,
)
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.image_file import image_size
from a2cap.data.files.json_file import read_json_list, read_text
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.image_ids import image_id

MOST_ATTRIBUTES = 16
"""Maximum per box; no box of bottom-up-attention's vocabulary has more."""

UNKNOWN_OBJECT = "boxes of unlisted objects"
UNKNOWN_ATTRIBUTE = "unlisted attributes"
ABOVE_MOST = "attributes beyond the maximum of a box"
_REASONS = (UNKNOWN_OBJECT, WITHOUT_AREA, UNKNOWN_ATTRIBUTE, ABOVE_MOST)
NO_KNOWN_OBJECT = "no box of a listed object"
"""Reason to skip an image that has a file."""

_COMMON_ATTRIBUTES = frozenset(
    {"black", "blue", "brown", "dark", "gray", "green", "grey", "large", "long", "metal", "orange"}
    | {"pink", "red", "silver", "small", "tall", "white", "wooden", "yellow"}
)

_Attributes = dict[int | str, dict[int | str, list[str]]]
"""Cleaned attribute names by image id and object id, in the file's order."""


@dataclass(frozen=True)
class NameList:
    """Classes of a list. names: of each class; ids: class id of every name and synonym.

    The layout of bottom-up-attention's data/genome/1600-400-20 (`objects_vocab.txt`): one class per
    line; "tennis racket,tennis racquet" is one class, named "tennis racket".
    """

    names: tuple[str, ...]
    ids: dict[str, int]


def read_name_list(path: Path) -> NameList:
    """Read a list; names are stripped and in lower case, empty lines are skipped.

    Raises InputError if there is no name or if two classes share one.
    """
    names: list[str] = []
    ids: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        synonyms = [name.strip() for name in line.lower().split(",") if name.strip()]
        for name in synonyms:
            # a synonym may be repeated within its class
            if ids.setdefault(name, len(names)) != len(names):
                raise InputError(
                    f"line {number} of {str(path)!r} repeats {name!r}, a name of "
                    f"{names[ids[name]]!r}; keep one"
                )
        names += synonyms[:1]
    if not names:
        raise InputError(
            f"no names in {str(path)!r}; write one class per line, synonyms separated by commas"
        )
    return NameList(tuple(names), ids)


def read_visual_genome(
    objects: Path,
    attributes: Path,
    images: Path,
    *,
    object_names: Path,
    attribute_names: Path,
    only: Collection[str] | None = None,
) -> DetectionData:
    """Read the images of objects.json that have a listed object; skip the others.

    images: folder of ID.jpg, or of folders VG_100K* of them.
    object_names, attribute_names: files for `read_name_list`.
    only: ids of the images to read.
    Raises InputError if too many images have no file or a bad item, if no object is listed, and if
    an id of `only` is not in the file.
    """
    classes, listed = read_name_list(object_names), read_name_list(attribute_names)
    ids = None if only is None else frozenset(only)
    folders = (images, *sorted(images.glob("VG_100K*")))
    files = {file.stem: file for folder in folders for file in folder.glob("*.jpg")}
    reader = _Reader(classes, listed, files, *_read_attributes(attributes, ids), ids)
    for index, item in enumerate(read_json_list(objects)):
        reader.add(item, f"images[{index}]")
    bad = {
        of: reason
        for of, reason in reader.skipped.items()
        if ids is None or of in ids or names_no_image(of)
    }
    skipped = [SkippedItem(of, reason) for of, reason in bad.items()]
    check_usable(skipped, total=len(reader.seen | bad.keys()), annotations=objects, images=images)
    if not reader.images:
        raise InputError(
            f"no object of {str(objects)!r} is listed in {str(object_names)!r}; check that list"
        )
    data = DetectionData(
        classes=classes.names,
        attributes=listed.names,
        images=tuple(reader.images[identity] for identity in sorted(reader.images)),
        skipped=(
            *skipped,
            *(SkippedItem(of, NO_KNOWN_OBJECT) for of in reader.unknown if of not in bad),
        ),
        dropped={reason: reader.dropped[reason] for reason in _REASONS},
    )
    return data if ids is None else data.subset(ids)


def clean_name(text: str) -> str:
    """Return the text in lower case, without surrounding space and one final full stop."""
    return text.lower().strip().removesuffix(".").strip()


def split_object_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of an object and its common adjectives: "white dog" is a dog, white."""
    *before, last = clean_name(name).split() or [""]
    # "traffic light" and "red traffic light" stay whole: not all words before the last are common
    if before and _COMMON_ATTRIBUTES.issuperset(before):
        return last, tuple(before)
    return clean_name(name), ()


def split_attribute(text: str) -> tuple[str, ...]:
    """Return the attributes that a text names: "red and blue" is two."""
    name = clean_name(text)
    # one attribute in the published list, not two
    return (name,) if name == "black and white" else tuple(map(str.strip, name.split(" and ")))


def _read_attributes(path: Path, ids: frozenset[str] | None) -> tuple[_Attributes, dict[str, str]]:
    """Return the attributes, and the reasons of bad items by image id or position."""
    # Read item by item: the file takes twice its size in memory as text, more as objects.
    attributes: _Attributes = {}
    bad: dict[str, str] = {}
    for index, item in enumerate(read_json_list(path)):
        owner = position = f"{path.name} images[{index}]"
        try:
            number = key_member(item, "image_id")
            owner = _identity(number)
            if ids is not None and owner not in ids:
                continue
            of_image = attributes.setdefault(number, {})
            for entry in list_member(item, "attributes"):
                of, names = key_member(entry, "object_id"), _attribute_names(entry)
                # an object may occur twice; millions of attributes have a few thousand names
                if names:
                    of_image.setdefault(of, []).extend(map(sys.intern, names))
        except (BadItem, InputError) as error:
            bad[owner] = str(error) if owner == position else f"{position}: {error}"
    return attributes, bad


def _attribute_names(entry: object) -> list[str]:
    texts = entry.get("attributes") if isinstance(entry, dict) else None
    if texts is None:
        return []
    if not isinstance(texts, list):
        raise BadItem("'attributes' is not a list")
    return [name for text in texts if isinstance(text, str) for name in split_attribute(text)]


@dataclass
class _Reader:
    """Reader of objects.json, image by image.

    skipped: reason by image id or position; unknown: images without a listed object.
    """

    classes: NameList
    listed: NameList
    files: Mapping[str, Path]
    attributes: _Attributes
    skipped: dict[str, str]
    selected: frozenset[str] | None
    seen: set[str] = field(default_factory=set)
    images: dict[str, LabelledImage] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, item: object, position: str) -> None:
        """Read one image of the file, or skip it with a reason."""
        owner = position
        try:
            number = key_member(item, "image_id")
            owner = _identity(number)
            if self.selected is not None and owner not in self.selected:
                return
            if owner in self.seen:
                self.images.pop(owner, None)
                raise BadItem(f"{position}: duplicate image {owner!r}")
            self.seen.add(owner)
            if owner not in self.skipped:
                self._add(owner, number, list_member(item, "objects"))
        except (BadItem, InputError) as error:
            self.skipped.setdefault(owner, str(error))

    def _add(self, identity: str, number: int | str, objects: list[object]) -> None:
        file, (width, height) = self._file(str(number))
        labels = []
        for index, entry in enumerate(objects):
            try:
                labels += self._labels(entry, self.attributes.get(number, {}))
            except BadItem as error:
                raise BadItem(f"objects[{index}]: {error}") from error
        image = labelled_image(identity, file, width=width, height=height, labels=labels)
        self.dropped[WITHOUT_AREA] += len(labels) - len(image.boxes)
        if len(image.boxes):
            self.images[identity] = image
        else:
            self.unknown.append(identity)

    def _file(self, name: str) -> tuple[Path, tuple[int, int]]:
        """Return the file, and its width and height from its header; BadItem if it is unusable."""
        if name not in self.files:
            raise BadItem(f"no file '{name}.jpg'")
        try:
            return self.files[name], image_size(self.files[name])
        except A2Error as error:
            raise BadItem(str(error)) from error

    def _labels(self, item: object, attributes: Mapping[int | str, list[str]]) -> list[Label]:
        """Return the object's label, none if it is not listed."""
        identity, names = key_member(item, "object_id"), list_member(item, "names")
        x, y, width, height = pixel_numbers([member(item, key) for key in "xywh"], "'x y w h'")
        # only the first name counts, as in setup_vg.py
        first = names[0] if names and isinstance(names[0], str) else ""
        name, adjectives = split_object_name(first)
        class_id = self.classes.ids.get(name)
        if class_id is None:
            self.dropped[UNKNOWN_OBJECT] += 1
            return []
        # the published order: adjectives of the name before the annotated attributes
        attribute_names = (*adjectives, *attributes.get(identity, ()))
        listed = [self.listed.ids[name] for name in attribute_names if name in self.listed.ids]
        ids = tuple(dict.fromkeys(listed))
        self.dropped[UNKNOWN_ATTRIBUTE] += len(attribute_names) - len(listed)
        self.dropped[ABOVE_MOST] += len(ids[MOST_ATTRIBUTES:])
        return [Label((x, y, x + width, y + height), class_id, ids[:MOST_ATTRIBUTES])]


def _identity(number: int | str) -> str:
    return image_id(f"{number}.jpg")
