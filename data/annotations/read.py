"""Annotated images: captions and splits, checked item by item, of any form of `layouts`.

A bad item is skipped with a reason; `check_skip_limit` raises if there are too many.
"""

import gc
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path, PurePosixPath
from sys import intern

from a2cap.data.annotations.json_items import BadItem, list_member
from a2cap.data.annotations.layouts import GIVE_LAYOUT, read_raw
from a2cap.data.annotations.record import Fields, RawImage, fields_of, first_value
from a2cap.data.annotations.split_list import random_splits, read_split_list, split_of
from a2cap.data.data_config import USUAL_NAMES, FieldNames
from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import Identities, Key, Numbers
from a2cap.data.image_ids import IdRule, find_images, image_id

logger = logging.getLogger(__name__)

LONGEST_CAPTION = 10_000
"""Characters; COCO's longest captions have a few hundred."""

LARGEST_SHARE = 0.05
"""Share of a small set that may be skipped: ten of 20 images would be half of the data."""

DEFAULT_SPLIT = "random(0.8/0.1/0.1, 1)"
"""Split of captions that name none, if nothing is set."""

IN_NO_SPLIT = "in no split"
"""Reason of a skip that the user chose; it does not count as a fault of the file."""

_RAW_TEXTS = ("raw", "caption", "sentence", "text")
_LIST_AS_TEXT = re.compile(r"\[\s*['\"]")
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9,]+")

# recovered from the published vocabularies, character by character: & # $ : ) stay in their word
_KARPATHY_PUNCTUATION = str.maketrans(",-/", "   ", ".';\"!?(")


@dataclass(frozen=True, slots=True)
class Caption:
    """One caption as written, and its tokens."""

    raw: str
    tokens: tuple[str, ...]


@dataclass(frozen=True)
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


def tokenize(raw: str) -> tuple[str, ...]:
    """Return the tokens of a caption by the rule of Karpathy's file.

    On all captions of COCO 2014, the words that occur more than five times are the 9,486 of the
    vocabulary that ImageCaptioning.pytorch and others publish, in the same order.
    """
    # interned: captions have few different words
    return tuple(map(intern, raw.lower().translate(_KARPATHY_PUNCTUATION).split()))


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
    images, has_splits = _collected(path, fields_of(fields), rule)
    name = repr(str(path))
    if not images.images:
        raise InputError(images.why_empty(name))
    if has_splits and (split_list or split):
        field_name = "data.split_list" if split_list is not None else "data.split"
        raise InputError(f"{name} already names the splits; remove {field_name}")
    if not has_splits:
        images.assign(_splits(images, name, split_list, split, numbers))
    return images.annotations(name)


def read_all(path: Path, fields: Fields) -> Annotations:
    """Read annotations as `read_annotations` does, with the split "" where they name none.

    Images of folders that repeat numbers have their paths as ids.
    """
    images, _ = _collected(path, fields, "number")
    if images.repeats_numbers:
        images, _ = _collected(path, fields, "path")
    return images.annotations(repr(str(path)))


def _collected(path: Path, fields: Fields, rule: IdRule) -> tuple["_Collected", bool]:
    """Return the images of a file, and True if it names their splits."""
    images = _Collected(rule, fields.is_scored)
    with collection_paused():
        raw = read_raw(path, images.skip, fields)
        images.layout, images.dataset = raw.layout, raw.dataset
        for image in raw.images:
            images.add(image, needs_split=raw.has_splits)
    return images, raw.has_splits


def _splits(
    images: "_Collected",
    name: str,
    split_list: Path | None,
    split: str | None,
    numbers: Numbers | None,
) -> dict[str, str]:
    if split_list is not None and split is not None:
        raise InputError("data.split and data.split_list are both set; leave one of them out")
    if split_list is None and split is None:
        logger.warning(
            "the captions %s name no splits: of %s images, 80 %% are training, 10 %% validation "
            "and 10 %% test images at random, as by data.split=%s; set it, or data.split_list, a "
            'JSON file {"train": [ids or file names], "val": …, "test": …}',
            name,
            f"{len(images.orders):,}",
            DEFAULT_SPLIT,
        )
    if split_list is None:
        return random_splits(images.orders, split or DEFAULT_SPLIT)
    identities = Identities(images.own_ids.items(), numbers=numbers, rule=images.rule)
    splits = read_split_list(split_list, identities.reader(f"the lines of {str(split_list)!r}"))
    if splits.keys().isdisjoint(images.orders):
        raise InputError(
            f"none of the {len(images.orders):,} images of {name} is in the split list; "
            "give its own list as data.split_list"
        )
    return splits


