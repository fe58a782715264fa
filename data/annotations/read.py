"""Annotated images: captions and splits, checked item by item, of any form of `layouts`.

A bad item is skipped with a reason; `check_skip_limit` raises if there are too many.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from sys import intern

from a2cap.data.annotations.caption import CheckedCaption, checked_caption
from a2cap.data.annotations.image_rows import AnnotatedImage, ImageRow, StoredImages
from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.layouts import GIVE_LAYOUT, LAYOUTS, Layout, read_raw
from a2cap.data.annotations.record import Fields, Reading, fields_of
from a2cap.data.annotations.split_list import SPLITS, choose_splits, split_of
from a2cap.data.annotations.stored_rows import StoredRows
from a2cap.data.data_config import USUAL_NAMES, FieldNames
from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import Identities, Key, Numbers
from a2cap.data.image_ids import IdRule, image_id

logger = logging.getLogger(__name__)

IN_NO_SPLIT = "in no split"
"""Reason of a skip that the user chose; it does not count as a fault of the file."""

_MOST_SKIPPED = 100_000
"""Items without a usable image; more would only fill the memory."""
_VALUES = re.compile(r"'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|[0-9,]+")


@dataclass(frozen=True)
class Annotations:
    """Images and skipped items of one file, in its order.

    dataset: name of the data in the file, "" if none. layout: name of the form that was read.
    rule: of the ids.
    """

    images: Sequence[AnnotatedImage]
    skipped: Sequence[SkippedItem]
    dataset: str = ""
    layout: str = field(default="", compare=False)
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

    split_list: file with the split of each image.
    split: a random one, as for `random_splits`, by default DEFAULT_SPLIT with a notice.
    numbers: what a bare number in the list names, as for `Identities`.
    fields: names that are not the usual ones.
    Raises InputError if the layout is unknown or no image is usable.
    """
    images = _Collected.read(path, fields_of(fields), rule)
    images.require_images()
    if images.has_splits and (split_list or split):
        field_name = "data.split_list" if split_list is not None else "data.split"
        raise InputError(f"{images.name} already names the splits; remove {field_name}")
    if not images.has_splits:
        own_ids = images.own_ids() if images.has_own_ids else ()
        identities = partial(Identities, own_ids, numbers=numbers, rule=rule)
        ids = (row.image_id for row in images.images)
        images.assign(choose_splits(ids, identities, images.name, split_list, split))
    return images.annotations()


def read_all(path: Path, fields: Fields) -> Annotations:
    """Read annotations as `read_annotations` does, with the split "" where they name none.

    Images of folders that repeat numbers have their paths as ids.
    """
    images = _Collected.read(path, fields, "number")
    if images.repeats_numbers:
        images = _Collected.read(path, fields, "path")
    images.require_images()
    return images.annotations()


def read_identified(
    path: Path, fields: Fields, identify: Callable[[ImageRow], str]
) -> StoredImages:
    """Read the images of captions to score, also those without a caption.

    identify: returns the id of a record. Raises InputError for the first bad item.
    """
    images = _Collected.read(path, fields, "number", identify)
    return StoredImages(images.images, images.splits)


