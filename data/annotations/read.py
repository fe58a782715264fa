"""Images with their captions and splits, checked item by item.

Raw captions become tokens by the rule of Karpathy's file: lower-case, ASCII punctuation deleted,
split at white space. On 105,759 of its captions this gives the file's own tokens, all of them.

One bad item never stops the reading: it is skipped with a reason, and `check_skip_limit`
raises when there are too many. The layouts are in `annotation_layouts`.
"""

import os
import stat
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from a2cap.data.annotations.json_items import BadItem, list_member, member
from a2cap.data.annotations.layouts import LAYOUTS, Item, read_items
from a2cap.data.annotations.split_list import SPLITS
from a2cap.data.errors import InputError
from a2cap.data.image_ids import find_images, image_id

LONGEST_CAPTION = 10_000
"""Characters: COCO's longest have a few hundred, so one longer is not a caption."""

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Caption:
    """One caption as it was written, and its words."""

    raw: str
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class AnnotatedImage:
    """One image with at least one caption.

    file: POSIX path relative to the image folder. split: 'train', 'val' or 'test'.
    """

    image_id: str
    file: str
    split: str
    captions: tuple[Caption, ...]


@dataclass(frozen=True)
class SkippedItem:
    """What was left out, and why.

    An id that is also among the images lost captions only, or stood twice. Where no id can be
    made, `image_id` is the item's place in the file, such as 'images[3]' or 'line 4'.
    """

    image_id: str
    reason: str


@dataclass(frozen=True)
class Annotations:
    """Everything read from one file, in the file's order."""

    images: tuple[AnnotatedImage, ...]
    skipped: tuple[SkippedItem, ...]


def tokenize(raw: str) -> tuple[str, ...]:
    """The words of a caption by the rule of Karpathy's file."""
    return tuple(raw.lower().translate(_DELETE_PUNCTUATION).split())


def read_annotations(path: Path, *, split_list: Path | None = None) -> Annotations:
    """Read Karpathy's layout, COCO captions, or a captions.jsonl, told by content.

    `split_list` says which image is in which split; COCO captions need it. Raises InputError
    where the file has no known layout or no usable image.
    """
    reading = _Reading()
    for item in read_items(path, split_list, reading.skip):
        reading.add(item)
    if not reading.images:
        first = "".join(f", first {s.image_id!r}: {s.reason}" for s in reading.skipped[:1])
        raise InputError(
            f"no usable image in {str(path)!r} ({len(reading.skipped):,} skipped{first}); {LAYOUTS}"
        )
    return Annotations(tuple(reading.images.values()), tuple(reading.skipped))


def check_skip_limit(skipped: Sequence[SkippedItem], total: int, what: str) -> None:
    """Raise InputError where more than max(10, 0.1 %) of `total` `what` were skipped."""
    limit = max(10, total // 1000)
    if len(skipped) <= limit:
        return
    first = ", ".join(f"{item.image_id!r} ({item.reason})" for item in skipped[:5])
    raise InputError(
        f"{len(skipped):,} of {total:,} {what} cannot be used, at most {limit:,} may be left out: "
        f"{first}, …; mend or remove them"
    )


def resolve_images(annotations: Annotations, folder: Path) -> dict[str, Path]:
    """The file of each image by image id, as `resolve_files` finds them."""
    return resolve_files({item.image_id: item.file for item in annotations.images}, folder)


def resolve_files(files: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Where in `folder` the images are whose names `files` has by image id.

    An image without a file is not in the result. Tried in turn: the named path, its last part
    alone, any file in `folder` with the same id (a 2014 name among 2017 names). A file that leads
    out of `folder` is not taken, nor is a last part that two named images share.
    """
    names = Counter(PurePosixPath(file).name for file in files.values())
    search = _ImageFolder(folder)
    found = {}
    for identity, file in files.items():
        base = PurePosixPath(file).name
        candidates = (file, base) if names[base] == 1 else (file,)
        path = next(filter(search.holds, (folder / name for name in candidates)), None)
        path = path or search.by_id.get(identity)
        if path:
            found[identity] = path
    return found


class _ImageFolder:
    """Which files are in a folder; the folder is scanned once, and only if a name is not found."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = Path(os.path.realpath(folder))
        self._parents: dict[Path, bool] = {}

    @cached_property
    def by_id(self) -> dict[str, Path]:
        return find_images(self._folder)

    def holds(self, path: Path) -> bool:
        """Whether `path` is a file that is really below the folder, links followed."""
        try:
            mode = path.lstat().st_mode
        except (OSError, ValueError):
            return False
        if stat.S_ISLNK(mode):
            return self._is_below(path) and path.is_file()
        if path.parent not in self._parents:
            self._parents[path.parent] = self._is_below(path.parent)
        return stat.S_ISREG(mode) and self._parents[path.parent]

    def _is_below(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._root)


@dataclass
class _Reading:
    """The images and skips collected so far."""

    images: dict[str, AnnotatedImage] = field(default_factory=dict)
    skipped: list[SkippedItem] = field(default_factory=list)

    def skip(self, identity: str, reason: str) -> None:
        self.skipped.append(SkippedItem(identity, reason))

    def add(self, item: Item) -> None:
        identity = item.place
        try:
            identity = image_id(item.file)
            if identity in self.images:
                raise BadItem(f"id stands twice, first with {self.images[identity].file!r}")
            split = SPLITS.get(item.split) if isinstance(item.split, str) else None
            if split is None:
                raise BadItem(f"unknown split: {item.split!r:.40}")
            captions = tuple(self._usable_captions(identity, item))
            if not captions:
                raise BadItem("no caption")
            self.images[identity] = AnnotatedImage(identity, item.file, split, captions)
        except (BadItem, InputError) as error:
            self.skip(identity, str(error))

    def _usable_captions(self, identity: str, item: Item) -> Iterator[Caption]:
        for number, caption in enumerate(item.captions):
            try:
                yield _tokenized_caption(caption) if item.has_tokens else _raw_caption(caption)
            except BadItem as error:
                self.skip(identity, f"caption {number}: {error}")


def _tokenized_caption(item: object) -> Caption:
    raw, words = _checked_text(member(item, "raw")), list_member(item, "tokens")
    joined = _checked_text(" ".join(map(str, words)))
    tokens = tuple(joined.split())
    if list(tokens) != words:
        raise BadItem("'tokens' is not a list of words without white space")
    if not tokens:
        raise BadItem("empty")
    return Caption(raw, tokens)


def _raw_caption(item: object) -> Caption:
    raw = _checked_text(item)
    tokens = tokenize(raw)
    if not tokens:
        raise BadItem("empty")
    return Caption(raw, tokens)


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise BadItem(f"{type(text).__name__}, not a string")
    if len(text) > LONGEST_CAPTION:
        raise BadItem(f"{len(text):,} characters, at most {LONGEST_CAPTION:,} are read")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadItem("not valid Unicode") from error
    return text
