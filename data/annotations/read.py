"""Annotated images: captions and splits, checked item by item, of any form of `layouts`.

A bad item is skipped with a reason; `check_skip_limit` raises if there are too many.
"""

import gc
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern

from a2cap.data.annotations.caption import Caption, read_caption
from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.layouts import GIVE_LAYOUT, LAYOUTS, Layout, read_raw
from a2cap.data.annotations.record import Fields, RawImage, Reading, fields_of
from a2cap.data.annotations.split_list import choose_splits, split_of
from a2cap.data.data_config import USUAL_NAMES, FieldNames
from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import Identities, Numbers
from a2cap.data.image_ids import IdRule, image_id

logger = logging.getLogger(__name__)

IN_NO_SPLIT = "in no split"
"""Reason of a skip that the user chose; it does not count as a fault of the file."""

_MOST_SKIPPED = 100_000
"""Items without a usable image; more would only fill the memory."""
_VALUES = re.compile(r"'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|[0-9,]+")


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """One image with at least one caption.

    file: POSIX path relative to the image folder. split: 'train', 'val' or 'test'. own_id: id that
    the annotations give the image beside its file, None if they give none.
    """

    image_id: str
    file: str
    split: str
    captions: tuple[Caption, ...]
    own_id: int | str | None = None


@dataclass(frozen=True)
class Annotations:
    """Images and skipped items of one file, in its order.

    dataset: name of the data in the file, "" if none. layout: name of the form that was read.
    orders: places of the images' first captions in the file. rule: of the ids.
    """

    images: tuple[AnnotatedImage, ...]
    skipped: tuple[SkippedItem, ...]
    dataset: str = ""
    layout: str = field(default="", compare=False)
    orders: Mapping[str, int] = field(default_factory=dict, compare=False)
    rule: IdRule = field(default="number", compare=False)


def read_annotations(
    path: Path,
    *,
    split_list: Path | None = None,
    split: str | None = None,
    rule: IdRule = "number",
    numbers: Numbers | None = None,
    fields: FieldNames = USUAL_NAMES,
) -> Annotations:
    """Read annotations in any of the layouts; the content determines which.

    split_list: file with the split of each image; split: a random one, as for `random_splits`, by
    default DEFAULT_SPLIT with a notice. numbers: what a bare number in the list names, as for
    `Identities`. fields: names that are not the usual ones.
    Raises InputError if the layout is unknown or no image is usable.
    """
    images = _Collected.read(path, fields_of(fields), rule)
    if images.captions and images.has_splits and (split_list or split):
        field_name = "data.split_list" if split_list is not None else "data.split"
        raise InputError(f"{images.name} already names the splits; remove {field_name}")
    if images.captions and not images.has_splits:
        own_ids = {identity: first.own_id for identity, first in images.firsts.items()}
        identities = Identities(own_ids.items(), numbers=numbers, rule=rule)
        images.assign(choose_splits([*own_ids], identities, images.name, split_list, split))
    return images.annotations()