@dataclass
class _Collected:
    """Records and skipped items read so far.

    images: also those that are left out, whose split is None. identify: as for `read_identified`.
    """

    name: str
    rule: IdRule
    is_scored: bool
    identify: Callable[[ImageRow], str] | None = None
    layout: Layout = LAYOUTS[0]
    rows: StoredRows[ImageRow] = field(default_factory=partial(StoredRows, ImageRow))
    images: StoredRows[ImageRow] = field(default_factory=partial(StoredRows, ImageRow))
    splits: list[str | None] = field(default_factory=list)
    skipped: StoredRows[SkippedItem] = field(default_factory=partial(StoredRows, SkippedItem))
    dataset: str = ""
    last: tuple[str, int] = ("", 0)
    has_splits: bool = False
    has_captions: bool = False
    has_own_ids: bool = False
    repeats_numbers: bool = False

    @classmethod
    def read(
        cls,
        path: Path,
        fields: Fields,
        rule: IdRule,
        identify: Callable[[ImageRow], str] | None = None,
    ) -> "_Collected":
        """Return the images of a file; without those in no split if it names splits."""
        images = cls(repr(str(path)), rule, fields.is_scored, identify)
        images.layout, images.dataset, rows = read_raw(path, Reading(fields, images.skip))
        for image in rows:
            images.add(image)
        images.group()
        return images

    def skip(self, identity: str, reason: str) -> None:
        if self.identify is not None:
            raise InputError(f"{identity} of {self.name}: {reason}; fix or remove it")
        self.skipped.append((identity, reason), identity)
        # COCO's images come after its captions
        if self.layout.has_rows and not self.has_captions and len(self.skipped) == _MOST_SKIPPED:
            self.annotations()

    def add(self, item: ImageRow) -> None:
        identity, split = item.position, None
        if self.identify is not None:
            identity = self.identify(item)
        else:
            try:
                # captions without images are in the order of another file
                if not item.file and not self.is_scored:
                    raise BadItem("captions without images; name the image of each")
                identity = image_id(item.file, self.rule) if item.file else str(len(self.rows) + 1)
            except (BadItem, InputError) as error:
                self.skip(identity, str(error))
                return
            if item.split is not None:
                self.has_splits = True
                split = split_of(item.split) or f"unknown split: {item.split!r:.40}"
        captions = [*self._usable_captions(identity, item)]
        self.has_captions |= bool(captions)
        self.has_own_ids |= item.own_id is not None
        row = item._replace(image_id=identity, split=split, captions=captions)
        self.rows.append(row, identity)

    def group(self) -> None:
        """Make images of the rows, without a split for those that are left out."""
        for group in self.rows.groups():
            first = group[0]
            rows = self._rows_of_one(group)
            captions = [caption for row in rows for caption in row.captions]
            split = first.split if self.has_splits else ""
            if not captions and self.identify is None:
                if rows and not any(self.skipped.of_key(first.image_id)):
                    self.skip(first.image_id, "no caption")
                split = None
            elif split not in ("", *SPLITS):
                self.skip(first.image_id, split or "no split")
                split = None
            self.images.append(first._replace(captions=captions), first.image_id)
            self.splits.append(split and intern(split))
        self.rows = StoredRows(ImageRow)

    def require_images(self) -> None:
        """Raise the most frequent reason as InputError if all images are left out."""
        if not any(split is not None for split in self.splits):
            self.annotations()

    def _rows_of_one(self, rows: Sequence[ImageRow]) -> list[ImageRow]:
        """Return the rows of one image that are read, none if they are of several.

        A store has one entry for files that share an id, so nothing states whose the features are.
        """
        first, *others = rows
        if self.identify is not None:
            return [*rows]
        other = next((row.file for row in others if row.file != first.file), None)
        if other is not None:
            text = "{!r} has the same id as {!r}; rename one"
            if self.rule == "number" and image_id(other, "path") != image_id(first.file, "path"):
                self.repeats_numbers = True
                text += ", or set data.ids=path, which makes the path the id"
            self.skip(first.image_id, text.format(first.file, other))
            for file in dict.fromkeys(row.file for row in others):
                self.skip(first.image_id, text.format(file, first.file))
            return []
        kept = [first]
        for row in others:
            if not self.layout.has_rows:
                self.skip(first.image_id, f"duplicate of image {row.file!r}")
            elif row.split != first.split:
                reason = f"split {row.split!r}, {first.split!r} in {first.position}"
                self.skip(row.position, reason)
            else:
                kept.append(row)
        return kept

    def own_ids(self) -> Iterator[tuple[str, Key | None]]:
        """Yield the id of each image and its own id, also of those that are left out."""
        return ((row.image_id, row.own_id) for row in self.images)

    def assign(self, splits: Sequence[str | None]) -> None:
        """Give each image its split, and leave out those that have none."""
        skipped = StoredRows(SkippedItem)
        outside = {
            row.image_id: None
            for row, split in zip(self.images, splits, strict=True)
            if split is None
        }
        kept = (item for item in self.skipped if item.image_id not in outside)
        for item in chain(kept, (SkippedItem(identity, IN_NO_SPLIT) for identity in outside)):
            skipped.append((item.image_id, item.reason), item.image_id)
        pairs = zip(self.splits, splits, strict=True)
        self.skipped, self.splits = skipped, [old if old is None else split for old, split in pairs]

    def annotations(self) -> Annotations:
        """Return what was read; without an image, raise the most frequent reason as InputError."""
        images = StoredImages(self.images, self.splits)
        if not images:
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
        return Annotations(images, self.skipped, self.dataset, self.layout.name, self.rule)

    def _usable_captions(self, identity: str, item: ImageRow) -> Iterator[CheckedCaption]:
        # records of one image follow each other, and their captions are counted together
        begin = self.last[1] if self.last[0] == identity else 0
        count = 0
        for count, caption in enumerate(item.captions, start=1):
            try:
                yield checked_caption(caption, may_be_empty=self.is_scored)
            except BadItem as error:
                if self.identify is not None:
                    self.skip(f"caption at {item.position}", str(error))
                self.skip(identity, f"caption {begin + count - 1}: {error}")
        self.last = identity, begin + count


def _kind(item: SkippedItem) -> str:
    """Return a reason without its values."""
    return " ".join(_VALUES.sub("", item.reason).split())
