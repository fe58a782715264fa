"""Annotated images: captions and splits, checked item by item.

A bad item is skipped with a reason; `check_skip_limit` raises if there are too many. The layouts
are in `layouts`.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from pathlib import Path, PurePosixPath
from sys import intern

from a2cap.data.annotations.json_items import BadItem, list_member, member
from a2cap.data.annotations.json_layouts import LAYOUTS, read_items
from a2cap.data.annotations.raw_image import RawImage
from a2cap.data.annotations.split_list import SPLITS
from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem as SkippedItem  # noqa: PLC0414
from a2cap.data.image_ids import IdRule, find_images, image_id

LONGEST_CAPTION = 10_000
"""Characters; COCO's longest captions have a few hundred."""

LARGEST_SHARE = 0.05
"""Share of a small set that may be skipped: ten of 20 images would be half of the data."""

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

    dataset: name of the data in the file, "" if none.
    """

    images: tuple[AnnotatedImage, ...]
    skipped: tuple[SkippedItem, ...]
    dataset: str = ""


def tokenize(raw: str) -> tuple[str, ...]:
    """Return the tokens of a caption by the rule of Karpathy's file.

    On all captions of COCO 2014, the words that occur more than five times are the 9,486 of the
    vocabulary that ImageCaptioning.pytorch and others publish, in the same order.
    """
    # interned: captions have few different words
    return tuple(map(intern, raw.lower().translate(_KARPATHY_PUNCTUATION).split()))


def read_annotations(
    path: Path, *, split_list: Path | None = None, split: str | None = None, rule: IdRule = "number"
) -> Annotations:
    """Read annotations in any of the layouts; the content determines which.

    split_list: file with the split of each image; split: a random one, as for `random_splits`. One
    of them is required by layouts without splits. Raises InputError if the layout is unknown or no
    image is usable.
    """
    reading = _Collected(rule)
    with collection_paused():
        for item in read_items(path, split_list, reading.skip, split=split, rule=rule):
            reading.add(item)
    if not reading.images:
        first = "".join(f", first {s.image_id!r}: {s.reason}" for s in reading.skipped[:1])
        raise InputError(
            f"no usable image in {str(path)!r} ({len(reading.skipped):,} skipped{first}); {LAYOUTS}"
        )
    return Annotations(tuple(reading.images.values()), tuple(reading.skipped), reading.dataset)


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
    """Images and skipped items read so far."""

    rule: IdRule
    images: dict[str, AnnotatedImage] = field(default_factory=dict)
    skipped: list[SkippedItem] = field(default_factory=list)
    dataset: str = ""

    def skip(self, identity: str, reason: str) -> None:
        self.skipped.append(SkippedItem(identity, reason))

    def add(self, item: RawImage) -> None:
        identity, self.dataset = item.position, item.dataset
        try:
            identity = image_id(item.file, self.rule)
            if identity in self.images:
                raise BadItem(f"duplicate id, first used by {self.images[identity].file!r}")
            # a JSON list as split is not hashable
            split = SPLITS.get(item.split) if isinstance(item.split, str) else None
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

    def _usable_captions(self, identity: str, item: RawImage) -> Iterator[Caption]:
        for number, caption in enumerate(item.captions):
            try:
                yield _caption(caption, has_tokens=item.has_tokens)
            except BadItem as error:
                self.skip(identity, f"caption {number}: {error}")


def _caption(item: object, *, has_tokens: bool) -> Caption:
    raw = _checked_text(member(item, "raw") if has_tokens else item)
    tokens = _file_tokens(list_member(item, "tokens")) if has_tokens else tokenize(raw)
    if not tokens:
        raise BadItem("empty")
    return Caption(raw, tokens)


def _file_tokens(words: list[object]) -> tuple[str, ...]:
    tokens = tuple(map(str, words))
    if _checked_text(" ".join(tokens)).split() != words:
        raise BadItem("'tokens' is not a list of words without white space")
    return tokens


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise BadItem(f"{type(text).__name__}, not a string")
    if len(text) > LONGEST_CAPTION:
        raise BadItem(f"{len(text):,} characters, at most {LONGEST_CAPTION:,} are read")
    try:
        text.encode()  # JSON may escape half of a surrogate pair
    except UnicodeEncodeError as error:
        raise BadItem("not valid Unicode") from error
    return text