def read_all(path: Path, fields: Fields) -> Annotations:
    """Read annotations as `read_annotations` does, with the split "" where they name none.

    Images of folders that repeat numbers have their paths as ids.
    """
    images = _Collected.read(path, fields, "number")
    if images.repeats_numbers:
        images = _Collected.read(path, fields, "path")
    return images.annotations()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection while millions of objects are made, none of them in a cycle."""
    # it would examine all of them again and again: half of the time of COCO's captions
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass
class _Collected:
    """Images and skipped items read so far.

    firsts: the first record of each image, also of those skipped, without its captions. captions:
    those of the images that are not skipped.
    """

    name: str
    rule: IdRule
    is_scored: bool
    layout: Layout = LAYOUTS[0]
    firsts: dict[str, RawImage] = field(default_factory=dict)
    captions: dict[str, list[Caption]] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    skipped: list[SkippedItem] = field(default_factory=list)
    dataset: str = ""
    repeats_numbers: bool = False

    @classmethod
    def read(cls, path: Path, fields: Fields, rule: IdRule) -> "_Collected":
        """Return the images of a file; without those in no split if it names splits."""
        images = cls(repr(str(path)), rule, fields.is_scored)
        with collection_paused():
            raw = read_raw(path, Reading(fields, images.skip))
            images.layout, images.dataset = raw.layout, raw.dataset
            for image in raw.images:
                images.add(image)
        faulty = {item.image_id for item in images.skipped}
        for identity in [i for i, captions in images.captions.items() if not captions]:
            del images.captions[identity]
            if identity not in faulty:
                images.skip(identity, "no caption")
        if images.has_splits:
            images.require_splits()
        return images

    @property
    def has_splits(self) -> bool:
        return any(first.split is not None for first in self.firsts.values())

    def skip(self, identity: str, reason: str) -> None:
        self.skipped.append(SkippedItem(identity, intern(reason)))
        # COCO's images come after its captions
        if self.layout.has_rows and not self.captions and len(self.skipped) == _MOST_SKIPPED:
            self.annotations()

    def add(self, item: RawImage) -> None:
        identity = item.position
        try:
            # captions without images are in the order of another file
            if not item.file and not self.is_scored:
                raise BadItem("captions without images; name the image of each")
            identity = image_id(item.file, self.rule) if item.file else str(len(self.firsts) + 1)
            first = self.firsts.get(identity)
            if first is None:
                self.firsts[identity] = replace(item, captions=())
                self.captions[identity] = []
            elif first.file != item.file:
                self._leave_out_both(identity, first.file, item.file)
            elif not self.layout.has_rows:
                raise BadItem(f"duplicate of image {item.file!r}")
            elif first.split != item.split:
                identity = item.position
                raise BadItem(f"split {item.split!r}, {first.split!r} in {first.position}")
            if identity in self.captions:
                self.captions[identity] += self._usable_captions(identity, item.captions)
        except (BadItem, InputError) as error:
            self.skip(identity, str(error))

    def _leave_out_both(self, identity: str, first: str, file: str) -> None:
        """Leave out all files that share an id, and raise BadItem.

        A store has one entry for them, so nothing states whose the features are.
        """
        text = "{!r} has the same id as {!r}; rename one"
        if self.rule == "number" and image_id(file, "path") != image_id(first, "path"):
            self.repeats_numbers = True
            text += ", or set data.ids=path, which tells them apart by folder"
        if identity in self.captions:
            del self.captions[identity]
            self.skip(identity, text.format(first, file))
        raise BadItem(text.format(file, first))

    def require_splits(self) -> None:
        """Leave out images whose split is missing or unknown."""
        for identity in [*self.captions]:
            name = self.firsts[identity].split
            if split := split_of(name):
                self.splits[identity] = split
                continue
            del self.captions[identity]
            self.skip(identity, "no split" if name is None else f"unknown split: {name!r:.40}")

    def assign(self, splits: Mapping[str, str]) -> None:
        """Give each image its split, and leave out those that have none."""
        outside = {identity: None for identity in self.firsts if identity not in splits}
        self.skipped = [item for item in self.skipped if item.image_id not in outside]
        self.skipped += [SkippedItem(identity, IN_NO_SPLIT) for identity in outside]
        self.captions = {i: c for i, c in self.captions.items() if i not in outside}
        self.splits |= splits

    def annotations(self) -> Annotations:
        """Return what was read; without an image, raise the most frequent reason as InputError."""
        if not self.captions:
            what = f"no usable image in {self.name}, read as {self.layout.name}"
            kinds = Counter(map(_kind, self.skipped))
            if not kinds:
                raise InputError(f"{what}: it is empty; {GIVE_LAYOUT}")
            [(kind, count)] = kinds.most_common(1)
            first = next(item for item in self.skipped if _kind(item) == kind)
            raise InputError(
                f"{what}: {count:,} of {len(self.skipped):,} items skipped for one reason, first "
                f"{first.image_id!r}: {first.reason}; fix them"
            )
        firsts, splits = self.firsts, self.splits
        images = tuple(
            AnnotatedImage(i, firsts[i].file, splits.get(i, ""), tuple(captions), firsts[i].own_id)
            for i, captions in self.captions.items()
        )
        orders = {identity: first.order for identity, first in firsts.items() if first.order}
        skipped = tuple(dict.fromkeys(self.skipped))  # once for all rows of an image
        return Annotations(images, skipped, self.dataset, self.layout.name, orders, self.rule)

    def _usable_captions(self, identity: str, captions: Sequence[object]) -> Iterator[Caption]:
        for number, caption in enumerate(captions, start=len(self.captions[identity])):
            try:
                yield read_caption(caption, may_be_empty=self.is_scored)
            except BadItem as error:
                self.skip(identity, f"caption {number}: {error}")


def _kind(item: SkippedItem) -> str:
    """Return a reason without its values."""
    return " ".join(_VALUES.sub("", item.reason).split())