def check_skip_limit(skipped: Sequence[SkippedItem], total: int, what: str) -> None:
    """Raise InputError if too many of `total` `what` were skipped.

    At most 10 or 0.1 % may be, whichever is more, and no more than LARGEST_SHARE.
    """
    share = ceil(total * LARGEST_SHARE)  # rounded up, so that one of a handful may be bad
    limit = min(max(10, total // 1000), share)
    if len(skipped) <= limit:
        return
    first = ", ".join(f"{item.image_id!r} ({item.reason})" for item in skipped[:5])
    raise InputError(
        f"{len(skipped):,} of {total:,} {what} cannot be used, at most {limit:,} may be left out: "
        f"{first}, …; fix or remove them"
    )


def resolve_files(
    files: Mapping[str, str], folder: Path, rule: IdRule = "number"
) -> dict[str, Path]:
    """Find images in `folder` by file name; files: file name by image id.

    Tries the named path, then its last part alone, then any file in `folder` with the same id (a
    2014 name among 2017 names). Returns paths by image id, without images that have no file. The
    names are checked already: an absolute one, or one with `..`, has no image id.
    """
    names = Counter(PurePosixPath(file).name for file in files.values())
    scan = cache(find_images)  # once, and only if a name is not found
    found = {}
    for identity, file in files.items():
        base = PurePosixPath(file).name
        # a last part that two images share would give both the same file
        candidates = (file, base) if names[base] == 1 else (file,)
        paths = (folder / name for name in candidates)
        # unlike Path.is_file, False for a name too long
        path = next((path for path in paths if os.path.isfile(path)), None)  # noqa: PTH113
        path = path or scan(folder, rule).get(identity)
        if path:
            found[identity] = path
    return found


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
    """Images and skipped items read so far; orders: of all images, also of those skipped."""

    rule: IdRule
    is_scored: bool
    images: dict[str, AnnotatedImage] = field(default_factory=dict)
    skipped: list[SkippedItem] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # the first of each id
    orders: dict[str, int] = field(default_factory=dict)
    own_ids: dict[str, Key | None] = field(default_factory=dict)
    dataset: str = ""
    layout: str = ""
    repeats_numbers: bool = False

    def skip(self, identity: str, reason: str) -> None:
        self.skipped.append(SkippedItem(identity, reason))

    def add(self, item: RawImage, *, needs_split: bool) -> None:
        identity = item.position
        try:
            # captions without images are in the order of another file
            if not item.file and not self.is_scored:
                raise BadItem("captions without images; name the image of each")
            identity = image_id(item.file, self.rule) if item.file else str(len(self.orders) + 1)
            self._require_own_id(identity, item.file)
            self.orders.setdefault(identity, item.order)
            self.own_ids.setdefault(identity, item.own_id)
            split = split_of(item.split) if needs_split else ""
            if split is None:
                is_missing = item.split is None
                raise BadItem("no split" if is_missing else f"unknown split: {item.split!r:.40}")
            captions = tuple(self._usable_captions(identity, item))
            if not captions:
                raise BadItem("no caption")
            self.images[identity] = AnnotatedImage(
                identity, item.file, split, captions, item.own_id
            )
        except (BadItem, InputError) as error:
            self.skip(identity, str(error))

    def _require_own_id(self, identity: str, file: str) -> None:
        """Raise BadItem for a second record of an image, and leave out all files that share an id.

        A store has one entry for them, so nothing states whose the features are.
        """
        first = self.files.setdefault(identity, file)
        if identity in self.images and first != file:
            del self.images[identity]
            self.skip(identity, _shared_id(first, file, self.rule))
        if first != file:
            self.repeats_numbers |= _differ_by_folder(file, first, self.rule)
            raise BadItem(_shared_id(file, first, self.rule))
        if identity in self.images:
            raise BadItem(f"duplicate of image {file!r}")

    def assign(self, splits: Mapping[str, str]) -> None:
        """Give each image its split, and leave out those that have none."""
        outside = [identity for identity in self.orders if identity not in splits]
        left_out = set(outside)
        self.skipped = [item for item in self.skipped if item.image_id not in left_out]
        self.skipped += [SkippedItem(identity, IN_NO_SPLIT) for identity in outside]
        self.images = {
            identity: replace(image, split=splits[identity])
            for identity, image in self.images.items()
            if identity in splits
        }

    def annotations(self, name: str) -> Annotations:
        """Return what was read; raise InputError without an image."""
        if not self.images:
            raise InputError(self.why_empty(name))
        images = tuple(self.images.values())
        return Annotations(
            images, tuple(self.skipped), self.dataset, self.layout, self.orders, self.rule
        )

    def why_empty(self, name: str) -> str:
        """Return the most frequent reason why no image is usable."""
        what = f"no usable image in {name}, read as {self.layout}"
        kinds = Counter(map(_kind, self.skipped))
        if not kinds:
            return f"{what}: it is empty; {GIVE_LAYOUT}"
        [(kind, count)] = kinds.most_common(1)
        first = next(item for item in self.skipped if _kind(item) == kind)
        return (
            f"{what}: {count:,} of {len(self.skipped):,} items skipped for one reason, first "
            f"{first.image_id!r}: {first.reason}; fix them"
        )

    def _usable_captions(self, identity: str, item: RawImage) -> Iterator[Caption]:
        for number, caption in enumerate(item.captions):
            try:
                yield read_caption(caption, may_be_empty=self.is_scored)
            except BadItem as error:
                self.skip(identity, f"caption {number}: {error}")


def _shared_id(file: str, other: str, rule: IdRule) -> str:
    remedy = ", or set data.ids=path, which tells them apart by folder"
    text = f"{file!r} has the same id as {other!r}; rename one"
    return text + remedy * _differ_by_folder(file, other, rule)


def _differ_by_folder(file: str, other: str, rule: IdRule) -> bool:
    return rule == "number" and image_id(file, "path") != image_id(other, "path")


def _kind(item: SkippedItem) -> str:
    """Return a reason without its values."""
    return " ".join(_VALUES.sub("", item.reason).split())


def read_caption(item: object, *, may_be_empty: bool = False) -> Caption:
    """Return a caption, a text or a mapping of raw and tokens; BadItem for another one."""
    listed, text = None, item
    if isinstance(item, Mapping):
        listed, text = item.get("tokens"), first_value(item, _RAW_TEXTS)
    raw = (
        "" if listed is not None and text is None else checked_text(item if text is None else text)
    )
    tokens = tokenize(raw) if listed is None else _file_tokens(list_member(item, "tokens"))
    if not tokens and not may_be_empty:
        raise BadItem("empty")
    return Caption(raw or " ".join(tokens), tokens)


def _file_tokens(words: list[object]) -> tuple[str, ...]:
    """Return the tokens of a file in lower case, as the rule of Karpathy's file has them."""
    tokens = tuple(map(str, words))
    text = checked_text(" ".join(tokens))
    if text.split() != words:
        raise BadItem("'tokens' is not a list of words without white space")
    # kept where they are: their strings are shared
    return tokens if text == text.lower() else tuple(intern(word.lower()) for word in tokens)


def checked_text(text: object) -> str:
    """Return a caption; raise BadItem for another type, a list as text, and one too long."""
    if not isinstance(text, str):
        raise BadItem(f"{type(text).__name__}, not a string")
    if len(text) > LONGEST_CAPTION:
        raise BadItem(f"{len(text):,} characters, at most {LONGEST_CAPTION:,} are read")
    try:
        text.encode()  # JSON may escape half of a surrogate pair
    except UnicodeEncodeError as error:
        raise BadItem("not valid Unicode") from error
    if _LIST_AS_TEXT.match(text):
        raise BadItem(f"a list that was written as text: {text!r:.40}")
    return text
